"""The watch of the hardware: its thread, its sources, and what follows from their findings."""

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcelastic.agent.faulty_node import FaultyNode
from hpcelastic.agent.hardware_watch import HardwareWatch
from hpcelastic.agent.incident_recorder import IncidentRecorder
from hpcelastic.health.hardware import HardwareFinding, HardwareSeverity
from hpcelastic.health.incidents import read_incidents
from hpcelastic.health.settings import HealthSettings
from hpcelastic.protocol.settings import NodeRange, Settings
from hpcelastic.protocol.state import Failure, Member, NodeState, Notice, Phase, State, participants_of
from hpcelastic.storage.paths import RunPaths

TIMEOUT = 30.0
FINDING = HardwareFinding("GPUs", "GPU 0 is hot", HardwareSeverity.NOTE)


class Finds:
    """A source with one finding at each look."""

    def look(self) -> Iterator[HardwareFinding]:
        yield FINDING


class Breaks:
    """A source that fails at its first look."""

    def look(self) -> Iterator[HardwareFinding]:
        raise OSError("the driver is gone")
        yield


def missing() -> Any:
    raise ImportError("no library")


def test_a_source_that_fails_is_reported_once_and_the_others_are_watched() -> None:
    found: queue.Queue[HardwareFinding] = queue.Queue()
    lines: list[str] = []
    watch = HardwareWatch({"A": missing, "B": Breaks, "C": Finds}, 0.001, found.put, lines.append)
    assert [found.get(timeout=TIMEOUT) for _ in range(3)] == [FINDING] * 3
    watch.close()
    assert sorted(lines) == [
        "A of this node cannot be watched: ImportError: no library",
        "B of this node cannot be watched: OSError: the driver is gone",
    ]


def test_no_thread_is_started_if_the_watch_is_off() -> None:
    before = threading.active_count()
    HardwareWatch({"C": Finds}, 0.0, lambda finding: None, print)
    assert threading.active_count() == before


class Node:
    """Node ``a`` in a round with ``others``, and what it does."""

    def __init__(self, tmp_path: Path, others: int, enabled: bool = True) -> None:
        self.paths = RunPaths(tmp_path)
        self.notices: list[tuple[Notice, bool]] = []
        self.events: list[Any] = []
        members = [Member(f"{name}@0", NodeState.RUNNING, 1, 1, "h", 0) for name in "abc"[: 1 + others]]
        settings = Settings(NodeRange(1, 3))
        session: Any = SimpleNamespace(
            spec=SimpleNamespace(settings=settings),
            state_machine=SimpleNamespace(leaving=False),
            log=self.events.append,
            leave=lambda notice, polls: self.notices.append((notice, polls)),
        )
        health = HealthSettings(exclude=enabled)
        self.recorder = IncidentRecorder(self.paths, None, members[0], health)  # type: ignore[arg-type]
        round = State("r", settings, Phase.RUNNING, 1, participants_of(members))
        self.recorder.observe(round)
        self.node = FaultyNode(session, self.recorder, lambda line: None)

    def incidents(self) -> list[str]:
        self.recorder.close(TIMEOUT)
        return [incident.message for incident in read_incidents(self.paths)]


@pytest.mark.parametrize(
    ("severity", "notice"),
    [
        (HardwareSeverity.NOTE, None),
        (HardwareSeverity.LEAVE_AT_STEP, (Notice("faulty: GPUs: it broke", 120.0), True)),
        (HardwareSeverity.LEAVE, (Notice("faulty: GPUs: it broke", 0.0), False)),
    ],
)
def test_what_follows_from_a_severity(
    tmp_path: Path, severity: HardwareSeverity, notice: tuple[Notice, bool] | None
) -> None:
    node = Node(tmp_path, others=2)
    node.node.found(HardwareFinding("GPUs", "it broke", severity), polls=True)
    assert node.notices == ([] if notice is None else [notice])
    assert node.node.leaves is (notice is not None)
    assert node.incidents() == ([] if notice is None else ["GPUs: it broke"])
    assert [event.severity for event in node.events] == [severity.value]


def test_a_node_stays_if_the_others_are_not_enough(tmp_path: Path) -> None:
    node = Node(tmp_path, others=0)
    node.node.found(HardwareFinding("GPUs", "it broke", HardwareSeverity.LEAVE), polls=True)
    assert (node.notices, node.incidents()) == ([], ["GPUs: it broke"])


def test_a_node_stays_if_bad_nodes_are_not_excluded(tmp_path: Path) -> None:
    node = Node(tmp_path, others=2, enabled=False)
    node.node.found(HardwareFinding("GPUs", "it broke", HardwareSeverity.LEAVE), polls=True)
    assert (node.notices, node.incidents(), len(node.events)) == ([], [], 1)


def test_a_worker_whose_gpu_breaks_makes_its_node_leave_at_once(tmp_path: Path) -> None:
    node = Node(tmp_path, others=2)
    node.node.worker_failed(Failure(1, "a@0", 0, 0, 1, "ValueError: x"))
    assert node.notices == []
    node.node.worker_failed(Failure(1, "a@0", 0, 0, 1, "CUDA error: uncorrectable ECC error encountered"))
    assert [(notice.seconds, polls) for notice, polls in node.notices] == [(0.0, False)]
