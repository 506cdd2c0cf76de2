"""A run as a person holds it: how it does, what it said, what it gave."""

import html
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from hpcelastic import values
from hpcelastic.agent.bell import bell_from_outside
from hpcelastic.agent.node import look_for
from hpcelastic.api.follow import LogFollower
from hpcelastic.api.jobs import end_jobs, jobs_of
from hpcelastic.api.prepare import whoami
from hpcelastic.api.presence import Presence
from hpcelastic.api.troubles import troubles
from hpcelastic.errors import ConfigError, RunFailed
from hpcelastic.health.incidents import forgive
from hpcelastic.health.verdict import Verdict
from hpcelastic.protocol.assignment import assignment
from hpcelastic.protocol.state import Failure, Phase, Stand, State, name_of
from hpcelastic.rendezvous.rendezvous import close_run, read_state
from hpcelastic.store import files
from hpcelastic.store.events import read_events
from hpcelastic.store.leases import Lease, read_leases
from hpcelastic.store.paths import RunPaths

_POLL = 1.0
"""Seconds between two looks at the run's directory while waiting."""


@dataclass(frozen=True)
class NodeStatus:
    """One node of a run."""

    name: str
    stand: str
    """``ready``, ``running``, ``succeeded``, ``failed``, ``left``, or ``silent``: its lease has not moved for long."""

    ranks: str
    """Its ranks in the round that runs, such as ``0..7``; empty if it is in none."""


@dataclass(frozen=True)
class RunStatus:
    """How a run stands."""

    name: str
    directory: Path
    phase: str
    round: int
    reason: str
    world_size: int
    restarts: int
    """Spent of the restart budget."""

    max_restarts: int
    nodes: tuple[NodeStatus, ...]
    failures: tuple[Failure, ...]
    jobs: tuple[str, ...]
    """SLURM jobs that were submitted for it."""

    troubles: Mapping[str, Verdict] = field(default_factory=dict)
    """What went wrong on nodes, by node, and whether it keeps them out."""

    @property
    def ended(self) -> bool:
        """True where no further round will come, unless the run is resumed."""
        return Phase(self.phase).final


class Run:
    """A run, known by its directory; it lives on whatever becomes of this object."""

    def __init__(self, directory: str | PathLike[str]) -> None:
        self._paths = RunPaths(Path(directory).absolute())
        if not self._paths.register.is_dir():
            raise ConfigError(f"{self._paths.root}: holds no run; `hpcelastic list DIRECTORY` shows those there are")

    @property
    def directory(self) -> Path:
        """The run's directory."""
        return self._paths.root

    @property
    def name(self) -> str:
        return self._paths.root.name

    def status(self) -> RunStatus:
        """How the run stands, from its directory alone."""
        state = read_state(self._paths)
        leases = read_leases(self._paths.leases)
        return RunStatus(
            name=state.run_id,
            directory=self._paths.root,
            phase=state.phase.value,
            round=state.round,
            reason=state.reason,
            world_size=sum(p.local_world_size for p in state.participants),
            restarts=min(state.restarts, state.settings.restarts.max),
            max_restarts=state.settings.restarts.max,
            nodes=tuple(_node_statuses(state, leases)),
            failures=state.failures,
            jobs=tuple(jobs_of(self._paths)),
            troubles=troubles(self._paths),
        )

    def wait(self, timeout: float | None = None) -> RunStatus:
        """Wait until the run has ended, however; TimeoutError after ``timeout`` seconds.

        Raises RunFailed if nobody is left to end it: all agents are gone, and SLURM has no job of the run.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        presence = Presence(self._paths)
        while not (state := read_state(self._paths)).phase.final:
            presence.check(state)
            left = _POLL if deadline is None else deadline - time.monotonic()
            if left <= 0:
                how = f"{state.phase.value}, {state.reason}"
                raise TimeoutError(f"{self.name} has not ended after {timeout:g} s: {how}")
            time.sleep(min(_POLL, left))
        return self.status()

    def result(self, timeout: float | None = None) -> list[Any]:
        """Wait, then return what each rank returned, None for scripts, by rank. Raises RunFailed, TimeoutError."""
        self.wait(timeout)
        state = read_state(self._paths)
        if state.phase is not Phase.SUCCEEDED:
            raise RunFailed(f"{self.name} has {state.phase.value}: {state.reason}", state.failures)
        ranks = range(sum(p.local_world_size for p in state.participants))
        return [_result(self._paths, state.round, rank) for rank in ranks]

    def logs(self, rank: int | None = None, *, round: int | None = None, follow: bool = False) -> Iterator[str]:
        """Lines of the workers' logs, oldest round first; all ranks, or one; with ``follow`` until the run ends.

        Raises RunFailed as `wait`, once all that was written has been given.
        """
        follower, presence = LogFollower(self._paths.root, rank, round), Presence(self._paths)
        while True:
            state = read_state(self._paths)
            final = not follow or state.phase.final
            yield from follower.lines(rest=final)
            if final:
                return
            presence.check(state)
            time.sleep(_POLL / 4)

    def events(self) -> list[dict[str, Any]]:
        """All that its agents noted, by time."""
        return read_events(self._paths.events)

    def forgive(self, *nodes: str) -> tuple[str, ...]:
        """Let what went wrong on ``nodes``, or on all, keep them out no longer; those that were held to account."""
        return forgive(self._paths, nodes or None)

    def cancel(self) -> RunStatus:
        """End the run for good: its workers, its agents, its SLURM jobs. Raises SlurmError if SLURM does not answer."""
        with bell_from_outside(self._paths, whoami()) as bell:
            close_run(self._paths, whoami(), f"cancelled by {whoami()}", bell)
        end_jobs(self._paths)
        return self.status()

    def __repr__(self) -> str:
        status = self.status()
        return f"<Run {self.name}: {status.phase}, round {status.round}, {status.reason}>"

    def _repr_html_(self) -> str:
        return _as_html(self.status())


def _node_statuses(state: State, leases: dict[str, Lease]) -> Iterator[NodeStatus]:
    """The members of the newest round in rank order, then those that want into the next."""
    members = [p.node for p in state.participants]
    waiting = [] if state.phase.final else [node for node in leases if node not in members]
    others = [node for node in waiting if leases[node].member.stand is not Stand.LEFT]
    for node in [*members, *others]:
        part = assignment(state, node)
        ranks = _range(part.first_rank, part.local_world_size) if part else ""
        lease = leases.get(node)
        silent = lease is None or _silent(lease, state)
        if silent and node in others:
            continue  # an incarnation that has gone
        yield NodeStatus(name_of(node), "silent" if silent or lease is None else lease.member.stand.value, ranks)


def _silent(lease: Lease, state: State) -> bool:
    """For display only: times of files and other machines' clocks decide nothing."""
    if state.phase.final:
        return False
    here, alive = look_for(lease.member.process)
    if here:  # there is no need to guess
        return not alive
    try:
        age = time.time() - lease.path.stat().st_ctime  # a renewal gives it another name, and leaves its content
    except OSError as error:
        return not isinstance(error, FileNotFoundError)  # if it has gone, it was renewed just now
    return age > 3 * (state.settings.rendezvous.lease + state.settings.rendezvous.margin)


def _range(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}..{first + count - 1}"


def _result(paths: RunPaths, round: int, rank: int) -> Any:
    try:
        return values.load(paths.result(round, rank))
    except KeyError:
        return None


def _as_html(status: RunStatus) -> str:
    color = {"succeeded": "#1a7f37", "failed": "#cf222e", "closed": "#cf222e"}.get(status.phase, "#0969da")
    rows = "".join(
        f"<tr><td>{html.escape(n.name)}</td><td>{html.escape(n.stand)}</td><td>{html.escape(n.ranks)}</td></tr>"
        for n in status.nodes
    )
    return (
        f"<b>{html.escape(status.name)}</b> <b style='color:{color}'>{html.escape(status.phase)}</b>, "
        f"round {status.round}, world size {status.world_size}, "
        f"restarts {status.restarts} of {status.max_restarts}<br>{html.escape(status.reason)}"
        f"<table><tr><th>node</th><th>stand</th><th>ranks</th></tr>{rows}</table>"
        f"<code>{html.escape(str(status.directory))}</code>"
    )


def find_runs(directory: Path) -> list[Run]:
    """The runs in a directory, by name. StoreError if it can't be read."""
    return [Run(directory / name) for name in sorted(files.names(directory)) if _holds_run(directory / name)]


def _holds_run(directory: Path) -> bool:
    return not directory.name.startswith(".") and RunPaths(directory).register.is_dir()
