"""Workers of two or three rounds publish the same name and are suspended between any two system calls.

The name never changes back to an older round, and the newest round is never refused.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcelastic.errors import StoreError
from hpcelastic.training import fence as fence_module
from hpcelastic.training.fence import Fence
from hpcelastic.training.publish import publication, publish_link
from tests.training.stepping import Sleeper, publish_module, sleepers

Act = Callable[[Path, Fence], None]
RUN = "run"


def publish_file(directory: Path, fence: Fence) -> None:
    with publication(directory / "latest", fence) as file:
        file.write(str(fence.round).encode())


def publish_target(directory: Path, fence: Fence) -> None:
    publish_link(directory / "latest", Path(str(fence.round)), fence)


def publish_twice(directory: Path, fence: Fence) -> None:
    publish_file(directory, fence)
    publish_file(directory, fence)


PUBLISH: dict[str, Act] = {"file": publish_file, "link": publish_target, "twice": publish_twice}


def newest(directory: Path) -> int:
    """Return the round whose publication readers see; 0 if there is none."""
    path = directory / "latest"
    if path.is_symlink():
        return int(os.readlink(path))
    return int(path.read_text()) if path.exists() else 0


class Scene:
    """Workers in a directory, and what readers see meanwhile."""

    def __init__(self, directory: Path, make: Callable[[Callable[[], object]], Sleeper]) -> None:
        self.directory = directory
        directory.mkdir()
        self._make = make
        self._seen = 0

    def worker(self, round: int, act: Act) -> Sleeper:
        return self._make(lambda: act(self.directory, Fence(RUN, round)))

    def go(self, worker: Sleeper, steps: int | None = None) -> None:
        """Let ``worker`` do so many steps, or all. A reader checks after each."""
        while not worker.ended and steps != 0:
            worker.step()
            steps = None if steps is None else steps - 1
            seen = newest(self.directory)
            assert seen >= self._seen, f"round {seen} published over round {self._seen}; it did {worker.steps}"
            self._seen = seen


@pytest.fixture
def scenes(tmp_path: Path) -> Iterator[Callable[[], Scene]]:
    with sleepers() as make:
        yield lambda: Scene(tmp_path / f"scene-{len(os.listdir(tmp_path))}", make)


def one_nap(scenes: Callable[[], Scene], old: Act, new: Act) -> int:
    """Suspend the older worker before each of its steps in turn while the newer one does all. Return the number of
    steps."""
    nap = 0
    while True:
        scene = scenes()
        zombie, worker = scene.worker(1, old), scene.worker(3, new)
        scene.go(zombie, nap)
        slept = not zombie.ended
        scene.go(worker)
        assert worker.error is None, worker.error
        scene.go(zombie)
        assert zombie.error is None or isinstance(zombie.error, StoreError), repr(zombie.error)
        assert newest(scene.directory) == 3
        if not slept:
            return nap
        nap += 1


def two_naps(scenes: Callable[[], Scene], old: Act, new: Act) -> int:
    """Continue the older worker while the newer one is suspended: every pair of steps."""
    pairs, nap, ended = 0, 0, False
    while not ended:
        later, over = 1, False
        while not over:
            scene = scenes()
            zombie, worker = scene.worker(1, old), scene.worker(2, new)
            scene.go(zombie, nap)
            ended = zombie.ended
            scene.go(worker, later)
            over = worker.ended
            scene.go(zombie)
            scene.go(worker)
            assert worker.error is None, worker.error
            assert newest(scene.directory) == 2
            shutil.rmtree(scene.directory)
            later, pairs = later + 1, pairs + 1
        nap += 1
    return pairs


@pytest.mark.parametrize("new", PUBLISH.values(), ids=PUBLISH.keys())
@pytest.mark.parametrize("old", PUBLISH.values(), ids=PUBLISH.keys())
def test_a_worker_suspended_before_any_step_never_publishes_over_a_newer_round(
    scenes: Callable[[], Scene], old: Act, new: Act
) -> None:
    assert one_nap(scenes, old, new) > 10


@pytest.mark.slow
def test_any_pair_of_suspended_steps_keeps_the_newer_round(scenes: Callable[[], Scene]) -> None:
    assert two_naps(scenes, publish_file, publish_file) > 100


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=40))
def test_four_workers_of_three_rounds_in_any_order(
    scenes: Callable[[], Scene], schedule: Sequence[tuple[int, int]]
) -> None:
    scene = scenes()
    rounds = (1, 2, 3, 3)
    workers = [scene.worker(round, act) for round, act in zip(rounds, (publish_twice, *PUBLISH.values()), strict=True)]
    for index, steps in schedule:
        scene.go(workers[index], steps)
    for worker in workers:
        scene.go(worker)
    assert newest(scene.directory) == 3
    for round, worker in zip(rounds, workers, strict=True):
        assert worker.error is None or (round < 3 and isinstance(worker.error, StoreError)), repr(worker.error)


def test_after_a_claim_no_older_round_publishes(scenes: Callable[[], Scene]) -> None:
    nap, slept = 0, True
    while slept:
        scene = scenes()
        zombie = scene.worker(1, publish_file)
        scene.go(zombie, nap)
        slept = not zombie.ended
        Fence(RUN, 2).claim(scene.directory)
        read = newest(scene.directory)
        scene.go(zombie)
        assert newest(scene.directory) == read
        assert (zombie.error is None) == (read == 1)
        nap += 1
    assert nap > 10


# Faults of the fence that these tests must find


def no_claim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fence, "claim", lambda self, directory: self._root(directory).mkdir(exist_ok=True))


def nothing_keeps_the_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fence_module, "_exclude", fence_module._remove_drafts)


def drafts_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fence_module, "_exclude", lambda path: None if path.exists() else path.touch())


def drafts_in_a_directory_of_all_rounds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fence, "drafts", lambda self, directory: self._root(directory))


def a_look_before_the_rename(patch: pytest.MonkeyPatch) -> None:
    """A program that checks its token and then writes."""
    drafts_in_a_directory_of_all_rounds(patch)
    module = publish_module()
    publish = module._publish

    def look_first(draft: Path, path: Path) -> None:
        Fence(RUN, int(draft.read_text())).refuse_zombie(path.parent)
        publish(draft, path)

    patch.setattr(module, "_publish", look_first)


def only_the_round_before(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fence_module, "range", lambda start, stop: range(max(start, stop - 1), stop), raising=False)


def claim_when_published(patch: pytest.MonkeyPatch) -> None:
    claim, publish = Fence.claim, publish_module()._publish
    no_claim(patch)

    def publish_then_claim(draft: Path, path: Path) -> None:
        publish(draft, path)
        claim(Fence(RUN, int(path.read_text())), path.parent)

    patch.setattr(publish_module(), "_publish", publish_then_claim)


HOLES = [
    no_claim,
    nothing_keeps_the_name,
    drafts_stay,
    drafts_in_a_directory_of_all_rounds,
    a_look_before_the_rename,
    only_the_round_before,
    claim_when_published,
]


@pytest.mark.parametrize("hole", HOLES, ids=lambda hole: hole.__name__)
def test_a_fault_of_the_fence_is_found(
    scenes: Callable[[], Scene], monkeypatch: pytest.MonkeyPatch, hole: Callable[[pytest.MonkeyPatch], None]
) -> None:
    hole(monkeypatch)
    with pytest.raises(AssertionError, match="published over"):
        one_nap(scenes, publish_file, publish_file)
        two_naps(scenes, publish_file, publish_file)
