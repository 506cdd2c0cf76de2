"""The consequences of faulty hardware: incidents are recorded, and the node leaves if the others are enough."""

from collections.abc import Callable

from hpcelastic.agent.incident_recorder import IncidentRecorder
from hpcelastic.agent.session import Session
from hpcelastic.health.hardware import HardwareFinding, HardwareSeverity
from hpcelastic.health.incidents import IncidentKind
from hpcelastic.protocol.events import HardwareFound
from hpcelastic.protocol.state import Failure, Notice


class FaultyNode:
    """Records faults of this node's hardware. ``report`` is called with lines for people."""

    def __init__(self, session: Session, recorder: IncidentRecorder, report: Callable[[str], None]) -> None:
        self._session, self._recorder, self._report = session, recorder, report
        self.leaves = False
        """Whether the node leaves because its hardware is faulty."""

    def worker_failed(self, failure: Failure) -> None:
        """A worker of this node has failed."""
        if self._recorder.record_failure(failure) is IncidentKind.HARDWARE:
            self._leave(f"broken: {failure.message}", 0.0, polls=False)

    def found(self, finding: HardwareFinding, polls: bool) -> None:
        """The hardware has changed for the worse. ``polls`` tells whether the workers poll for requests to stop."""
        self._session.log(HardwareFound(check=finding.check, seen=finding.seen, severity=finding.severity.value))
        self._report(f"{finding}")
        if finding.severity is HardwareSeverity.NOTE or not self._recorder.record_hardware(f"{finding}"):
            return
        grace = self._session.spec.settings.rendezvous.checkpoint_grace
        at_step = finding.severity is HardwareSeverity.LEAVE_AT_STEP
        self._leave(f"faulty: {finding}", grace if at_step else 0.0, polls=polls and at_step)

    def _leave(self, reason: str, seconds: float, *, polls: bool) -> None:
        session = self._session
        if not session.state_machine.leaving and self._recorder.enough_others(session.spec.settings.nodes.min):
            self._report("this machine is faulty: this node leaves, the others continue")
            self.leaves = True
            session.leave(Notice(reason, seconds), polls=polls)
