"""The benchmark of the nodes of a job before they join a run together: a slow node would slow down all of them."""

import contextlib
from collections.abc import Callable, Mapping, Sequence

from hpcelastic.agent.address import interface_of
from hpcelastic.doctor.benchmark import MeasurerProcess, measure_speeds
from hpcelastic.doctor.coordination import Coordination, Members
from hpcelastic.doctor.probe import remove_tree
from hpcelastic.doctor.speeds import Baseline, judge_speeds
from hpcelastic.doctor.verdict import Severity
from hpcelastic.errors import StoreError
from hpcelastic.protocol.state import Member
from hpcelastic.storage.bounded import bounded
from hpcelastic.storage.paths import RunPaths

_STEP_TIMEOUT = 40.0
"""Seconds for which the nodes wait for each other at each step."""

_TIMEOUT = 90.0
"""Seconds after which the nodes join without the benchmark."""


class Preflight:
    """The benchmark of the nodes of one job in a run. ``command`` starts the process that measures."""

    def __init__(
        self,
        paths: RunPaths,
        member: Member,
        min_nodes: int,
        command: Sequence[str],
        environ: Mapping[str, str],
        report: Callable[[str], None],
    ) -> None:
        self._paths, self._member, self._min_nodes, self._report = paths, member, min_nodes, report
        self._command, self._environ = command, {**environ, "GLOO_SOCKET_IFNAME": interface_of(member.address)}

    def slow(self) -> str:
        """Return why this node is slow; empty if it is not, or if the nodes could not be measured."""
        member = self._member
        if member.job_nodes < 2:
            return ""
        self._report(f"measuring the {member.job_nodes} nodes of the job before they join (health.benchmark)")
        try:
            return bounded(self._measure, _TIMEOUT, str(self._paths.root))
        except (StoreError, OSError) as error:
            self._report(f"the nodes were not measured: {error}")
            return ""

    def _measure(self) -> str:
        member = self._member
        members = Members(member.job_nodes, member.order, f"preflight-{member.job}")
        coordination = Coordination(self._paths.root, members, _STEP_TIMEOUT, lambda line: None)
        with contextlib.ExitStack() as stack:
            measurer = MeasurerProcess(self._command, self._environ)  # it imports torch meanwhile
            stack.callback(measurer.close)
            coordination.open()
            if coordination.created:
                stack.callback(remove_tree, coordination.root, 10.0)
            speeds = measure_speeds(
                coordination, member.machine, member.address, self._paths.root, measurer, lambda line: None
            )
            if speeds is not None:
                report = judge_speeds(speeds, Baseline())
                for finding in report.findings:
                    if finding.severity is not Severity.OK:
                        self._report(f"{finding.check}: {finding.result}")
                enough = len(speeds) - len(report.slow) >= self._min_nodes
                if report.slow and not enough:
                    self._report(f"slow nodes join nevertheless, because nodes.min is {self._min_nodes}")
                coordination.publish("slow", dict(report.slow) if enough else {})
            slow: Mapping[str, str] = coordination.receive("slow", [0])[0]
            coordination.publish("read")
            if members.rank == 0:
                coordination.receive("read", range(members.count))  # until then, the others need the directory
            return slow.get(member.machine) or slow.get(f"{member.machine}:{member.order}") or ""
