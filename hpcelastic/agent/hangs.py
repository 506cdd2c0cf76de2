"""The part of an agent in the examination of a round that makes no progress; see `hpcelastic.protocol.hangs`."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcelastic.agent.native_stacks import TIMEOUT as NATIVE_STACKS_TIMEOUT
from hpcelastic.agent.native_stacks import native_stacks
from hpcelastic.agent.progress import examined_at
from hpcelastic.agent.reachability import unreached
from hpcelastic.agent.session import Session
from hpcelastic.agent.settings import HangSettings
from hpcelastic.agent.stacks import (
    StackCollector,
    WorkersOfRound,
    WorkerStacks,
    describe_stacks,
    held,
    state_letter,
    state_of,
)
from hpcelastic.agent.usage import usage_of
from hpcelastic.agent.watchdog import Overdue, Watchdog
from hpcelastic.agent.worker import Worker
from hpcelastic.errors import StoreError
from hpcelastic.health.hangs import (
    GroupReport,
    HangKind,
    HangReport,
    HangVerdict,
    RankReport,
    cut_between,
    judge,
)
from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.protocol.codec import DecodeError, decode, encode
from hpcelastic.protocol.events import HangExamined, StoreFailed
from hpcelastic.protocol.findings import Hang, HangAction
from hpcelastic.protocol.hangs import conclude, examine
from hpcelastic.protocol.state import Participant, Phase, State, name_of
from hpcelastic.storage import files

_SAMPLES, _SAMPLE_INTERVAL = 3, 0.15
"""Number of stacks of each worker that are compared, and the seconds between them. In all they take longer than a
worker needs to copy the numbers of its collectives."""

_REPORT_TIMEOUT = 5.0
"""Seconds in which the examiner waits for the reports of all nodes."""

_EXAMINATION_TIMEOUT = 15.0
"""Seconds after which an examination that is not concluded is repeated, because its examiner cannot."""

_RECORD_TIMEOUT = 1.0
"""Seconds in which workers copy their flight records, after their stacks were sampled."""

_POLL_INTERVAL = 0.02

_CAUSE_DELAY = 1.0
"""Seconds after a failed collective in which its cause usually ends the round."""

_TOLERANCE = 0.9
"""A worker that others wait for counts as overdue after this part of its limit, because agents check at intervals."""

_COMPILERS = ("/torch/_dynamo/", "/torch/_inductor/", "/triton/")
"""Directories of code that compiles. Nobody announces a compilation that a new shape of the data causes."""


@dataclass(frozen=True)
class _Ending:
    """A round that ends once a thread has written native stacks, but at the latest at ``deadline``."""

    hang: Hang
    thread: threading.Thread
    deadline: float

    def is_due(self, now: float) -> bool:
        return not self.thread.is_alive() or now >= self.deadline


class HangExaminer:
    """Requests examinations, reports on this node's workers, and concludes the examinations that it has requested.

    ``seen`` is the newest examination before the agent started. ``end_round`` is called with a hang of the running
    round whose action ends it, if this node has workers among its ranks, or has examined it.
    """

    def __init__(
        self,
        session: Session,
        settings: HangSettings,
        collector: StackCollector,
        watchdog: Watchdog,
        control_page: ControlPage,
        end_round: Callable[[Hang], None],
    ) -> None:
        self._session, self._settings, self._collector = session, settings, collector
        self._watchdog, self._control_page, self._end_round = watchdog, control_page, end_round
        hang = session.spec.found.state.hang
        self._seen = self._concluded = 0 if hang is None else hang.number
        """The newest examination that this agent has reported to, and the newest whose conclusion it has seen."""

        self._overdue: tuple[Overdue, float] | None = None
        """The reason for this agent's newest request, and the time at which the limit of that worker ends. None if the
        reason was a collective that has failed."""

        self._reporter: threading.Thread | None = None
        """The thread of the newest examination that this agent has reported to."""

        self._failed: tuple[int, float] | None = None
        """A round in which a collective has failed, and the time at which the network is examined."""

        self._ending: _Ending | None = None
        self._next_request, self._delay = 0.0, self._first_delay
        self._reported = False
        """Whether the lack of progress that lasts was reported."""

    @property
    def _first_delay(self) -> float:
        return self._settings.min_limit / 2

    # In the agent's thread

    def check(self, found: WorkersOfRound) -> None:
        """Request an examination if a worker of this node makes no progress."""
        overdue = self._watchdog.check(found)
        now = time.monotonic()
        if self._ending is not None and self._ending.is_due(now):
            hang, self._ending = self._ending.hang, None
            self._end_round(hang)
            return
        if self._failed is not None and now >= self._failed[1]:
            round, self._failed, self._overdue = self._failed[0], None, None
            if found.round == round:
                self._request(round, "a collective has failed, and no process has ended")
            return
        if overdue is None:
            if all(not self._watchdog.progress(worker).is_overdue for worker in found.workers):
                self._reported, self._delay = False, self._first_delay
            return
        if self._reported or now < self._next_request or (self._reporter is not None and self._reporter.is_alive()):
            return
        self._overdue = overdue, now + overdue.left
        self._next_request, self._delay = now + self._delay, min(2 * self._delay, self._settings.without_marks)
        self._request(overdue.round, f"rank {overdue.rank} has made no progress for {overdue.limit:.0f} s")

    def collective_failed(self, round: int) -> None:
        """A collective of a worker of this node has failed. If the round does not end soon, the network is examined."""
        if self._settings.action != "ignore":
            self._failed = round, time.monotonic() + _CAUSE_DELAY

    def seconds_left(self) -> float | None:
        """Return the seconds until the next check; None if nothing is due."""
        due = [self._watchdog.seconds_left(), None if self._failed is None else self._failed[1] - time.monotonic()]
        due.append(None if self._ending is None else _POLL_INTERVAL)
        return min((max(0.0, seconds) for seconds in due if seconds is not None), default=None)

    def _request(self, round: int, why: str) -> None:
        member, seen, reason = self._session.member, self._seen, f"{self._session.member.name}: {why}"
        self._session.call_rendezvous(
            lambda rendezvous: rendezvous.change(lambda state: examine(state, round, member.node, reason, seen))
        )

    def observe(self, state: State, workers: Callable[[], WorkersOfRound]) -> None:
        """Take part in the newest examination. Returns at once."""
        hang = state.hang
        if hang is None or (hang.number <= self._seen and (not hang.action or hang.number <= self._concluded)):
            return
        found = workers()
        if found.round == hang.round:
            if hang.action:
                self._conclude(hang, found)
            elif state.phase is Phase.RUNNING:
                self._begin_report(hang, state.participants, found)
        self._seen = hang.number
        if hang.action:
            self._concluded = hang.number

    def _begin_report(self, hang: Hang, participants: Sequence[Participant], found: WorkersOfRound) -> None:
        self._next_request = time.monotonic() + _EXAMINATION_TIMEOUT
        stack = contextlib.ExitStack()
        pidfds = stack.enter_context(held(found.workers))  # here, because this thread reaps the workers
        first = [self._first_report(worker) for worker in pidfds]
        self._watchdog.request_records(pidfds, hang.number)
        arguments = (hang, participants, pidfds, first, stack)
        self._reporter = threading.Thread(target=self._report, args=arguments, name="hang", daemon=True)
        self._reporter.start()

    def _conclude(self, hang: Hang, found: WorkersOfRound) -> None:
        self._next_request = time.monotonic() + self._delay
        self._reported |= hang.action != "none"  # a round that ends needs no other examination
        ours = hang.examiner == self._session.member.node
        if hang.action == "none":
            return
        if ours:
            self._session.report(f"no progress in round {hang.round}: {hang.verdict}{_consequence(hang)}")
        ends = hang.action in ("restart", "exclude")
        # The others continue in the next round. They must not be stopped.
        traced = [worker for worker in found.workers if not (ends and hang.ranks) or worker.rank in hang.ranks]
        thread = threading.Thread(target=self._write_native_stacks, args=(hang, traced), name="native", daemon=True)
        thread.start()
        if ends and (traced if hang.ranks else ours):
            self._ending = _Ending(hang, thread, time.monotonic() + NATIVE_STACKS_TIMEOUT)

    def _first_report(self, worker: Worker) -> RankReport:
        """Return what is known of a worker without its stacks."""
        progress, pid = self._watchdog.progress(worker), worker.process.pid
        limit, letter = progress.limit, state_letter(pid)
        return RankReport(
            worker.rank,
            self._session.member.name,
            state_of(pid),
            stopped=letter == "T",
            blocked=letter == "D",
            groups=self._groups(worker),
            works=limit is None or progress.still < _TOLERANCE * limit or letter == "t",  # a user debugs it
            still=progress.still,
        )

    def _groups(self, worker: Worker) -> tuple[GroupReport, ...]:
        return tuple(GroupReport(*count) for count in self._watchdog.collectives(worker))

    def _newest_mark(self, round: int, worker: Worker) -> int:
        mark = self._control_page.marks(worker.local_rank).newest(round)
        return 0 if mark is None else mark.number

    # In threads of their own

    def _report(
        self,
        hang: Hang,
        participants: Sequence[Participant],
        pidfds: Mapping[Worker, int],
        first: Sequence[RankReport],
        stack: contextlib.ExitStack,
    ) -> None:
        """Write the report of this node. If it is the examiner, await those of the others, and conclude."""
        paths, member, lost = self._session.spec.paths, self._session.member, list[str]()
        overdue, limit_ends = self._overdue or (None, 0.0)  # a later request may replace it
        until = limit_ends if hang.examiner == member.node else 0.0
        peers = [peer for peer in participants if peer.node != member.node]
        test = threading.Thread(target=lambda: lost.extend(unreached(peers, member.address)), daemon=True)
        test.start()
        with stack:
            reports, text = self._sample(hang.round, pidfds, first, until)
        test.join()
        name = name_of(member.node)
        report = HangReport(name, tuple(reports), tuple(lost))
        with _errors_reported(self._session, hang):
            files.make_directory(paths.hang(hang.round, hang.number), within=paths.root)
            for kind, data in (("txt", text.encode()), ("json", files.to_json(encode(report)))):
                files.publish(paths.hang_report(hang.round, hang.number, name, kind), data)
            if hang.examiner == self._session.member.node:
                self._examine(participants, hang, overdue)
        with _errors_reported(self._session, hang):
            self._write_records(hang, pidfds)

    def _sample(
        self, round: int, pidfds: Mapping[Worker, int], first: Sequence[RankReport], until: float
    ) -> tuple[list[RankReport], str]:
        """Return the complete reports, not before ``until``, and the text for a file with the stacks."""
        began, before = time.monotonic(), [usage_of(worker.process.pid) for worker in pidfds]
        marks = [self._newest_mark(round, worker) for worker in pidfds]
        samples = [self._collector.collect(pidfds)]
        while len(samples) < _SAMPLES:
            time.sleep(_SAMPLE_INTERVAL)
            samples.append(self._collector.collect(pidfds))
        time.sleep(max(0.0, until - time.monotonic()))
        after, seconds = [usage_of(worker.process.pid) for worker in pidfds], time.monotonic() - began
        reports = []
        for worker, report, old, new, mark in zip(pidfds, first, before, after, marks, strict=True):
            groups = self._groups(worker)
            progressed = groups != report.groups or self._newest_mark(round, worker) != mark
            report = replace(report, groups=groups, progressed=progressed)
            busy = new.works_since(old, seconds)
            reports.append(self._complete(report, [each[worker] for each in samples], busy, new.children))
        return reports, describe_stacks(samples[-1], round, self._control_page)

    def _write_records(self, hang: Hang, workers: Iterable[Worker]) -> None:
        """Write the flight records of the workers that answer in time."""
        deadline, records = time.monotonic() + _RECORD_TIMEOUT, dict[Worker, bytes | None]()
        with contextlib.suppress(OSError):  # the agent ends
            while None in (records := {w: self._watchdog.record(w, hang.number) for w in workers}).values():
                if time.monotonic() >= deadline:
                    break
                time.sleep(_POLL_INTERVAL)
        for worker, record in records.items():
            if record:
                name = f"flight-record-{worker.rank:05d}"
                path = self._session.spec.paths.hang_report(hang.round, hang.number, name, "json")
                files.publish(path, record)

    def _write_native_stacks(self, hang: Hang, workers: Iterable[Worker]) -> None:
        """Write the native stacks of workers that are not blocked or stopped; those cannot be traced."""
        pids = {worker.process.pid: worker.rank for worker in workers}
        for pid, text in native_stacks(pid for pid in pids if state_letter(pid) in ("R", "S")).items():
            path = self._session.spec.paths.hang_report(
                hang.round, hang.number, f"native-stacks-{pids[pid]:05d}", "txt"
            )
            with contextlib.suppress(StoreError):  # a directory that fails is reported elsewhere
                files.publish(path, text.encode())

    def _complete(self, report: RankReport, stacks: Sequence[WorkerStacks], busy: bool, children: int) -> RankReport:
        frames = stacks[-1].main
        moves = len({each.main for each in stacks}) > 1
        busy &= report.still < examined_at(self._settings.without_marks)  # later, it is taken for a loop without an end
        compiles = report.still < self._settings.phase and any(part in frame for frame in frames for part in _COMPILERS)
        return replace(report, frames=frames, works=report.works or moves or busy or compiles, children=children)

    def _examine(self, participants: Sequence[Participant], hang: Hang, overdue: Overdue | None) -> None:
        nodes, missing = self._await_reports(participants, hang)
        reports = [report for node in nodes for report in node.ranks]
        has_steps = overdue is not None and overdue.has_steps
        failed = HangVerdict(HangKind.UNKNOWN, (), False, "a collective has failed")
        verdict = cut_between(nodes, failed if overdue is None else judge(reports, missing))
        if overdue is not None and not has_steps and any(report.works for report in reports):
            working = next(report for report in reports if report.works)
            verdict = HangVerdict(HangKind.PROGRESS, (working.rank,), False, f"rank {working.rank} still works")
        examined = overdue is not None or verdict.kind is HangKind.CUT
        action = self._action(verdict, has_steps) if examined else "none"
        directory = self._session.spec.paths.hang(hang.round, hang.number)
        files.publish(directory / "verdict.txt", f"{verdict.kind.value}: {verdict.text}\n".encode())
        self._session.log(
            HangExamined(
                round=hang.round,
                number=hang.number,
                verdict=verdict.kind.value,
                ranks=verdict.ranks,
                certain=verdict.certain,
                text=verdict.text,
                action=action,
                path=str(directory),
            )
        )
        self._session.call_rendezvous(
            lambda rendezvous: rendezvous.change(
                lambda state: conclude(state, hang.number, verdict.text, verdict.ranks, action)
            )
        )

    def _await_reports(self, participants: Sequence[Participant], hang: Hang) -> tuple[list[HangReport], list[str]]:
        """Return the reports of the nodes in the order of ranks, and the nodes that have not reported in time."""
        paths, found = self._session.spec.paths, dict[str, HangReport]()
        names = missing = [participant.name for participant in participants]
        deadline = time.monotonic() + _REPORT_TIMEOUT
        while missing and time.monotonic() < deadline:
            present = {*files.names(paths.hang(hang.round, hang.number))}
            for name in missing:
                path = paths.hang_report(hang.round, hang.number, name, "json")
                if path.name in present and (report := _read_report(path, name)) is not None:
                    found[name] = report
            missing = [name for name in names if name not in found]
            if missing:
                time.sleep(_POLL_INTERVAL)
        return [found[name] for name in names if name in found], missing

    def _action(self, verdict: HangVerdict, has_steps: bool) -> HangAction:
        if verdict.kind is HangKind.PROGRESS:
            return "none"
        action = self._settings.action
        if action in ("auto", "restart") and verdict.kind is HangKind.CUT:
            return "exclude"  # the next round would hang, too
        if action == "auto":
            return "restart" if has_steps else "report"
        return "none" if action == "ignore" else action


@contextlib.contextmanager
def _errors_reported(session: Session, hang: Hang) -> Iterator[None]:
    """Report an error of a part of an examination, which must not prevent the next part."""
    try:
        yield
    except StoreError as error:
        session.log(StoreFailed(error=str(error)))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        session.report(f"the lack of progress in round {hang.round} cannot be examined: {text}")


def _read_report(path: Path, name: str) -> HangReport | None:
    """Return the report of a node; None if it cannot be read yet."""
    try:
        data = files.read_json(path)
        return None if data is None else decode(HangReport, data)
    except DecodeError:
        return HangReport(name, ())  # of another version


def _consequence(hang: Hang) -> str:
    match hang.action:
        case "restart":
            return "; the round ends, and these processes are replaced" if hang.ranks else "; the round ends"
        case "exclude":
            return "; the round ends, and continues without these nodes"
        case _:
            return "; the round continues (hangs.action)"
