"""Admission of a node to a run: before the node joins, it is checked, and its incidents are read."""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpcelastic.agent.address import interface_of
from hpcelastic.agent.signals import Handler, signal_handlers
from hpcelastic.backends.backend import Backend
from hpcelastic.errors import StoreError
from hpcelastic.health.checks import CheckContext, check_node
from hpcelastic.health.finding import CheckFinding
from hpcelastic.health.incidents import Incident, IncidentKind
from hpcelastic.health.memory import node_verdicts, record_incident
from hpcelastic.health.settings import HealthSettings
from hpcelastic.health.verdict import NodeVerdict, format_duration
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Member, NodeState, Phase, State
from hpcelastic.rendezvous.run import read_state
from hpcelastic.storage.bounded import bounded
from hpcelastic.storage.paths import RunPaths

EXIT_UNFIT = 3
"""Exit status of an agent whose node failed its check or has a hardware fault."""

_PUBLISH_TIMEOUT = 10.0
"""Seconds in which the node publishes in the run's directory why it does not join."""

_IDLE_RUN_TIMEOUT = 60.0
"""Seconds without a round after which an excluded node is admitted.

At most half of ``rendezvous.join_timeout``, after which the other nodes give up.
"""

_POLL_INTERVAL = 2.0
"""Seconds between two polls of an excluded node."""


@dataclass(frozen=True)
class AdmissionRequest:
    """A node that requests to join a run."""

    paths: RunPaths
    backend: Backend
    member: Member
    settings: Settings
    health: HealthSettings
    environ: Mapping[str, str]
    benchmark: Sequence[str] = ()
    """The command that measures a node, if the nodes of the job are measured before they join."""

    movable: bool = False
    """Whether the program that started the agent can start it on another node instead."""


def admit(request: AdmissionRequest, report: Callable[[str], None]) -> int | None:
    """Return None once the node may join. Otherwise return the exit status of its agent, at once or at the run's end.

    ``report`` receives lines for the user. An excluded node waits until its incidents are forgiven or have expired, or
    until the run has had no round for so long that it seems to need the node. A movable agent waits only while no round
    runs.
    """
    findings = _check(request, report) if request.health.check else []
    problems = "; ".join(f"{finding.check}: {finding.seen}" for finding in findings)
    slow = _measure(request, problems, report) if request.benchmark else ""
    if slow and not problems:
        problems = f"slow: {slow}"
        report(f"this node is slow: {slow}")
    if problems:
        incident = Incident(request.member.machine, IncidentKind.CHECK, problems, time.time())
        _publish_absence(request, incident, of_machine=any(finding.of_machine for finding in findings))
        report(f"this node does not join (status {EXIT_UNFIT}); once it is repaired: {_forgive_command(request)}")
        return EXIT_UNFIT
    if request.health.exclude and (verdict := _exclusion(request)):
        return _wait_until_admitted(request, verdict, report)
    return None


def _measure(request: AdmissionRequest, problems: str, report: Callable[[str], None]) -> str:
    """Return why this node is slow; empty if it is not. A node with ``problems`` takes part without being measured."""
    from hpcelastic.agent.preflight import AbsentNode, slowness  # here, because most agents do not measure
    from hpcelastic.doctor.benchmark import Measurer, MeasurerProcess

    def measurer() -> Measurer:
        if problems:
            return AbsentNode(f"its node check failed: {problems}")
        environ = {**request.environ, "GLOO_SOCKET_IFNAME": interface_of(request.member.address)}
        return MeasurerProcess(request.benchmark, environ)

    return slowness(request.paths, request.member, request.settings.nodes.min, measurer, report)


def _check(request: AdmissionRequest, report: Callable[[str], None]) -> list[CheckFinding]:
    """Return the problems that the node check has found."""
    findings = check_node(CheckContext(request.paths, request.environ, request.health))
    for finding in findings:
        report(f"{'node check failed: ' if finding.bad else 'warning: '}{finding}")
    return [finding for finding in findings if finding.bad]


def _publish_absence(request: AdmissionRequest, incident: Incident | None, *, of_machine: bool = False) -> None:
    """Publish in the run's directory that this node does not join, and why, so that no other node waits for it.

    An incident that is ``of_machine`` concerns other runs too.
    """

    def publish() -> None:
        if incident:
            record_incident(request.paths, request.health, incident, of_machine=of_machine)
        # Under a name of its own: a node that has left never returns, and this node may still join.
        away = replace(request.member, node=f"{request.member.node}-away", node_state=NodeState.LEFT)
        request.backend.lease(away.node).renew(away)

    with contextlib.suppress(StoreError, OSError):  # the other nodes will notice by themselves, later
        bounded(publish, _PUBLISH_TIMEOUT, str(request.paths.root))


def _forgive_command(request: AdmissionRequest) -> str:
    return f"hpcelastic forgive {request.paths.root} {request.member.machine}"


def _exclusion(request: AdmissionRequest) -> NodeVerdict | None:
    """Return the verdict that excludes this node; None if it is not excluded."""
    machine = request.member.machine
    verdict = node_verdicts(request.paths, request.health, machine).get(machine)
    return verdict if verdict is not None and verdict.out else None


def _wait_until_admitted(request: AdmissionRequest, verdict: NodeVerdict, report: Callable[[str], None]) -> int | None:
    """Wait until the node may join, or the run has ended; see `admit`."""
    report(f"this node had problems recently: {'; '.join(verdict.reasons[:3])}")
    report(f"it is excluded for {format_duration(verdict.back_in)}; to admit it now: {_forgive_command(request)}")
    _publish_absence(request, None)
    idle_timeout = min(_IDLE_RUN_TIMEOUT, request.settings.rendezvous.join_timeout / 2)
    idle_since: float | None = None
    with _exit_on_signals():
        while True:
            time.sleep(max(_POLL_INTERVAL, request.settings.rendezvous.poll))
            try:
                state, exclusion = read_state(request.backend), _exclusion(request)
            except StoreError:
                continue  # the run's agents report the error
            if state.phase.final:
                return _exit_status(state)
            if exclusion is None:
                report("this node is admitted again")
                return None
            if request.movable and state.phase is Phase.RUNNING:
                return EXIT_UNFIT
            now = time.monotonic()
            idle_since = None if state.phase is Phase.RUNNING else idle_since or now
            if idle_since is not None and now - idle_since >= idle_timeout:
                report(f"no round for {idle_timeout:g} s: this node is admitted although it had problems recently")
                return None


def _exit_status(state: State) -> int:
    print(f"hpcelastic: the run has {state.phase.value}: {state.reason}", file=sys.stderr)
    return 0 if state.phase is Phase.SUCCEEDED else 1


@contextlib.contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGINT end this process within the block, despite other handlers, and ignore user signals."""

    def end(signum: int, _frame: object) -> None:
        sys.exit(128 + signum)

    handlers: dict[int, Handler] = dict.fromkeys((signal.SIGTERM, signal.SIGINT), end)
    handlers |= dict.fromkeys((signal.SIGUSR1, signal.SIGUSR2), signal.SIG_IGN)
    with signal_handlers(handlers):
        yield
