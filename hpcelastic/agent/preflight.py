"""The benchmark of the nodes of a job before they join a run together: a slow node would slow down all of them."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcelastic.doctor.benchmark import ANSWER_TIMEOUT, Measurer, NodeSpeed, measure_speeds
from hpcelastic.doctor.coordination import Coordination, Members
from hpcelastic.doctor.probe import remove_tree
from hpcelastic.doctor.speeds import Baseline, judge_speeds
from hpcelastic.doctor.verdict import Severity
from hpcelastic.errors import StoreError
from hpcelastic.protocol.state import Member
from hpcelastic.storage.bounded import bounded
from hpcelastic.storage.paths import RunPaths

_STEP_TIMEOUT = ANSWER_TIMEOUT + 15.0
"""Seconds for which the nodes wait for each other at each step. One of them may wait for an answer meanwhile."""

_TIMEOUT = 90.0
"""Seconds after which the nodes join without the benchmark."""


class AbsentNode:
    """A `Measurer` of a node that does not join. It takes part, so that the other nodes do not wait for it."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def ask(self, command: dict[str, Any]) -> None:
        raise StoreError(self._reason)

    def answer(self) -> Any:
        raise StoreError(self._reason)

    def close(self) -> None: ...


def slowness(
    paths: RunPaths,
    member: Member,
    min_nodes: int,
    make_measurer: Callable[[], Measurer],
    report: Callable[[str], None],
) -> str:
    """Measure this node together with the other nodes of its job.

    Return why this node is slow; empty if it is not, or if the nodes could not be measured.
    """
    if member.job_nodes < 2:
        return ""
    report(f"measuring the {member.job_nodes} nodes of the job before they join (health.benchmark)")
    members = Members(member.job_nodes, member.order, f"preflight-{member.job}")
    coordination = Coordination(paths.root, members, _STEP_TIMEOUT, lambda line: None)

    def measured() -> Mapping[str, str]:
        with contextlib.ExitStack() as stack:
            measurer = make_measurer()  # it imports torch meanwhile
            stack.callback(measurer.close)
            coordination.open()
            if coordination.created:
                stack.callback(remove_tree, coordination.root, 10.0)
            node = member.machine, member.address, paths.root
            speeds = measure_speeds(coordination, *node, measurer, lambda line: None)
            return _agreed(coordination, None if speeds is None else _slow_nodes(speeds, min_nodes, report))

    try:
        slow = bounded(measured, _TIMEOUT, str(paths.root))
    except (StoreError, OSError) as error:
        report(f"the nodes were not measured: {error}")
        return ""
    except Exception as error:  # an error of the benchmark itself must not exclude the node
        report(f"the nodes were not measured: {type(error).__name__}: {error}")
        return ""
    return slow.get(member.machine) or slow.get(f"{member.machine}:{member.order}") or ""


def _slow_nodes(speeds: Sequence[NodeSpeed], min_nodes: int, report: Callable[[str], None]) -> dict[str, str]:
    """Return the nodes that must not join, and what is slow; none if the others are fewer than ``min_nodes``."""
    found = judge_speeds(speeds, Baseline())
    for finding in found.findings:
        if finding.severity is not Severity.OK:
            report(f"{finding.check}: {finding.result}")
    if len(speeds) - len(found.slow) >= min_nodes:
        return dict(found.slow)
    if found.slow:
        report(f"slow nodes join nevertheless, because nodes.min is {min_nodes}")
    return {}


def _agreed(coordination: Coordination, slow: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return the slow nodes to every member. Only member 0 knows them before."""
    if slow is not None:
        coordination.publish("slow", slow)
    received: Mapping[str, str] = coordination.receive("slow", [0])[0]
    coordination.publish("read")
    if coordination.members.rank == 0:
        coordination.receive("read", range(coordination.members.count))  # until then, the others need the directory
    return received
