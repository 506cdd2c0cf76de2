"""The entry point inside a job: what runs on a node, whether SLURM, `hpcelastic run` or a person started it.

A composition root: the place where an agent's environment is read.
"""

import contextlib
import math
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from hpcelastic.agent.address import own_address
from hpcelastic.agent.agent import Agent, AgentSpec, Observe
from hpcelastic.agent.bell import bell_from_outside
from hpcelastic.agent.environment import ROLE
from hpcelastic.agent.fitness import UNFIT, Candidate, refusal
from hpcelastic.agent.node import Place, count_gpus, dead_predecessors, new_member, overcommitment
from hpcelastic.agent.numa import processors
from hpcelastic.agent.outlet import free_output
from hpcelastic.agent.report import print_failures, reporter
from hpcelastic.agent.settings import AgentSettings, WorkerSettings
from hpcelastic.agent.tenancy import places, settled
from hpcelastic.config.codec import decode
from hpcelastic.config.slurm import SlurmSettings, minutes
from hpcelastic.doctor.ground import check_race, established, remarks
from hpcelastic.doctor.verdict import Verdict, advise, raised
from hpcelastic.errors import ConfigError, HpcElasticError, InternalError, NameTaken, RendezvousTimeout, RunFailed
from hpcelastic.health.memory import left_out
from hpcelastic.health.settings import HealthSettings
from hpcelastic.protocol.decide import checkpoint
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Member, Phase, State
from hpcelastic.rendezvous.rendezvous import open_run, read_state, steer_run
from hpcelastic.slurm.aftermath import Aftermath
from hpcelastic.slurm.elsewhere import may_start_elsewhere, start_elsewhere
from hpcelastic.slurm.environment import SlurmTask, place_of, slurm_task
from hpcelastic.slurm.restart import FIRST, Restart, start_agent
from hpcelastic.slurm.serving import server_of
from hpcelastic.slurm.successor import Left, Limits, see_to_the_job
from hpcelastic.slurm.surroundings import SlurmSurroundings
from hpcelastic.slurm.warnings import Policy
from hpcelastic.slurm.watch import Watch, Watched
from hpcelastic.store import files
from hpcelastic.store.backend import choose_backend, close_backend
from hpcelastic.store.locks import LockKind
from hpcelastic.store.paths import RunPaths, safe_name


@dataclass(frozen=True)
class Task:
    """What an agent takes part in."""

    paths: RunPaths
    run_id: str
    settings: Settings
    agent: AgentSettings
    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    total_time: str | None = None
    """How long the run may go on, beyond the time limit of a job; None if it ends with that."""

    is_host: bool | None = None
    """Whether this agent serves the store of a run in ``c10d``; None if that is to be found out."""


def run_agent(run_directory: str) -> None:
    """Take part, on this node, in the run set up in ``run_directory``; what submitit calls in every task.

    Raises SystemExit where the agent did not end well: whatever is returned, submitit calls a success.
    """
    task = task_of_run(run_directory)
    restart = start_agent() if slurm_task(os.environ) else FIRST
    with free_output():
        try:
            status = take_part(task, place_here(), restart=restart)
        except InternalError as error:
            print(f"hpcelastic agent: {error}", file=sys.stderr)
            status = error.exit_code
    if status:
        sys.exit(status)


def task_of_run(directory: str) -> Task:
    """The task that the run's own config.json describes."""
    paths = RunPaths(Path(directory).absolute())
    data = files.read_json(paths.config)
    if data is None:
        raise ConfigError(f"{paths.config}: no such file; name a directory made by hpcelastic submit or run")
    config = decode(data)
    return Task(
        paths,
        str(config.run.name),
        config.protocol_settings,
        config.agent_settings,
        config.slurm,
        config.run.total_time,
    )


def place_here() -> Place:
    """Where this process runs: as SLURM says, else by the host's name."""
    task = slurm_task(os.environ)
    return place_of(task) if task else Place(os.uname().nodename.partition(".")[0])


@dataclass(frozen=True)
class Entered:
    """A node that may take part in a run, and has said nothing there yet."""

    member: Member
    settings: Settings
    """The run's, with the times that its filesystem needs."""

    lock: LockKind
    state: State
    """The run as the node found it."""

    report: Callable[[str], None]
    """Tells a person a line."""


@contextlib.contextmanager
def entered(
    paths: RunPaths,
    run_id: str,
    settings: Settings,
    place: Place,
    interface: str | None,
    workers: int,
    role: str = "",
    is_host: bool | None = None,
) -> Iterator[Entered]:
    """Set up the run in ``paths`` unless somebody has, and enter it at ``place``, with a name of its own for as long.

    Raises ConfigError where the directory cannot be safe, or holds another run; StoreError where it does not work.
    """
    place = replace(place, address=place.address or own_address(interface, place.launcher))
    for directory in (paths.root, paths.register, paths.leases, paths.incidents):
        files.make_directory(directory)
    report = reporter(safe_name(place.name))
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(server_of(paths, settings, place, report))
        choose_backend(paths, run_id, settings.rendezvous, address, is_host)
        stack.callback(close_backend, paths)
        place = stack.enter_context(settled(paths, place))
        verdict = established(paths)
        report = reporter(safe_name(place.name))
        settings = _advised(paths, settings, verdict, place, report)
        member = new_member(place, workers, dead_predecessors(paths, place), role)
        if settings.nodes.wanted > 1:
            check_race(paths, member.node)
        yield Entered(member, settings, verdict.lock, open_run(paths, run_id, settings, member.node), report)


def take_part(task: Task, place: Place, observe: Observe | None = None, restart: Restart = FIRST) -> int:
    """Run the agent at ``place`` until the run ends; the exit status. Raises what `Agent.run` raises.

    ``observe`` is told what happens; see `Agent`. ``restart`` says whether an agent has died here before.
    """
    interface = task.agent.network.interface
    count = _workers(task.agent.workers, os.environ)
    cpus = processors(task.agent.workers.numa, count, os.environ, os.sched_getaffinity(0))
    role = "" if task.agent.workers.role == ROLE else task.agent.workers.role
    start = time.monotonic()
    with entered(task.paths, task.run_id, task.settings, place, interface, len(cpus), role, task.is_host) as here:
        for line in overcommitment(count, count_gpus(os.environ), len(os.sched_getaffinity(0))):
            here.report(line)
        if _on_one_machine(here.member.address):  # none is better than another
            health = HealthSettings(check=False, exclude=False)
            task = replace(task, agent=replace(task.agent, health=health))
        return _take_part(replace(task, settings=here.settings), here, cpus, start, observe, restart)


def take_part_by_a_free_name(task: Task, place: Place, observe: Observe | None = None) -> int:
    """`take_part` by the first name that no other agent of the run on this machine has."""
    for free in places(place):
        with contextlib.suppress(NameTaken):
            return take_part(task, free, observe)
    raise AssertionError("places do not end")


def _take_part(
    task: Task, here: Entered, cpus: list[set[int]], start: float, observe: Observe | None, restart: Restart
) -> int:
    """``cpus`` has the processors of each worker, none where it is not bound."""
    member, state, report = here.member, here.state, here.report
    if state.phase.final:
        print(f"hpcelastic: the run has {state.phase.value} already: {state.reason}", file=sys.stderr)
        return 0 if state.phase is Phase.SUCCEEDED else 1
    slurm = slurm_task(os.environ)
    movable = task.slurm.requeue and may_start_elsewhere(slurm)
    candidate = Candidate(task.paths, member, task.settings, task.agent.health, os.environ, movable)
    if (status := refusal(candidate, report)) is not None:
        if status == UNFIT and movable and slurm is not None:
            start_elsewhere(slurm, _to_avoid(task, member), report)
        return status
    state = read_state(task.paths)  # the node may have stood aside for long
    around = _surroundings(task, slurm, member, report) if slurm else None
    aftermath = Aftermath(task.paths, slurm, member, task.settings.rendezvous) if slurm else None
    spec = AgentSpec(
        task.paths,
        task.run_id,
        task.settings,
        task.agent,
        member,
        state,
        os.environ,
        here.lock,
        cpus,
        around,
        observe,
        restart.number,
        restart.reason,
    )
    try:
        with _mistakes_named():
            agent = Agent(spec, report)
            status = agent.run()
        if slurm is not None and agent.notice is not None:
            limits = _limits(task)
            elapsed = time.monotonic() - start
            see_to_the_job(Left(task.paths, slurm, agent.member, agent.notice, elapsed, limits, report))
        return status
    except RunFailed as error:
        print_failures(error)
        raise
    except RendezvousTimeout:
        if aftermath is not None and aftermath.nobody_left():
            aftermath.end_job("the batch script's node was lost")
        raise
    finally:
        if aftermath is not None:
            aftermath.see_to_it()


@contextlib.contextmanager
def _mistakes_named() -> Iterator[None]:
    """Raise InternalError for an exception that is none of ours."""
    try:
        yield
    except HpcElasticError:
        raise
    except Exception as error:
        raise InternalError(f"internal error: {traceback.format_exc()}; {error}") from error


def _to_avoid(task: Task, me: Member) -> set[str]:
    bad = left_out(task.paths, task.agent.health.half_life)
    return {me.machine, *bad, *([task.slurm.exclude] if task.slurm.exclude else [])}


def _surroundings(task: Task, slurm: SlurmTask, member: Member, report: Callable[[str], None]) -> SlurmSurroundings:
    grace, beyond = task.agent.workers.stop_grace, task.total_time is not None
    policy = Policy(task.slurm.signal_delay, grace, task.slurm.requeue, beyond)

    def end_the_round() -> None:
        with bell_from_outside(task.paths, member.node) as bell:
            steer_run(task.paths, member.node, checkpoint, bell)

    refill = task.slurm.refill if task.paths.config.exists() else 0.0  # else nobody knows what to ask SLURM for
    single = slurm.nodes == 1
    watched = Watched(task.paths, member.node, task.slurm.poll, single, refill, partial(_replace, task.paths))
    return SlurmSurroundings(slurm, policy, end_the_round, Watch(watched, report))


def _replace(paths: RunPaths, count: int) -> str:
    """Submit jobs of one node in a process of its own: what that needs is too much for an agent to load."""
    command = [sys.executable, "-m", "hpcelastic", "scale", str(paths.root), "--replace", str(count)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip()


def _limits(task: Task) -> Limits:
    limit = minutes(task.total_time) if task.total_time else None
    return Limits(task.slurm.max_requeues, math.inf if limit is None else 60.0 * limit)


def _advised(
    paths: RunPaths, settings: Settings, verdict: Verdict, place: Place, report: Callable[[str], None]
) -> Settings:
    """``settings`` with the times that the run's filesystem needs; what a person should know of it is reported."""
    advised = advise(settings, verdict)
    nodes = 1 if _on_one_machine(place.address) else settings.nodes.wanted
    for line in (*remarks(paths, verdict, nodes=nodes), raised(settings, advised, verdict)):
        if line:
            report(line)
    return advised


def _on_one_machine(address: str) -> bool:
    """Whether all agents are on this machine, as those that `hpcelastic run` starts: others can't reach it there."""
    return address.startswith("127.")


def _workers(settings: WorkerSettings, environ: Mapping[str, str]) -> int:
    """Workers of this node; ConfigError if each is to have a GPU of its own, and there are too few."""
    gpus = count_gpus(environ)
    count = (gpus or 1) if settings.per_node == "auto" else settings.per_node
    if settings.virtual_local_rank and "CUDA_VISIBLE_DEVICES" in environ and count > gpus:
        visible = environ["CUDA_VISIBLE_DEVICES"]
        raise ConfigError(
            f"workers.virtual_local_rank gives each of {count} workers a GPU of its own, and CUDA_VISIBLE_DEVICES is "
            f"{visible!r}; ask for as many GPUs, or for fewer workers"
        )
    return count
