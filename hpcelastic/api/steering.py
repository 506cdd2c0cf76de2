"""Requests of a user for an active run: drain nodes, change the number of nodes, save a checkpoint."""

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

from hpcelastic.agent.notifier import outside_notifier
from hpcelastic.api.jobs import add_elements, capacity, jobs_of
from hpcelastic.api.prepare import whoami
from hpcelastic.api.sharing import is_ours, require_owner, require_submitter
from hpcelastic.api.status import read_status
from hpcelastic.backends.connect import RunReader
from hpcelastic.config import JobConfig, read_site
from hpcelastic.config.codec import decode
from hpcelastic.errors import ConfigError, SlurmError
from hpcelastic.protocol import decide
from hpcelastic.protocol.decide import Decision
from hpcelastic.protocol.events import WorkersPoll
from hpcelastic.protocol.state import Member, NodeState, Phase, State
from hpcelastic.rendezvous.requests import Change, Request, ask
from hpcelastic.rendezvous.run import read_state, steer_run
from hpcelastic.slurm.scheduler import cancel_jobs
from hpcelastic.storage import files
from hpcelastic.storage.events import read_logs


@dataclass(frozen=True)
class ScaleResult:
    """The result of a request for another number of nodes. ``str()`` is one line of text."""

    run: str
    wanted: int
    """Number of nodes of the next rounds."""

    spares: int
    """Additional spare nodes."""

    running: int
    waiting: int
    """Nodes that were requested before and are still pending in SLURM."""

    submitted: int = 0
    job: str = ""
    """The job array of the submitted nodes."""

    cancelled: int = 0
    """Pending elements that were cancelled, because they are not needed any more."""

    @property
    def leaving(self) -> int:
        """Number of surplus nodes. They leave without further action."""
        return max(0, self.running - self.wanted - self.spares)

    def __str__(self) -> str:
        parts = [f"{_nodes(self.wanted)} wanted" + (f" and {self.spares} spare" if self.spares else "")]
        parts.append(f"{self.running} running" + (f", {self.leaving} of them leaving" if self.leaving else ""))
        parts += [f"{self.waiting} pending"] if self.waiting else []
        parts += [f"{self.cancelled} pending cancelled"] if self.cancelled else []
        parts += [f"{self.submitted} submitted as job {self.job}"] if self.submitted else []
        return f"{self.run}: {', '.join(parts)}"


def scale(run: RunReader, nodes: int) -> ScaleResult:
    """Set the number of nodes of rounds, and submit or cancel jobs accordingly. Raises ConfigError, SlurmError."""
    state = _read_open_state(run)
    require_owner(run.paths, "scale it, because that submits jobs")
    if nodes < state.settings.nodes.min:
        raise ConfigError(
            f"{nodes} is fewer than nodes.min, {state.settings.nodes.min}: no round could form; write at least "
            "nodes.min, or end the run with hpcelastic cancel"
        )
    if state.settings.nodes.whole(nodes) != nodes:
        raise ConfigError(f"{_nodes(nodes)} are {state.settings.nodes.not_whole(nodes)}")
    site = read_site(os.environ)
    if site is not None and (problem := site.find_problem("nodes.max", nodes)):
        raise ConfigError(f"nodes.max {problem}")
    if not jobs_of(run.paths):
        return _scale_without_slurm(run, state, nodes)
    spares, current = state.settings.nodes.spares, capacity(run)
    missing = nodes + spares - current.running - current.waiting
    if missing > 0:
        require_submitter(run.paths)
    _steer(run, partial(decide.scale, nodes=nodes))
    if missing > 0:
        job = _submit(run, nodes, missing)
        return ScaleResult(run.name, nodes, spares, current.running, current.waiting, missing, job)
    cancelled = current.elements[max(0, len(current.elements) + missing) :]
    cancel_jobs(cancelled)
    waiting = current.waiting - len(cancelled)
    return ScaleResult(run.name, nodes, spares, current.running, waiting, cancelled=len(cancelled))


def _on_other_nodes(run: RunReader, config: JobConfig) -> JobConfig:
    """Return the configuration of jobs that add nodes to an allocation: it excludes the nodes of the run."""
    members = [lease.member for lease in run.backend().leases().values()]
    taken = {member.machine for member in members if member.node_state is not NodeState.LEFT}
    exclude = ",".join([*([config.slurm.exclude] if config.slurm.exclude else []), *sorted(taken)])
    return replace(config, slurm=replace(config.slurm, exclude=exclude))


def replace_nodes(run: RunReader, lost: int) -> str:
    """Submit a job of one node for each ``lost`` node, less the pending ones. Returns the result as text.

    Raises ConfigError, SlurmError.
    """
    state, current = _read_open_state(run), capacity(run)
    missing = lost - current.waiting
    if missing <= 0:
        return f"{run.name}: {_nodes(current.waiting)} already pending"
    require_submitter(run.paths)
    return f"{run.name}: {_nodes(missing)} submitted as job {_submit(run, state.max_nodes, missing)}"


def _scale_without_slurm(run: RunReader, state: State, nodes: int) -> ScaleResult:
    """Scale a run whose agents were not submitted by hpcelastic: on this machine or in a batch script."""
    running = len(_present_members(run))
    if nodes > running:
        job_file = run.paths.config.exists()  # else the agents were started with the options of the run
        command = f"hpcelastic agent --run-dir {run.paths.root}" if job_file else "the command of the other agents"
        raise ConfigError(
            f"{run.name}: {_nodes(running)} running, and hpcelastic cannot add nodes, because it did not submit "
            f"this run to SLURM; start more agents yourself: {command}"
        )
    _steer(run, partial(decide.scale, nodes=nodes))
    return ScaleResult(run.name, nodes, state.settings.nodes.spares, running, 0)


def _submit(run: RunReader, nodes: int, missing: int) -> str:
    config = decode(files.read_json(run.paths.config))
    if config.slurm.shape == "allocation":
        config = _on_other_nodes(run, config)
    try:
        return add_elements(run.paths, config, missing)
    except SlurmError as error:
        remedy = f"{run.name} accepts up to {_nodes(nodes)} now, but no job was added; scale it again"
        raise SlurmError(f"{error}; {remedy}") from error


def drain(run: RunReader, nodes: Collection[str], *, undo: bool = False) -> tuple[str, ...]:
    """Drain nodes of the run, or undo that. Returns all drained nodes. Raises ConfigError for unknown nodes."""
    state = _read_open_state(run)
    members = [lease.member for lease in run.backend().leases().values()]
    machines = {member.name: member.machine for member in members}
    if undo:
        names = {one for one in state.drained if one in nodes or machines.get(one) in nodes}
        _refuse({*nodes} - names - {machines.get(one, one) for one in names}, state.drained, "is not drained")
    else:
        names = {*nodes}
        _refuse(names - {*machines, *machines.values()}, {*_present_members(run)}, "is not in this run")
    return _request(run, Request(Change.DRAIN, tuple(sorted(names)), undo)).drained


def _refuse(unknown: Collection[str], known: Collection[str], what: str) -> None:
    if unknown:
        known_nodes = f"known nodes: {', '.join(sorted(known)) or 'none'}"
        raise ConfigError(f"{', '.join(sorted(unknown))}: {what}; {known_nodes}")


def shortage(run: RunReader) -> str:
    """Describe the missing nodes of a run after its drained nodes have left; empty if there are enough."""
    state = read_state(run.backend())
    left = sum(1 for member in _present_members(run).values() if not state.drains(member))
    minimum = state.settings.nodes.min
    return f"{_nodes(left)} left, fewer than nodes.min, {minimum}: the run waits for nodes" if left < minimum else ""


def checkpoint(run: RunReader, *, anyway: bool = False) -> str:
    """End the current round at the end of a step. The next round follows at once. Returns the result as text.

    Raises ConfigError if no round runs. Unless ``anyway``, raises it too if no worker has called should_stop().
    """
    state = _read_open_state(run)
    if state.phase is not Phase.RUNNING:
        raise ConfigError(f"{run.name}: no round runs ({state.reason}); try again when a round runs")
    grace = state.settings.rendezvous.checkpoint_grace
    problem = _checkpoint_problem(run, state)
    if problem and not anyway:
        raise ConfigError(
            f"{run.name}: {problem}: workers would stop without saving, and continue from the last checkpoint; "
            "to stop them nevertheless: hpcelastic checkpoint --anyway"
        )
    _request(run, Request(Change.CHECKPOINT))
    if problem:
        return f"{run.name}: round {state.round} stops, the next continues from the last checkpoint: {problem}"
    return f"{run.name}: round {state.round} ends at the end of a step, in {grace:g} s at most; the next follows"


def _checkpoint_problem(run: RunReader, state: State) -> str:
    """Explain why the workers of the round would not complete a step; empty if they would."""
    if not state.settings.rendezvous.checkpoint_grace:
        return "rendezvous.checkpoint_grace is 0 s"
    logs = read_logs(run.paths.events, {state.round})
    seen = any(logged.event == WorkersPoll(round=state.round) for log in logs.values() for logged in log)
    return "" if seen else f"the workers of round {state.round} have not called should_stop() so far"


def _read_open_state(run: RunReader) -> State:
    state = read_state(run.backend())
    if state.phase.final:
        raise ConfigError(
            f"{run.name} has {state.phase.value}: {state.reason}; continue with hpcelastic submit --resume"
        )
    return state


def cancel(run: RunReader) -> None:
    """End the run permanently, unless it has ended. Its agents and their jobs end, but pending jobs remain."""
    if is_ours(run.paths) or not read_state(run.backend()).phase.final:
        _request(run, Request(Change.CANCEL))


def _request(run: RunReader, request: Request) -> State:
    """Execute a request, or let an agent do it if the run belongs to another user of the group. Return the state.

    Raises ConfigError, StoreError.
    """
    if not is_ours(run.paths):
        ask(run.paths, request)
        return read_state(run.backend())
    with outside_notifier(run.paths, whoami()) as notifier:
        return request.execute(run.backend(), whoami(), notifier)


def _steer(run: RunReader, change: Callable[[State], Decision]) -> State:
    with outside_notifier(run.paths, whoami()) as notifier:
        return steer_run(run.backend(), whoami(), change, notifier, confirm=True)


def _present_members(run: RunReader) -> dict[str, Member]:
    """Return the members of the run's present nodes by name."""
    here = {node.name for node in read_status(run).nodes if node.node_state not in (NodeState.LEFT.value, "silent")}
    members = (lease.member for lease in run.backend().leases().values())
    return {
        member.name: member for member in members if member.name in here and member.node_state is not NodeState.LEFT
    }


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
