"""A person's wishes for a run that goes on: without some nodes, with more or fewer, a checkpoint now."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

from hpcelastic.agent.agent import HEED
from hpcelastic.agent.bell import bell_from_outside
from hpcelastic.api.jobs import add_elements, capacity, jobs_of
from hpcelastic.api.prepare import whoami
from hpcelastic.api.status import read_status
from hpcelastic.config import JobConfig
from hpcelastic.config.codec import decode
from hpcelastic.errors import ConfigError, SlurmError
from hpcelastic.protocol import decide
from hpcelastic.protocol.decide import Decision
from hpcelastic.protocol.state import Member, Phase, Stand, State
from hpcelastic.rendezvous.rendezvous import read_state, steer_run
from hpcelastic.slurm.scheduler import cancel_jobs
from hpcelastic.store import files
from hpcelastic.store.backend import backend_of
from hpcelastic.store.events import read_events
from hpcelastic.store.paths import RunPaths


@dataclass(frozen=True)
class Scaled:
    """What came of a wish for another size; as text, one line for a person."""

    run: str
    wanted: int
    """Nodes of a round, from now on."""

    spares: int
    """Nodes that stand by besides."""

    running: int
    waiting: int
    """Nodes that SLURM has been asked for before, and has not given yet."""

    submitted: int = 0
    job: str = ""
    """The array of those that were submitted."""

    cancelled: int = 0
    """Elements that waited, and are not needed any more."""

    @property
    def leaving(self) -> int:
        """Nodes that are too many; they leave by themselves."""
        return max(0, self.running - self.wanted - self.spares)

    def __str__(self) -> str:
        told = [f"{_nodes(self.wanted)} wanted" + (f" and {self.spares} to stand by" if self.spares else "")]
        told.append(f"{self.running} run" + (f", {self.leaving} of them leave" if self.leaving else ""))
        told += [f"{self.waiting} wait{'s' * (self.waiting == 1)} in the queue"] if self.waiting else []
        told += [f"{self.cancelled} that waited cancelled"] if self.cancelled else []
        told += [f"{self.submitted} submitted as job {self.job}"] if self.submitted else []
        return f"{self.run}: {', '.join(told)}"


def scale(paths: RunPaths, nodes: int) -> Scaled:
    """Let rounds have ``nodes`` nodes from now on, and see to it that SLURM gives as many. ConfigError, SlurmError."""
    state = _going_on(paths)
    if nodes < state.settings.nodes.min:
        raise ConfigError(
            f"{nodes} is fewer than nodes.min, {state.settings.nodes.min}, with which no round would form; to end the "
            "run: hpcelastic cancel"
        )
    if not jobs_of(paths):
        return _scale_by_hand(paths, state, nodes)
    spares, there = state.settings.nodes.spares, capacity(paths)
    _steer(paths, partial(decide.scale, nodes=nodes))
    more = nodes + spares - there.running - there.waiting
    if more > 0:
        return Scaled(paths.root.name, nodes, spares, there.running, there.waiting, more, _submit(paths, nodes, more))
    cancelled = there.elements[max(0, len(there.elements) + more) :]
    cancel_jobs(cancelled)
    waiting = there.waiting - len(cancelled)
    return Scaled(paths.root.name, nodes, spares, there.running, waiting, cancelled=len(cancelled))


def _on_other_nodes(paths: RunPaths, config: JobConfig) -> JobConfig:
    """The configuration for jobs that are to add nodes to an allocation, not to share those that it has."""
    members = [lease.member for lease in backend_of(paths).leases().values()]
    taken = {member.machine for member in members if member.stand is not Stand.LEFT}
    exclude = ",".join([*([config.slurm.exclude] if config.slurm.exclude else []), *sorted(taken)])
    return replace(config, slurm=replace(config.slurm, exclude=exclude))


def replace_nodes(paths: RunPaths, lost: int) -> str:
    """Submit a job of one node for each that was ``lost``, but for those that wait in the queue already; what came of
    it. ConfigError, SlurmError."""
    state, there = _going_on(paths), capacity(paths)
    more = lost - there.waiting
    if more <= 0:
        return f"{paths.root.name}: {_nodes(there.waiting)} wait in the queue already"
    return f"{paths.root.name}: {_nodes(more)} submitted as job {_submit(paths, state.most, more)}"


def _scale_by_hand(paths: RunPaths, state: State, nodes: int) -> Scaled:
    """The size of a run whose agents somebody else starts, on this machine or in a batch script."""
    there = len(_present(paths))
    if nodes > there:
        raise ConfigError(
            f"{paths.root.name}: {there} run, and hpcelastic can't add to them, as it did not submit them to SLURM; "
            f"start more agents yourself: hpcelastic agent --run-dir {paths.root}"
        )
    _steer(paths, partial(decide.scale, nodes=nodes))
    return Scaled(paths.root.name, nodes, state.settings.nodes.spares, there, 0)


def _submit(paths: RunPaths, nodes: int, more: int) -> str:
    config = decode(files.read_json(paths.config))
    if config.slurm.shape == "allocation":
        config = _on_other_nodes(paths, config)
    try:
        return add_elements(paths, config, more)
    except SlurmError as error:
        remedy = f"{paths.root.name} takes up to {_nodes(nodes)} now, but no job was added; scale it again"
        raise SlurmError(f"{error}; {remedy}") from error


def drain(paths: RunPaths, nodes: Collection[str], *, undo: bool = False) -> tuple[str, ...]:
    """Keep nodes out of the run, or let them in again; all that are drained now. ConfigError for unknown ones."""
    state = _going_on(paths)
    members = [lease.member for lease in backend_of(paths).leases().values()]
    machines = {member.name: member.machine for member in members}
    if undo:
        names = {one for one in state.drained if one in nodes or machines.get(one) in nodes}
        _refuse({*nodes} - names - {machines.get(one, one) for one in names}, state.drained, "is not drained")
    else:
        names = {*nodes}
        _refuse(names - {*machines, *machines.values()}, {*_present(paths)}, "is not in this run")
    return _steer(paths, partial(decide.drain, nodes=sorted(names), undo=undo)).drained


def _refuse(unknown: Collection[str], known: Collection[str], what: str) -> None:
    if unknown:
        there = f"there are {', '.join(sorted(known))}" if known else "there is none"
        raise ConfigError(f"{', '.join(sorted(unknown))}: {what}; {there}")


def shortage(paths: RunPaths) -> str:
    """What a run waits for that has too few nodes left once those that are drained have gone; empty if nothing."""
    state = read_state(paths)
    left = sum(1 for member in _present(paths).values() if not state.drains(member))
    least = state.settings.nodes.min
    return f"{_nodes(left)} left, of at least {least}: the run waits for more" if left < least else ""


def checkpoint(paths: RunPaths, *, anyway: bool = False) -> str:
    """End the round that runs at a step's end, so that the next one follows at once; what happens, for a person.

    ConfigError where no round runs; unless ``anyway``, also where its workers are not known to ask should_stop().
    """
    state = _going_on(paths)
    if state.phase is not Phase.RUNNING:
        raise ConfigError(f"{paths.root.name}: no round runs, there is nothing to save: {state.reason}")
    grace = state.settings.rendezvous.checkpoint_grace
    deaf = _deaf(paths, state)
    if deaf and not anyway:
        raise ConfigError(
            f"{paths.root.name}: {deaf}: they would be stopped, and go on from their last checkpoint; "
            "if that is wanted: hpcelastic checkpoint --anyway"
        )
    _steer(paths, decide.checkpoint)
    if deaf:
        return f"{paths.root.name}: round {state.round} is stopped, the next goes on from the last checkpoint: {deaf}"
    return f"{paths.root.name}: round {state.round} ends at a step's end, in {grace:g} s at most; the next follows"


def _deaf(paths: RunPaths, state: State) -> str:
    """Why the workers of the round would not come to a step's end; empty if they would."""
    if not state.settings.rendezvous.checkpoint_grace:
        return "rendezvous.checkpoint_grace gives workers 0 s to a step's end"
    seen = any(e.get("event") == HEED and e.get("round") == state.round for e in read_events(paths.events))
    return "" if seen else f"the workers of round {state.round} do not ask should_stop(), or have not yet"


def _going_on(paths: RunPaths) -> State:
    state = read_state(paths)
    if state.phase.final:
        raise ConfigError(f"{paths.root.name} has {state.phase.value}: {state.reason}; go on with submit --resume")
    return state


def _steer(paths: RunPaths, wish: Callable[[State], Decision]) -> State:
    with bell_from_outside(paths, whoami()) as bell:
        return steer_run(paths, whoami(), wish, bell)


def _present(paths: RunPaths) -> dict[str, Member]:
    """What those nodes of the run say that are there, by name."""
    here = {node.name for node in read_status(paths).nodes if node.stand not in (Stand.LEFT.value, "silent")}
    members = (lease.member for lease in backend_of(paths).leases().values())
    return {member.name: member for member in members if member.name in here and member.stand is not Stand.LEFT}


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
