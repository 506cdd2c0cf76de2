"""Let a run have many rounds in virtual time, and print the size of its files, its agents and its readers.

    python -m benchmarks.long_run 100000

The rounds are spread over `DAYS` days. The code of the rendezvous, the register, the leases, the event logs and the
account is real, and so are their files, in a directory in memory. Workers exist only as events. Each round ends by the
failure of a worker, or, one of 20, by the loss of a node, whose place a new agent takes.
"""

import argparse
import gc
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

from hpcelastic.agent import old_rounds
from hpcelastic.agent.evidence import Evidence
from hpcelastic.agent.old_rounds import OldRounds
from hpcelastic.api.accounts import account_of
from hpcelastic.api.run import Run
from hpcelastic.api.why import why
from hpcelastic.backends.files import FileBackend
from hpcelastic.protocol.assignment import assignment
from hpcelastic.protocol.events import AgentStarted, TrainingTotals, WorkerEnded, WorkersParked, WorkersStarted
from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, RestartSettings, Settings
from hpcelastic.protocol.state import Failure, Member, NodeState, Phase, State
from hpcelastic.rendezvous.rendezvous import Rendezvous
from hpcelastic.rendezvous.run import open_run
from hpcelastic.storage import events
from hpcelastic.storage.clock import ClockOffset
from hpcelastic.storage.events import EventLog
from hpcelastic.storage.paths import RunPaths

DAYS = 90
NODES = 3
_LOSSES = 20
"""Of so many rounds, one ends by the loss of a node. The first node is never lost."""

_LEASE, _MARGIN = 600.0, 2.0
"""Long, because each renewal takes time here and not on the clock of the run."""


class Clock:
    """The clock of the run and of its nodes. ``began`` is the time of its beginning, in seconds since the epoch."""

    def __init__(self, began: float) -> None:
        self.began, self.now = began, 0.0

    def up(self) -> float:
        return self.now

    def time(self) -> float:
        return self.began + self.now


class Agent:
    """The parts of an agent that have state or files of the run."""

    def __init__(self, run: "LongRun", name: str, incarnation: int, keep: int) -> None:
        self._clock = run.clock
        self.member = Member(f"{name}@{incarnation}", NodeState.READY, 0, 1, "127.0.0.1", 1, process="p")
        self.old_rounds = OldRounds(run.paths, run.backend, keep)
        self.log = EventLog(run.paths.event_log(self.member.node), name, self.old_rounds.first_needed)
        self.log.clock = ClockOffset(run.clock.began - 0.001, run.clock.began + 0.001, 0.0)
        self._evidence = Evidence(self.log.write, run.state)
        self.rendezvous = Rendezvous(
            run.backend, self.member.node, run.settings, run.clock.up, committed=self._evidence.committed
        )
        self.log.write(AgentStarted(address="127.0.0.1", pid=1, workers=1))

    def turn(self) -> State:
        """Do one turn, then start or stop the worker as the state says. The next turn publishes that."""
        observation = self.rendezvous.step(self.member)
        state = observation.state
        self._evidence.observed(observation.version, state)
        part = assignment(state, self.member.node)
        if part is not None and part.round > self.member.round:
            self.old_rounds.begin(part)
            self._publish(NodeState.RUNNING, part.round)
            self.log.write(
                WorkersStarted(
                    round=part.round,
                    world_size=part.world_size,
                    group_rank=part.group_rank,
                    group_world_size=part.group_world_size,
                    role_rank=part.first_rank,
                    role_world_size=part.world_size,
                    pids={part.first_rank: 1},
                    cpus="0-7",
                )
            )
        elif part is None:
            if self.member.node_state is not NodeState.READY:
                self._end_round()
            self._publish(NodeState.READY, state.round)
        return state

    def fail(self, round: int) -> None:
        """Let the worker fail."""
        self.log.write(WorkerEnded(round=round, rank=0, exit_code=1, mark="step", mark_value=6, mark_age=0.5))
        failure = Failure(round, self.member.node, 0, 0, 1, f"ValueError: {round}", timestamp=self._clock.time())
        self._publish(NodeState.FAILED, round, failure)

    def _publish(self, node_state: NodeState, round: int, failure: Failure | None = None) -> None:
        self.member = replace(self.member, node_state=node_state, round=round, failure=failure)

    def _end_round(self) -> None:
        round, now = self.member.round, self._clock.up()
        times = {"restored": now - 60.0, "first_step": now - 59.0, "last_step": now - 1.0}
        self.log.write(TrainingTotals(round=round, rank=0, steps=7, before=6 * round, samples=(10.0, 30.0), **times))  # type: ignore[arg-type]  # by name
        self.log.write(WorkersParked(round=round, reason="the round has ended", ranks=(0,), seconds=0.01))


@dataclass(frozen=True)
class Size:
    """The size of a run after some rounds. Sizes are in bytes, and times in seconds."""

    rounds: int
    days: float
    agents: int
    """The number of agents that the run has had."""

    faults: int
    counted: int
    """The number of faults in the account of the run, which must be all."""

    files: int
    bytes: int
    largest_log: int
    account: int
    leases: int
    """The number of leases in their directory."""

    agent: int
    """The memory of the largest agent, without its modules."""

    status: float
    goodput: float
    why: float


class LongRun:
    """A run in ``directory``. It keeps the logs of ``keep`` rounds."""

    def __init__(self, directory: Path, clock: Clock, keep: int = 1000) -> None:
        self.clock, self.paths, self._keep = clock, RunPaths(directory), keep
        self.backend = FileBackend(self.paths)
        times = RendezvousSettings(last_call=0.0, lease=_LEASE, margin=_MARGIN)
        self.settings = Settings(NodeRange(NODES - 1, NODES), times, RestartSettings(max=10**9))
        for path in (self.paths.register, self.paths.leases, self.paths.events):
            path.mkdir(parents=True)
        self.state = open_run(self.backend, directory.name, self.settings, "benchmark")
        self.started, self.faults = NODES, 0
        self._agents = [Agent(self, f"n{index}", 0, keep) for index in range(NODES)]
        self._form(1)

    def round(self, pause: float) -> None:
        """Let a round run for ``pause`` seconds, and end it. Return when the next one runs."""
        number = self.state.round
        self._wait(pause)
        self.paths.round_logs(number).mkdir(parents=True)
        if number % _LOSSES:
            self._agents[number % NODES].fail(number)
        else:
            self._lose(1 + number // _LOSSES % (NODES - 1))
        self.faults += 1
        self._form(number + 1)
        for agent in self._agents:
            agent.log._queue.join()
        for thread in threading.enumerate():
            if thread.name == "sweep":
                thread.join()

    def sizes(self) -> Size:
        """Measure the files, the agents, and commands."""
        found = [path for path in self.paths.root.rglob("*") if path.is_file()]
        logs = [path.stat().st_size for path in self.paths.events.iterdir()]
        run = Run(self.paths.root)
        began = time.perf_counter()
        accounts = account_of(run.reader)
        goodput = time.perf_counter() - began
        return Size(
            self.state.round,
            self.clock.now / 86400,
            self.started,
            self.faults,
            accounts.fault_sums.count,
            len(found),
            sum(path.stat().st_size for path in found),
            max(logs),
            self.paths.account.stat().st_size if self.paths.account.exists() else 0,
            len(list(self.paths.leases.iterdir())),
            max(memory_of(agent.rendezvous, agent._evidence) for agent in self._agents),
            _seconds(run.status),
            goodput,
            _seconds(lambda: why(run.reader)),
        )

    def close(self) -> None:
        for agent in self._agents:
            agent.log.close(10.0)

    def _lose(self, victim: int) -> None:
        """Kill an agent, and start another one in its place once the others know that."""
        lost, number = self._agents.pop(victim), self.state.round
        lost.log.close(10.0)
        self._wait(1.5 * _LEASE)  # the others see its last renewal late
        name = lost.member.name
        self._agents.insert(victim, Agent(self, name, number, self._keep))
        self.started += 1

    def _wait(self, seconds: float) -> None:
        """Let time pass, in which the agents renew their leases."""
        steps = int(seconds / (_LEASE / 3)) + 1
        for _ in range(steps):
            self.clock.now += seconds / steps
            self._turn()

    def _form(self, number: int) -> None:
        """Let all agents work until the round ``number`` or a later one runs on all of them."""
        for _ in range(100):
            self.clock.now += _MARGIN
            self._turn()
            running = all(agent.member.node_state is NodeState.RUNNING for agent in self._agents)
            current = all(agent.member.round == self.state.round for agent in self._agents)
            if running and current and self.state.round >= number and self.state.phase is Phase.RUNNING:
                return
        raise AssertionError(f"round {number} does not form: {self.state.reason}")

    def _turn(self) -> None:
        self.state = [agent.turn() for agent in self._agents][-1]


def memory_of(*objects: object) -> int:
    """Return the bytes of ``objects`` and all that they refer to, without modules, classes and functions."""
    seen, left, total = set[int](), list(objects), 0
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, type | ModuleType) or callable(each):
            continue
        seen.add(id(each))
        total += sys.getsizeof(each)
        left += gc.get_referents(each)
    return total


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def lived(rounds: int, looks: int, directory: Path, keep: int = 1000, days: float = DAYS) -> Iterator[Size]:
    """Let a run have so many rounds in so many days, and return its size ``looks`` times."""
    clock = Clock(time.time() - days * 86400)
    with (
        mock.patch.object(events, "time", SimpleNamespace(time=clock.time, monotonic=time.monotonic)),
        mock.patch.object(events, "now", clock.up),
        mock.patch.object(events, "_CLOCK_INTERVAL", float("inf")),
        mock.patch.object(old_rounds, "_PAUSE", 0.0),
    ):
        run = LongRun(directory, clock, keep)
        try:
            for look in range(1, looks + 1):
                while run.state.round < rounds * look // looks:
                    run.round(max(0.0, days * 86400 * run.state.round / rounds - clock.now))
                yield run.sizes()
        finally:
            run.close()


def row(size: Size) -> str:
    return (
        f"{size.rounds:9,} rounds {size.days:5.1f} days {size.agents:6,} agents {size.faults:7,} faults "
        f"{size.counted - size.faults:+d} in the account  {size.files:6,} files "
        f"{size.bytes / 1e6:6.1f} MB  log {size.largest_log / 1e6:4.1f} MB  account {size.account / 1e3:5.0f} kB  "
        f"{size.leases:5,} leases  agent {size.agent / 1e3:5.0f} kB  "
        f"status {size.status:.2f} s  goodput {size.goodput:.2f} s  why {size.why:.2f} s"
    )


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=int, help="number of rounds")
    parser.add_argument("--looks", type=int, default=10, help="how often the sizes are printed")
    given = parser.parse_args(arguments)
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        for size in lived(given.rounds, given.looks, Path(directory) / "run"):
            print(row(size), flush=True)


if __name__ == "__main__":
    main()
