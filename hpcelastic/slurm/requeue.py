"""Requeue of a job whose agents have left a run that is not over.

One of the job's own agents requests the requeue, once all of them have stopped their workers. The agent that resolved
the signal goes first. If it does not request the requeue, the others follow one by one. Each incarnation of a job is
requeued by one agent: an exclusive creation claims the requeue, and the created record is the job's history. Before an
agent requests the requeue from SLURM, it reads the job's restart count. That count grows with every requeue, including
those by SLURM itself and by another agent whose claim has timed out.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hpcelastic.agent.batch_system import USER_SIGNALS
from hpcelastic.backends.backend import AnyObserver, Backend
from hpcelastic.errors import SlurmError, StoreError
from hpcelastic.protocol.codec import DecodeError, decode, encode
from hpcelastic.protocol.state import Member, NodeState, Notice
from hpcelastic.rendezvous.run import close_run, read_state
from hpcelastic.slurm import scheduler
from hpcelastic.slurm.environment import SlurmTask
from hpcelastic.slurm.signal_resolution import JobInfo
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths

_POLL_INTERVAL = 0.3
_TURN_DELAY = 5.0
"""Seconds after which the next agent of a job requeues it, if the previous agent has not."""

_END_TIMEOUT = 60.0
"""Seconds that an agent waits for SLURM to end it, after it has requested the requeue."""

_CLAIM_TIMEOUT = 15.0
"""Seconds after which another agent that has claimed the requeue is considered dead."""

_BATCH_SCRIPT_TIMEOUT = 10.0
"""Seconds that a batch script may take to end after SIGTERM. One that handles the signal does not end while its step
runs."""

_QUERY_INTERVAL = 1.0
"""Seconds from one query to SLURM to the next, unless SLURM ends our step in between."""


@dataclass(frozen=True)
class Requeue:
    """A requeue of a job by one of its own agents."""

    job: str
    restart: int
    reason: str
    elapsed: float
    """Seconds that this incarnation of the job ran."""

    progress: int | None = None
    """The highest step that was published by then, if it is known."""

    by_limit: bool = False
    """Whether the reason was the time limit, not other jobs."""

    node: str = ""
    """The node of the agent that requeued the job. It makes the records of two agents differ: an agent that finds a
    record equal to its own takes the claim for its own."""


@dataclass(frozen=True)
class Limits:
    """How often a job may be requeued, and how long it may take in all."""

    max_requeues: int
    total_time: float
    """Seconds; infinity where there is no end."""


def refusal(records: Iterable[Requeue], new: Requeue, limits: Limits) -> str | None:
    """Return why ``new`` must not be done after the requeues in ``records``; None if it may. Pure."""
    earlier = [each for each in records if each.job == new.job and each.restart < new.restart]
    earlier.sort(key=lambda each: each.restart)
    if len(earlier) >= limits.max_requeues:
        return f"the job was requeued {len(earlier)} times (slurm.max_requeues is {limits.max_requeues})"
    if not new.by_limit:
        return None
    total = sum(each.elapsed for each in earlier) + new.elapsed
    if total >= limits.total_time:
        return f"the job has taken {total:.0f} s (run.total_time is {limits.total_time:.0f} s)"
    at_limit = [each for each in earlier if each.by_limit]
    if at_limit and new.progress is not None and new.progress == at_limit[-1].progress:
        return f"no progress from one time limit to the next: step {new.progress} both times; see the run's logs"
    return None


@dataclass(frozen=True)
class DepartedAgent:
    """An agent that has left its run."""

    paths: RunPaths
    backend: Backend
    task: SlurmTask
    member: Member
    notice: Notice
    """Why it left, and the seconds that were left for that."""

    elapsed: float
    """Seconds that its job has run."""

    limits: Limits
    report: Callable[[str], None]
    end_signals: list[int] = field(default_factory=list)
    """Received signals by which SLURM ends us, once it has been asked to requeue the job."""


def requeue_if_needed(agent: DepartedAgent) -> None:
    """Requeue the job of ``agent`` if that is requested, unless another agent does so. Return when all is done."""
    for signum in USER_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)  # the agent has resolved such a signal already
    signal.signal(signal.SIGTERM, lambda signum, _: agent.end_signals.append(signum))
    try:
        _handle_requests(agent)
    except StoreError as error:
        agent.report(f"{error}; {_how_to_resume(agent)}")
        if agent.notice.requeue not in ("", "never"):  # SLURM refuses the request of a second agent
            _requeue(agent)


def _handle_requests(agent: DepartedAgent) -> None:
    requests = [agent.notice, *(m.leaving for m in _other_agents(agent) if m.leaving is not None)]
    request = next((notice for notice in requests if notice.requeue), None) or _relocation_request(agent)
    if request is None or request.requeue == "never":
        if agent.notice.requeue == "never":
            _forbid_requeue(agent)
        if not _removed_by_user(agent):
            agent.report(f"job {agent.task.name} is not started again; {_how_to_resume(agent)}")
    elif request.requeue == "unknown":
        agent.report(f"{request.reason}: left to the batch script, which requeues the job if SLURM preempts it")
        files.make_directory(agent.paths.slurm, within=agent.paths.root)
        files.publish(_request_file(agent), b"unknown\n")
    else:
        _requeue_unless_refused(agent, request)


def _requeue_unless_refused(agent: DepartedAgent, request: Notice) -> None:
    """Requeue our job as ``request`` says, unless there is a reason not to, or another agent does so."""
    _await_other_agents(agent, 0.0 if agent.notice.requeue else _TURN_DELAY * (1 + min(agent.task.node_id, 5)))
    record = _record(agent, request)
    files.make_directory(agent.paths.requeues, within=agent.paths.root)
    why_not = None if _claimed(agent) else refusal(_recorded_requeues(agent.paths), record, agent.limits)
    if why_not is not None:
        agent.report(f"not requeued: {why_not}")
        if request.requeue == "preemption":
            _forbid_requeue(agent)
        if not _other_jobs_take_part(agent):
            close_run(agent.backend, agent.member.node, why_not)
    elif files.publish_new(agent.paths.requeue(record.job, record.restart), files.to_json(encode(record))):
        _requeue(agent)
    else:
        _wait_for_slurm_to_end_us(agent, _CLAIM_TIMEOUT)
        if not agent.end_signals and not _request_file_exists(agent):
            _requeue(agent)


def _removed_by_user(agent: DepartedAgent) -> bool:
    """Return whether a user wants the run to continue without this node, so that nothing is to be done."""
    state = read_state(agent.backend)
    return state.drains(agent.member) or state.is_surplus(agent.member.node)


def _how_to_resume(agent: DepartedAgent) -> str:
    return f"if no other job continues the run, submit it again with --resume ({agent.paths.root})"


def _relocation_request(agent: DepartedAgent) -> Notice | None:
    """Return the request to start a job of one node again on another node: SLURM takes this one out of service."""
    host = agent.member.machine
    try:
        drains = agent.task.nodes == 1 and read_state(agent.backend).drains(agent.member)
        drained = drains and scheduler.draining([host])
    except SlurmError:
        drained = {}
    return Notice(f"SLURM drains {host}", 0.0, requeue="preemption") if drained else None


def _record(agent: DepartedAgent, request: Notice) -> Requeue:
    highest = max(lease.member.progress for lease in agent.backend.leases().values())
    progress = None if highest < 0 else highest
    task, by_limit = agent.task, request.requeue == "limit"
    return Requeue(task.job_id, task.restart, request.reason, agent.elapsed, progress, by_limit, agent.member.node)


def _other_jobs_take_part(agent: DepartedAgent) -> bool:
    """Return whether other jobs take part in the run, which may continue without ours."""
    members, leases = read_state(agent.backend).ranks, agent.backend.leases()
    return any(leases[node].member.job != agent.member.job for node in members.keys() & leases.keys())


def _requeue(agent: DepartedAgent) -> None:
    job = agent.task.name
    agent.end_signals.clear()  # they were warnings
    agent.report(
        f"requeueing job {job}: {agent.notice.reason}; "
        "SLURM starts it again after AuthInfo's cred_expire, by default 120 s"
    )
    try:
        _request_requeue(agent)
    except SlurmError as error:
        # Its batch script runs outside of any container and perhaps on another node, and may be able to requeue it.
        agent.report(f"{error}; left to the batch script")
        with contextlib.suppress(StoreError):
            files.publish(_request_file(agent), b"requeue\n")


def _forbid_requeue(agent: DepartedAgent) -> None:
    """Forbid SLURM to requeue our job. Since 24.05 it does so if the job ends in a preemption's grace period."""
    try:
        scheduler.forbid_requeue(agent.task.name)
    except SlurmError as error:
        agent.report(f"{error}; SLURM may start job {agent.task.name} again, which its user does not want")


def _request_requeue(agent: DepartedAgent) -> None:
    """Request the requeue of our job, unless SLURM has requeued it already, and wait until it ends. Raises SlurmError.

    Since 24.05, SLURM requeues a job whose batch script ends during the grace period of a preemption. A request in that
    period then makes it requeue the job twice: now, and when its next incarnation has ended. Before 24.05, the job
    counts as ended. So the batch script is ended first, and the job's restart count then says whether SLURM has
    requeued it. Meanwhile SLURM ends our step, which takes it up to ``KillWait``.
    """
    job = agent.task.name
    info = scheduler.job_info(job)
    if info.preempted and info.running and info.restarts == agent.task.restart:
        info = _end_batch_script(agent, info)
    if info.restarts == agent.task.restart:
        try:
            scheduler.requeue_job(job)
        except SlurmError:  # SLURM ends scontrol along with our step, perhaps before it has read the answer
            if scheduler.job_info(job).restarts == agent.task.restart:
                raise
    elif info.held:
        scheduler.release_job(job)
    if info.running:  # else SLURM ends the job already
        _wait_for_slurm_to_end_us(agent, _END_TIMEOUT)


def _end_batch_script(agent: DepartedAgent, info: JobInfo) -> JobInfo:
    """End the batch script of our job and return the job's information once SLURM has noticed that."""
    job, deadline = agent.task.name, time.monotonic() + _BATCH_SCRIPT_TIMEOUT
    with contextlib.suppress(SlurmError):
        scheduler.end_batch_script(job)
    while info.running and time.monotonic() < deadline:
        _wait_for_slurm_to_end_us(agent, _QUERY_INTERVAL)
        agent.end_signals.clear()
        with contextlib.suppress(SlurmError):  # the controller may be slow, and must be asked for the requeue anyway
            info = scheduler.job_info(job)
    return info


def _wait_for_slurm_to_end_us(agent: DepartedAgent, seconds: float) -> None:
    """Wait for SLURM to end us: a job whose tasks have all ended counts as completed, and is not requeued."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not agent.end_signals and not _request_file_exists(agent):
        time.sleep(_POLL_INTERVAL)


def _request_file(agent: DepartedAgent) -> Path:
    return agent.paths.requeue_request(agent.task.job_id, agent.task.restart)


def _request_file_exists(agent: DepartedAgent) -> bool:
    try:
        return _request_file(agent).name in files.names(agent.paths.slurm)
    except StoreError:
        return False


def _await_other_agents(agent: DepartedAgent, delay: float) -> None:
    """Wait at least ``delay`` seconds, and until no other agent of our job has workers or their time is over.

    Return as soon as an agent has claimed the requeue.
    """
    start = time.monotonic()
    observer = agent.backend.observer(read_state(agent.backend).settings.rendezvous.expiry, time.monotonic)
    while not _claimed(agent):
        passed = time.monotonic() - start
        if passed >= delay and (passed >= agent.notice.seconds or not _others_have_workers(agent, observer)):
            return
        time.sleep(_POLL_INTERVAL)


def _claimed(agent: DepartedAgent) -> bool:
    """Return whether an agent of our job has decided to requeue it."""
    return agent.paths.requeue(agent.task.job_id, agent.task.restart).name in files.names(agent.paths.requeues)


def _others_have_workers(agent: DepartedAgent, observer: AnyObserver) -> bool:
    members = read_state(agent.backend).ranks
    alive = [seen.member for seen in observer.observe(members).values() if seen.alive and seen.member]
    return any(m.node_state is NodeState.RUNNING and m.node in members for m in _others_of_our_job(agent, alive))


def _other_agents(agent: DepartedAgent) -> list[Member]:
    """Return the members of the other agents of our job's incarnation."""
    return _others_of_our_job(agent, [lease.member for lease in agent.backend.leases().values()])


def _others_of_our_job(agent: DepartedAgent, members: Iterable[Member]) -> list[Member]:
    return [m for m in members if m.job == agent.member.job and m.node != agent.member.node]


def _recorded_requeues(paths: RunPaths) -> list[Requeue]:
    found = []
    for name in files.names(paths.requeues):
        try:
            found.append(decode(Requeue, files.read_json(paths.requeues / name)))
        except DecodeError:
            continue  # written by a newer version
    return found
