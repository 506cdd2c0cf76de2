"""No increment of a counter is lost or executed twice, on any filesystem."""

from pathlib import Path

import pytest

from tests.filesystems.clients import local
from tests.filesystems.hammer import Observation, hammer
from tests.filesystems.shared import Shared, on, shared, started_filesystems

pytestmark = pytest.mark.slow

__all__ = ["shared", "started_filesystems"]


@pytest.mark.parametrize("kind", ["hpcelastic", "hpcelastic add"])
@pytest.mark.parametrize("shared", on(nightly=lambda _: False), indirect=True)
def test_increments_from_several_clients_are_exact(shared: Shared, kind: str) -> None:
    observation = hammer(kind, shared.mounts, shared.folder, increments=15, processes=2)
    if shared.source.fails and observation.failed:  # a failed increment may have taken effect or not
        assert observation.lost == 0 and observation.twice <= observation.failed, observation
    else:
        assert observation.exact, observation


def test_the_hammer_finds_the_lost_updates_of_a_plain_rename(tmp_path: Path) -> None:
    (tmp_path / "counter-folder").mkdir()
    observation = hammer("plain rename", local("ext4", tmp_path), "counter-folder", increments=100, processes=2)
    assert observation.lost > 0, observation


OUTCOMES = [
    pytest.param((1, 2, 3, 4), (0, 0, True), id="exact"),
    pytest.param((1, 2, 2, 3), (1, 0, False), id="lost"),
    pytest.param((1, 2, 4, 5), (0, 1, False), id="twice"),
    pytest.param((1, 2, 3), (0, 0, False), id="missing increments"),
]


@pytest.mark.parametrize(("returned", "judged"), OUTCOMES)
def test_the_returned_numbers_determine_the_outcome(returned: tuple[int, ...], judged: tuple[int, int, bool]) -> None:
    observation = Observation(4, returned, (), 1.0)
    assert (observation.lost, observation.twice, observation.exact) == judged
