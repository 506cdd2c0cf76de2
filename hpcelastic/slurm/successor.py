"""What becomes of a job whose agents have left a run that is not over: SLURM is asked to start it again, or not.

A job that was warned is requeued by one of its own agents, once all of them have stopped their workers. Who was asked
first what the warning means goes first; if it does not, the others follow, one by one. Each incarnation of a job is
requeued by one: that is claimed by an exclusive creation, and its record is the job's history. Before an agent asks
SLURM, it looks at the job's restart count, which grows whoever has made SLURM requeue the job: another agent whose end
is doubted, or SLURM itself.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hpcelastic.agent.surroundings import USER_SIGNALS
from hpcelastic.errors import SlurmError, StoreError
from hpcelastic.protocol.codec import DecodeError, decode, encode
from hpcelastic.protocol.state import Member, Notice, Stand
from hpcelastic.rendezvous.rendezvous import close_run, read_state
from hpcelastic.slurm import scheduler
from hpcelastic.slurm.environment import SlurmTask
from hpcelastic.slurm.warnings import JobInfo
from hpcelastic.store import files
from hpcelastic.store.backend import AnyObserver, backend_of
from hpcelastic.store.paths import RunPaths

_LOOK = 0.3
_TURN = 5.0
"""Seconds after which the next agent of a job requeues it, if the one before has not."""

_LINGER = 60.0
"""Seconds that an agent waits for the end that it has asked SLURM for."""

_DOUBT = 15.0
"""Seconds after which who has claimed to ask for it can't have done so."""

_BATCH_END = 10.0
"""Seconds that a batch script may take to end at SIGTERM. One that handles the signal does not, as long as its step
runs."""

_ASK = 1.0
"""Seconds from one question to SLURM to the next, unless it ends our step in between."""


@dataclass(frozen=True)
class Requeue:
    """A job was requeued by its own agents."""

    job: str
    restart: int
    reason: str
    elapsed: float
    """Seconds that this incarnation of the job ran."""

    progress: int | None = None
    """The furthest step that was published by then, if that is known."""

    by_limit: bool = False
    """It was because of the time limit, not for other jobs."""

    node: str = ""
    """Whose agent did it. No two agents may write the same: whoever finds its own words takes the claim for its own."""


@dataclass(frozen=True)
class Limits:
    """How often and how long a run may go on."""

    max_requeues: int
    total_time: float
    """Seconds; infinity where there is no end."""


def refusal(past: Iterable[Requeue], now: Requeue, limits: Limits) -> str | None:
    """Why the job must not be requeued as ``now`` says; None if it may. Pure."""
    ours = [each for each in past if each.job == now.job and each.restart < now.restart]
    ours.sort(key=lambda each: each.restart)
    if len(ours) >= limits.max_requeues:
        return f"the job was requeued {len(ours)} times (slurm.max_requeues is {limits.max_requeues})"
    if not now.by_limit:
        return None
    total = sum(each.elapsed for each in ours) + now.elapsed
    if total >= limits.total_time:
        return f"the run has taken {total:.0f} s (run.total_time is {limits.total_time:.0f} s)"
    before = [each for each in ours if each.by_limit]
    if before and now.progress is not None and now.progress == before[-1].progress:
        return f"no progress from one time limit to the next: step {now.progress} both times; see its logs"
    return None


@dataclass(frozen=True)
class Left:
    """An agent that has left its run."""

    paths: RunPaths
    task: SlurmTask
    member: Member
    notice: Notice
    """Why, and the seconds that are left for it."""

    elapsed: float
    """Seconds that its job has run."""

    limits: Limits
    report: Callable[[str], None]
    ended: list[int] = field(default_factory=list)
    """Signals by which SLURM, if it has been asked to requeue the job, ends us."""


def see_to_the_job(left: Left) -> None:
    """Requeue our job, if that is wanted and nobody else does. Returns when all is said and done."""
    for signum in USER_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)  # the agent knows by now what such a signal would say
    signal.signal(signal.SIGTERM, lambda signum, _: left.ended.append(signum))
    try:
        _see_to_it(left)
    except StoreError as error:
        left.report(f"{error}; {_how_to_go_on(left)}")
        if left.notice.again not in ("", "never"):  # a second agent that asks for it is told no
            _requeue(left)


def _see_to_it(left: Left) -> None:
    wishes = [left.notice, *(m.leaving for m in _mates(left) if m.leaving is not None)]
    wish = next((notice for notice in wishes if notice.again), None) or _elsewhere(left)
    if wish is None or wish.again == "never":
        if left.notice.again == "never":
            _keep_from_requeue(left)
        if not _dismissed(left):
            left.report(f"job {left.task.name} is not started again; {_how_to_go_on(left)}")
    elif wish.again == "unknown":
        left.report(f"{wish.reason}: left to the batch script, which requeues the job if SLURM preempts it")
        files.make_directory(left.paths.slurm)
        files.publish(_wish(left), b"unknown\n")
    else:
        _start_again(left, wish)


def _start_again(left: Left, wish: Notice) -> None:
    """Requeue our job as ``wish`` says, unless there is a reason not to, or somebody else does."""
    _await_mates(left, 0.0 if left.notice.again else _TURN * (1 + min(left.task.node_id, 5)))
    record = _record(left, wish)
    for directory in (left.paths.slurm, left.paths.requeues):
        files.make_directory(directory)
    why_not = None if _claimed(left) else refusal(_past(left.paths), record, left.limits)
    if why_not is not None:
        left.report(f"not requeued: {why_not}")
        if wish.again == "preemption":
            _keep_from_requeue(left)
        if not _others_serve(left):
            close_run(left.paths, left.member.node, why_not)
    elif files.publish_new(left.paths.requeue(record.job, record.restart), files.to_json(encode(record))):
        _requeue(left)
    else:
        _linger(left, _DOUBT)
        if not left.ended and not _wished(left):
            _requeue(left)


def _dismissed(left: Left) -> bool:
    """Whether a person wants the run to go on without this node, and so nothing is to be done."""
    state = read_state(left.paths)
    return state.drains(left.member) or state.is_surplus(left.member.node)


def _how_to_go_on(left: Left) -> str:
    return f"if no other job goes on with the run, submit it again with --resume ({left.paths.root})"


def _elsewhere(left: Left) -> Notice | None:
    """The wish that a job of one node start again on another: SLURM takes this one out of service."""
    host = left.member.machine
    try:
        drained = left.task.nodes == 1 and read_state(left.paths).drains(left.member) and scheduler.draining([host])
    except SlurmError:
        drained = {}
    return Notice(f"SLURM drains {host}", 0.0, again="preemption") if drained else None


def _record(left: Left, wish: Notice) -> Requeue:
    furthest = max(lease.member.progress for lease in backend_of(left.paths).leases().values())
    progress = None if furthest < 0 else furthest
    task, by_limit = left.task, wish.again == "limit"
    return Requeue(task.job_id, task.restart, wish.reason, left.elapsed, progress, by_limit, left.member.node)


def _others_serve(left: Left) -> bool:
    """Whether other jobs serve the run, which may go on without ours."""
    members = {p.node for p in read_state(left.paths).participants}
    leases = backend_of(left.paths).leases()
    return any(leases[node].member.job != left.member.job for node in members & leases.keys())


def _requeue(left: Left) -> None:
    job = left.task.name
    left.ended.clear()  # those were warnings
    left.report(
        f"requeueing job {job}: {left.notice.reason}; SLURM starts it again after AuthInfo's cred_expire, 120 s"
    )
    try:
        _let_it_be_requeued(left)
    except SlurmError as error:
        # Its batch script, outside of any container and on another node, may be able to.
        left.report(f"{error}; left to the batch script")
        with contextlib.suppress(StoreError):
            files.publish(_wish(left), b"requeue\n")


def _keep_from_requeue(left: Left) -> None:
    """Keep SLURM from requeueing our job, which it does since 24.05 if the job ends in a preemption's grace period."""
    try:
        scheduler.forbid_requeue(left.task.name)
    except SlurmError as error:
        left.report(f"{error}; SLURM may start job {left.task.name} again, which its user does not want")


def _let_it_be_requeued(left: Left) -> None:
    """Request the requeue of our job, unless SLURM has requeued it already, and wait until it ends. Raises SlurmError.

    Since 24.05, SLURM requeues a job whose batch script ends during the grace period of a preemption. A request in that
    period then makes it requeue the job twice: now, and when its next incarnation has ended. Before 24.05, the job
    counts as ended. So the batch script is ended first, and the job's restart count then says whether SLURM has
    requeued it. Meanwhile SLURM ends our step, which takes it up to ``KillWait``.
    """
    job = left.task.name
    info = scheduler.job_info(job)
    if info.preempted and info.runs and info.restarts == left.task.restart:
        info = _end_batch_script(left, info)
    if info.restarts == left.task.restart:
        scheduler.requeue_job(job)
    elif info.held:
        scheduler.release_job(job)
    if info.runs:  # else SLURM ends the job already
        _linger(left, _LINGER)


def _end_batch_script(left: Left, info: JobInfo) -> JobInfo:
    """End the batch script of our job and return how the job stands once SLURM has seen that."""
    job, deadline = left.task.name, time.monotonic() + _BATCH_END
    with contextlib.suppress(SlurmError):
        scheduler.end_batch_script(job)
    while info.runs and time.monotonic() < deadline:
        _linger(left, _ASK)
        left.ended.clear()
        with contextlib.suppress(SlurmError):  # the controller may be slow, and has to be asked for the requeue anyway
            info = scheduler.job_info(job)
    return info


def _linger(left: Left, seconds: float) -> None:
    """Wait for SLURM to end us: a job whose tasks have all ended counts as completed, and is not requeued."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not left.ended and not _wished(left):
        time.sleep(_LOOK)


def _wish(left: Left) -> Path:
    return left.paths.wish(left.task.job_id, left.task.restart)


def _wished(left: Left) -> bool:
    try:
        return _wish(left).name in files.names(left.paths.slurm)
    except StoreError:
        return False


def _await_mates(left: Left, turn: float) -> None:
    """Until no agent of our job has workers, for as long as they were given, nor one of them has had ``turn`` seconds
    to requeue it."""
    start = time.monotonic()
    rendezvous = read_state(left.paths).settings.rendezvous
    observer = backend_of(left.paths).observer(rendezvous.lease + rendezvous.margin, time.monotonic)
    while not _claimed(left):
        passed = time.monotonic() - start
        if passed >= turn and (passed >= left.notice.seconds or not _busy_mates(left, observer)):
            return
        time.sleep(_LOOK)


def _claimed(left: Left) -> bool:
    """Whether one of us has decided that the job is requeued."""
    return left.paths.requeue(left.task.job_id, left.task.restart).name in files.names(left.paths.requeues)


def _busy_mates(left: Left, observer: AnyObserver) -> bool:
    members = {p.node for p in read_state(left.paths).participants}
    alive = [seen.member for seen in observer.observe(members).values() if seen.alive and seen.member]
    return any(m.stand is Stand.RUNNING and m.node in members for m in _of_our_job(left, alive))


def _mates(left: Left) -> list[Member]:
    """The other agents of our job's incarnation."""
    return _of_our_job(left, [lease.member for lease in backend_of(left.paths).leases().values()])


def _of_our_job(left: Left, members: Iterable[Member]) -> list[Member]:
    return [m for m in members if m.job == left.member.job and m.node != left.member.node]


def _past(paths: RunPaths) -> list[Requeue]:
    found = []
    for name in files.names(paths.requeues):
        try:
            found.append(decode(Requeue, files.read_json(paths.requeues / name)))
        except DecodeError:
            continue  # a newer version's
    return found
