import errno
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpcelastic.errors import StoreError
from hpcelastic.training import Checkpoints
from hpcelastic.training.checkpoint_files import CheckpointFiles
from hpcelastic.training.retention import CheckpointName
from hpcelastic.training.seals import seal
from tests.training.workers import become, become_nobody, drafts, listing, make_run


def state(number: int) -> dict[str, Any]:
    return {"weights": torch.full((40,), float(number)), "number": number}


def number(checkpoints: Checkpoints) -> int | None:
    found = checkpoints.load()
    assert found is None or torch.equal(found.state["weights"], state(found.state["number"])["weights"])
    return int(found.state["number"]) if found else None


def test_a_saved_state_is_loaded(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state(), "x": 0.5}
    path = Checkpoints(tmp_path / "new" / "checkpoints", round=3).save(120, saved)
    assert path == tmp_path / "new" / "checkpoints" / "round-0003.step-00000120.pt"
    found = Checkpoints(path.parent).load()
    assert found is not None
    assert (found.step, found.round, found.path) == (120, 3, path)
    torch.testing.assert_close(found.state, saved, rtol=0, atol=0)
    torch.testing.assert_close(torch.load(path, weights_only=True), saved, rtol=0, atol=0)


def test_at_first_there_is_no_checkpoint(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path).load() is None
    assert Checkpoints(tmp_path / "missing").load() is None
    assert listing(tmp_path) == []


def test_the_run_directory_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    become_nobody(monkeypatch)
    assert Checkpoints().directory == Path("checkpoints")
    become(monkeypatch, make_run(tmp_path, round=7), 7)
    assert Checkpoints().save(1, state(1)) == tmp_path / "checkpoints" / "round-0007.step-00000001.pt"


class TestZombie:
    """A worker of an older round, alive on a node that all others have declared dead."""

    @pytest.mark.parametrize("newer", ["save", "load"])
    def test_it_is_refused_after_a_newer_round_has_started(
        self, tmp_path: Path, newer: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Checkpoints(tmp_path, round=2).save(80, state(80))
        zombie = Checkpoints(tmp_path, round=2)
        monkeypatch.setattr(CheckpointFiles, "refuse_zombie", lambda files: None)  # it looked just before round 3 came
        if newer == "save":
            Checkpoints(tmp_path, round=3).save(81, state(81))
        else:
            assert number(Checkpoints(tmp_path, round=3)) == 80
        before = listing(tmp_path)
        with pytest.raises(StoreError, match=r"newer round publishes in .* of round 2 is outdated"):
            zombie.save(200, state(200))
        with pytest.raises(StoreError, match=r"newer round publishes in .* of round 2 is outdated"):
            zombie.load()
        assert listing(tmp_path) == before

    def test_it_is_refused_just_before_its_publication(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        replace = os.replace

        def sleep_first(draft: Path, path: Path) -> None:
            monkeypatch.setattr(os, "replace", replace)
            Checkpoints(tmp_path, round=3).save(81, state(81))
            replace(draft, path)

        monkeypatch.setattr(os, "replace", sleep_first)
        with pytest.raises(StoreError, match="of round 2 is outdated"):
            Checkpoints(tmp_path, round=2).save(200, state(200))
        assert listing(tmp_path) == ["round-0003.step-00000081.pt"]
        assert drafts(tmp_path) == []

    def test_its_earlier_publications_are_not_chosen(self, tmp_path: Path) -> None:
        Checkpoints(tmp_path, round=2).save(200, state(200))
        Checkpoints(tmp_path, round=3).save(81, state(81))
        assert listing(tmp_path) == ["round-0002.step-00000200.pt", "round-0003.step-00000081.pt"]
        assert number(Checkpoints(tmp_path)) == 81

    def test_its_error_tells_it_to_stop(self, tmp_path: Path) -> None:
        Checkpoints(tmp_path, round=3).save(81, state(81))
        with pytest.raises(StoreError, match=r"round 3 has published .* of round 2 is outdated"):
            Checkpoints(tmp_path, round=2).save(200, state(200))
        assert listing(tmp_path) == ["round-0003.step-00000081.pt"]

    def test_before_a_newer_round_its_checkpoint_is_valid(self, tmp_path: Path) -> None:
        Checkpoints(tmp_path, round=2).save(80, state(80))
        Checkpoints(tmp_path, round=2).save(100, state(100))
        assert number(Checkpoints(tmp_path, round=3)) == 100

    def test_under_an_agent_the_fence_of_the_run_applies(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run = make_run(tmp_path / "run", round=2)
        become(monkeypatch, run, 2)
        Checkpoints().save(80, state(80))
        make_run(run, round=3)
        with pytest.raises(StoreError, match=r"round 3 has formed; this worker of round 2 is outdated"):
            Checkpoints().load()
        become(monkeypatch, run, 3)
        assert number(Checkpoints()) == 80


def test_checkpoints_in_a_read_only_directory_can_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Checkpoints(tmp_path).save(80, state(80))

    def refuse(path: Path, mode: int = 0o777) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "mkdir", refuse)
    assert number(Checkpoints(tmp_path, round=2)) == 80


class TestKeeping:
    def test_the_newest_are_kept(self, tmp_path: Path) -> None:
        checkpoints = Checkpoints(tmp_path, keep=2, round=1)
        for step in (1, 2, 3):
            checkpoints.save(step, state(step))
        assert listing(tmp_path) == ["round-0001.step-00000002.pt", "round-0001.step-00000003.pt"]

    def test_the_last_saved_checkpoint_is_kept_beside_a_damaged_later_one(self, tmp_path: Path) -> None:
        checkpoints = Checkpoints(tmp_path, keep=1, round=0)
        checkpoints.save(20, state(20)).write_bytes(b"")
        checkpoints.save(10, state(10))
        assert number(checkpoints) == 10

    def test_every_tenth_is_kept(self, tmp_path: Path) -> None:
        checkpoints = Checkpoints(tmp_path, keep=1, keep_every=10, round=1)
        for step in (5, 10, 15, 20, 25):
            checkpoints.save(step, state(step))
        assert [int(name[-5:-3]) for name in listing(tmp_path)] == [10, 20, 25]

    def test_a_missing_file_is_no_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        checkpoints = Checkpoints(tmp_path, keep=1, round=1)
        checkpoints.save(1, state(1))
        names = checkpoints.files().names()
        monkeypatch.setattr(CheckpointFiles, "names", lambda files: [CheckpointName(1, 2), *names])
        os.unlink(tmp_path / str(names[0]))
        checkpoints.save(2, state(2))
        assert listing(tmp_path) == ["round-0001.step-00000002.pt"]

    def test_a_file_that_cannot_be_removed_causes_a_warning(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        checkpoints = Checkpoints(tmp_path, keep=1, round=1)
        checkpoints.save(1, state(1))

        def refuse(self: Path, missing_ok: bool = False) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "unlink", refuse)
        checkpoints.save(2, state(2))
        assert "round-0001.step-00000001.pt: Permission denied" in caplog.text

    def test_drafts_of_dead_writers_are_removed_and_other_files_are_kept(self, tmp_path: Path) -> None:
        dead = ["round-0001.step-00000009.pt.0a1b2c3d.draft", "round-0002.step-00000005.pt.0a1b2c3d.draft"]
        alive = ["round-0002.step-00000006.pt.0a1b2c3d.draft", "round-0003.step-00000006.pt.0a1b2c3d.draft"]
        others = ["notes.txt", "notes.draft", "round-0001.step-00000009.pt.bak"]
        for name in (*dead, *alive, *others):
            (tmp_path / name).touch()
        saved = Checkpoints(tmp_path, round=2).save(5, state(5))
        assert listing(tmp_path) == sorted([*alive, *others, saved.name])

    def test_at_least_one_is_kept(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="keep is 0"):
            Checkpoints(tmp_path, keep=0)


class TestBest:
    @staticmethod
    def save(directory: Path, losses: list[float], **arguments: Any) -> Checkpoints:
        checkpoints = Checkpoints(directory, keep=1, best="loss", round=1, **arguments)
        for step, loss in enumerate(losses):
            checkpoints.save(step, state(step), metrics={"loss": loss, "other": 7.0})
        return checkpoints

    @pytest.mark.parametrize(("mode", "step"), [("min", 1), ("max", 2)])
    def test_it_stays_and_is_loaded(self, tmp_path: Path, mode: str, step: int) -> None:
        checkpoints = self.save(tmp_path, [0.5, 0.25, 2.0, 1e-05 if mode == "max" else 1e20], mode=mode)
        assert len(listing(tmp_path)) == 2
        found = checkpoints.load(best=True)
        assert found is not None and (found.step, found.metric) == (step, [0.5, 0.25, 2.0][step])
        assert found.state["number"] == step and number(checkpoints) == 3

    def test_another_round_and_another_process_know_it(self, tmp_path: Path) -> None:
        self.save(tmp_path, [0.5, 0.25, 2.0])
        later = Checkpoints(tmp_path, keep=1, best="loss", round=2)
        later.save(3, state(3), metrics={"loss": 0.3})
        assert listing(tmp_path) == ["round-0001.step-00000001.loss=0.25.pt", "round-0002.step-00000003.loss=0.3.pt"]
        later.save(4, state(4), metrics={"loss": 0.2})
        assert listing(tmp_path) == ["round-0002.step-00000004.loss=0.2.pt"]

    @pytest.mark.parametrize("worst", [float("nan"), float("inf"), float("-inf")])
    def test_a_value_that_is_not_finite_never_is_the_best(self, tmp_path: Path, worst: float) -> None:
        for mode in ("min", "max"):
            checkpoints = self.save(tmp_path / mode, [0.5, worst], mode=mode)
            found = checkpoints.load(best=True)
            assert found is not None and found.step == 0
        newest = checkpoints.load()
        assert newest is not None and (newest.step, newest.metric) == (1, None)

    def test_without_a_value_there_is_no_best_one(self, tmp_path: Path) -> None:
        checkpoints = Checkpoints(tmp_path, best="loss", round=1)
        checkpoints.save(1, state(1))
        Checkpoints(tmp_path, best="accuracy", round=1).save(2, state(2), metrics={"accuracy": 0.1})
        assert checkpoints.load(best=True) is None
        with pytest.raises(ValueError, match="metrics has no 'loss'"):
            checkpoints.save(2, state(2), metrics={"los": 0.1})
        with pytest.raises(ValueError, match="needs the name of a metric"):
            Checkpoints(tmp_path).load(best=True)

    def test_a_truncated_file_is_not_kept_as_the_best(self, tmp_path: Path) -> None:
        checkpoints = self.save(tmp_path, [0.5, 0.6])
        best = tmp_path / "round-0001.step-00000000.loss=0.5.pt"
        best.write_bytes(best.read_bytes()[:-5])
        checkpoints.save(2, state(2), metrics={"loss": 0.55})
        checkpoints.save(3, state(3), metrics={"loss": 0.7})
        assert listing(tmp_path) == ["round-0001.step-00000002.loss=0.55.pt", "round-0001.step-00000003.loss=0.7.pt"]

    def test_a_file_that_cannot_be_read_now_stays(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        checkpoints = self.save(tmp_path, [0.5, 0.6])

        def refuse(self: Path, mode: str) -> Any:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(Path, "open", refuse)
        checkpoints.save(2, state(2), metrics={"loss": 0.55})
        assert "round-0001.step-00000000.loss=0.5.pt" in listing(tmp_path)

    def test_a_damaged_one_is_skipped(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        checkpoints = self.save(tmp_path, [0.5, 0.6])
        best = tmp_path / "round-0001.step-00000000.loss=0.5.pt"
        whole = best.read_bytes()
        best.write_bytes(whole[:100] + b"?" + whole[101:])
        found = checkpoints.load(best=True)
        assert found is not None and found.step == 1
        assert f"{best} is damaged" in caplog.text and "loading the next best one" in caplog.text
        found.path.write_bytes(b"")
        with pytest.raises(StoreError, match=r"all 2 checkpoints with loss in .* are damaged"):
            checkpoints.load(best=True)

    def test_a_step_that_is_saved_again_has_its_last_metric(self, tmp_path: Path) -> None:
        checkpoints = self.save(tmp_path, [0.5])
        checkpoints.save(0, state(7), metrics={"loss": 0.9})
        assert listing(tmp_path) == ["round-0001.step-00000000.loss=0.9.pt"]
        assert number(checkpoints) == 7


class TestDamage:
    def test_if_the_newest_is_incomplete_the_next_older_one_is_chosen(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        checkpoints = Checkpoints(tmp_path, round=1)
        checkpoints.save(1, state(1))
        newest = checkpoints.save(2, state(2))
        whole = newest.read_bytes()
        for length in range(len(whole)):
            newest.write_bytes(whole[:length])
            assert number(checkpoints) == 1, f"cut to {length} of {len(whole)} bytes"
        assert f"{newest} is damaged" in caplog.text

    def test_if_any_byte_is_wrong_the_older_one_is_chosen(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.CRITICAL)
        checkpoints = Checkpoints(tmp_path, round=1)
        checkpoints.save(1, state(1))
        newest = checkpoints.save(2, state(2))
        whole = newest.read_bytes()
        for position in range(len(whole)):
            newest.write_bytes(whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :])
            assert number(checkpoints) == 1, f"byte {position} of {len(whole)}"

    def test_zeros_within_a_tensor_are_detected(self, tmp_path: Path) -> None:
        checkpoints = Checkpoints(tmp_path, round=1)
        checkpoints.save(1, state(1))
        newest = checkpoints.save(2, state(2))
        weights = state(2)["weights"].numpy().tobytes()
        newest.write_bytes(newest.read_bytes().replace(weights, bytes(len(weights))))
        assert torch.load(newest, weights_only=True)["weights"].sum() == 0
        assert number(checkpoints) == 1

    def test_an_unreadable_file_counts_as_damaged(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        checkpoints = Checkpoints(tmp_path, round=1)
        checkpoints.save(1, state(1))
        newest = checkpoints.save(2, state(2))
        is_open = Path.open

        def refuse(self: Path, mode: str) -> Any:
            if self == newest:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return is_open(self, mode)

        monkeypatch.setattr(Path, "open", refuse)
        assert number(checkpoints) == 1

    def test_if_all_are_damaged_loading_is_an_error(self, tmp_path: Path) -> None:
        checkpoints = Checkpoints(tmp_path, round=1)
        for step in (1, 2):
            checkpoints.save(step, state(step)).write_bytes(b"")
        with pytest.raises(StoreError, match=r"all 2 checkpoints in .* are damaged"):
            checkpoints.load()

    def test_a_checkpoint_that_is_removed_during_a_read_is_skipped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checkpoints = Checkpoints(tmp_path, round=1)
        checkpoints.save(1, state(1))
        names = checkpoints.files().names()
        monkeypatch.setattr(CheckpointFiles, "names", lambda files: [CheckpointName(1, 2), *names])
        assert number(checkpoints) == 1


class Own:
    """A class that a checkpoint must not contain."""


@pytest.mark.parametrize(
    "value",
    [np.float64(0.5), np.zeros(3), Own(), Own, lambda: 0, range(3), torch.nn.Linear(1, 1), sys.stdout],
    ids=lambda value: type(value).__name__,
)
def test_a_state_that_could_not_be_loaded_is_refused_when_saved(tmp_path: Path, value: object) -> None:
    checkpoints = Checkpoints(tmp_path, round=1)
    checkpoints.save(1, state(1))
    with pytest.raises(StoreError, match="this state cannot be a checkpoint") as error:
        checkpoints.save(2, {"value": value})
    assert "weights_only" not in str(error.value)  # torch's advice is to let a checkpoint run code
    assert listing(tmp_path) == ["round-0001.step-00000001.pt"]


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        1.5,
        "x",
        b"x",
        (1, [2]),
        {1, 2},
        {"a": {1: "b"}},
        torch.float16,
        torch.zeros(0),
        torch.eye(3).to_sparse(),
    ],
    ids=repr,
)
def test_plain_values_are_accepted(tmp_path: Path, value: object) -> None:
    checkpoints = Checkpoints(tmp_path, round=1)
    checkpoints.save(1, {"value": value})
    found = checkpoints.load()
    assert found is not None and str(found.state["value"]) == str(value)


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, (f"touch {tmp_path}/evil",)

    with (tmp_path / "round-0001.step-00000001.pt").open("x+b") as file:
        torch.save({"x": Evil()}, file)
        seal(file)
    with pytest.raises(StoreError, match=r"cannot load checkpoint .*it holds \w+\.system; move it away"):
        Checkpoints(tmp_path).load()
    assert not (tmp_path / "evil").exists()


def test_a_full_disk_is_reported_and_leaves_no_file(tmp_path: Path) -> None:
    code = """
import resource, signal, sys, torch
from hpcelastic.errors import StoreError
from hpcelastic.training import Checkpoints
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
checkpoints = Checkpoints(sys.argv[1], round=1)
checkpoints.save(1, {"weights": torch.zeros(10)})
for floats in (26_000, 50_000, 1_000_000):
    try:
        checkpoints.save(2, {"weights": torch.zeros(floats)})
    except StoreError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert len(re.findall(r"step-00000002.pt: File too large; .*ulimit -f", done.stdout)) == 3
    assert listing(tmp_path) == ["round-0001.step-00000001.pt"]


def test_a_directory_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot make .*a part of the path is a file"):
        Checkpoints(tmp_path / "file" / "checkpoints").save(1, state(1))
    with pytest.raises(StoreError, match=r"cannot list .*a part of the path is a file"):
        Checkpoints(tmp_path / "file").load()


def test_a_save_that_does_not_wait_raises_no_error_of_the_filesystem(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without an agent it waits nevertheless."""
    (tmp_path / "place").touch()
    checkpoints = Checkpoints(tmp_path / "place")
    checkpoints.save(1, state(1), wait=False)
    assert "the checkpoint of step 1 is not saved, and training continues: cannot make" in caplog.text
    assert not checkpoints.flush()
    (tmp_path / "place").unlink()
    assert checkpoints.save(2, state(2), wait=False).exists()
    assert checkpoints.flush()
    with pytest.raises(StoreError, match="this state cannot be a checkpoint"):
        checkpoints.save(3, {"own": Own()}, wait=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permissions_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="use a directory that belongs to you"):
        Checkpoints(tmp_path).save(1, state(1))


class TestSigkill:
    """SIGKILL before every C call of ``save``. Only C calls use the disk, so these are all points."""

    @staticmethod
    def save_and_die(directory: Path, step: int, at: int) -> bool:
        """Save in a child that dies before its C call number ``at``. Return whether it reached that call."""
        if child := os.fork():
            return os.WIFSIGNALED(os.waitpid(child, 0)[1])
        count = 0

        def profile(_frame: object, event: str, _arg: object) -> None:
            nonlocal count
            if event == "c_call" and count == at:
                os.kill(os.getpid(), signal.SIGKILL)
            count += event == "c_call"

        checkpoints = Checkpoints(directory, keep=1, round=2)
        sys.setprofile(profile)
        checkpoints.save(step, state(2))
        sys.setprofile(None)
        os._exit(0)

    @pytest.mark.slow
    @pytest.mark.timeout(900)  # a thousand forks
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork with threads: this child only writes a file
    def test_sigkill_leaves_the_old_or_the_complete_new_checkpoint(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "fsync", lambda fd: None)  # a kill does not lose unsynced data
        whole, old_state = tmp_path / "whole", state(1)
        Checkpoints(whole, round=1).save(1, old_state)
        original = next(whole.iterdir()).read_bytes()
        outcomes: list[int | None] = []
        died, at = True, 0
        while died:
            directory = tmp_path / str(at)
            directory.mkdir()
            (directory / "round-0001.step-00000001.pt").write_bytes(original)
            died = self.save_and_die(directory, 2, at)
            outcomes.append(number(Checkpoints(directory)))
            assert len(drafts(directory)) <= 1
            Checkpoints(directory, keep=1, round=3).save(3, state(3))
            assert drafts(directory) == []
            assert listing(directory) == ["round-0003.step-00000003.pt"]
            at += 1
        switch = outcomes.index(2)
        assert outcomes == [1] * switch + [2] * (len(outcomes) - switch)
        assert switch > 100 and len(outcomes) - switch > 10  # the kills occurred before and after the rename
