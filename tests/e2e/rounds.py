"""Runs of several nodes on this machine, whose workers record in which rounds they have been."""

import os
import random
import signal
import time
from collections.abc import Sequence
from typing import Any

from hpcelastic.agent.settings import WorkerSettings
from hpcelastic.storage.events import read_event_lines
from tests.cli.shell import TIMEOUT, Shell, eventually

_ATTEMPTS = 5
"""On a busy machine a node may come too late for the first round. Then a run begins again."""

_DEPARTURES = ("workers parked", "workers stopped", "worker ended", "worker interrupted")
"""The kinds of events of workers that leave a round."""


class Run:
    """A run of agents on this machine, of which each is a node. All of them are in its first round."""

    def __init__(
        self, shell: Shell, code: str, nodes: int, *flags: str, workers: int = 1, script_arguments: Sequence[str] = ()
    ) -> None:
        shell.write({"train.py": code})
        self._shell, self._flags = (
            shell,
            (f"--nproc-per-node={workers}", "--max-restarts=3", *flags, "train.py", *script_arguments),
        )
        (shell.directory / "notes").mkdir()
        before, all_workers = shell.listing(), nodes * workers
        for _ in range(_ATTEMPTS):
            self.agents = [self.start(f"n{i}", f"--nnodes=1:{nodes}") for i in range(nodes)]
            eventually(lambda: len(self.pids(1)) == all_workers or self.newest_round() > 1)
            if len(self.pids(1)) == all_workers:
                return
            self._undo(before)
        raise AssertionError(f"in {_ATTEMPTS} attempts, round 1 had fewer than {nodes} nodes")

    def _undo(self, before: set[str]) -> None:
        """Kill everything, and remove all files that were not there ``before``."""
        for agent in self.agents:
            os.killpg(agent.pid, signal.SIGKILL)
            agent.wait()
        eventually(lambda: not self._shell.processes())
        for name in sorted(self._shell.listing() - before, reverse=True):  # files precede their directories
            path = self._shell.directory / name
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()

    def start(self, name: str, nodes: str) -> Any:
        agent = self._shell.agent("--node-name", name, nodes, *self._flags)
        agent.node_name = name
        return agent

    def members(self) -> list[int]:
        """Return the indices of the agents that have started workers in the newest round."""
        started = [(event["round"], event["node"]) for event in self.events("workers started")]
        newest = max(started)[0]
        return [i for i, agent in enumerate(self.agents) if (newest, agent.node_name) in started]

    def pids(self, round: int) -> dict[int, int]:
        """Return the process id of each worker that has been in the round, by rank."""
        return {rank: int(text) for rank, text in self.notes(f"{round}.*.up").items() if text}

    def notes(self, pattern: str) -> dict[int, str]:
        """Return the text of each note ``ROUND.RANK.NAME`` that matches ``pattern``, by rank."""
        found = (self._shell.directory / "notes").glob(pattern)
        return {int(path.name.split(".")[1]): path.read_text() for path in found}

    def newest_round(self) -> int:
        """Return the newest round in which a worker has begun to train; 0 if there is none."""
        notes = (self._shell.directory / "notes").glob("*.up")
        return max((int(path.name.split(".")[0]) for path in notes), default=0)

    def await_round(self, round: int, workers: int) -> dict[int, int]:
        """Wait until ``workers`` workers of the round have met. Return their process ids."""
        eventually(lambda: len(self.pids(round)) == workers)
        return self.pids(round)

    def await_workers(self, workers: int, after: int = 1) -> int:
        """Wait until ``workers`` workers have met in a round later than ``after``. Return the round."""
        eventually(lambda: self.newest_round() > after and len(self.pids(self.newest_round())) == workers)
        return self.newest_round()

    def kill_node(self, index: int) -> None:
        """Kill the agent, whose guard then kills the workers."""
        self.agents.pop(index).kill()

    def disturb(self, chance: random.Random, faults: int, nodes: int) -> None:
        """Kill workers and nodes, and let nodes join up to a number of ``nodes``. Await a round after each of these."""
        for number in range(faults):
            time.sleep(chance.uniform(0.05, 0.6))
            round = self.newest_round()
            if len(self.agents) < nodes and chance.random() < 0.6:
                self.agents.append(self.start(f"m{number}", f"--nnodes=1:{nodes}"))
            elif len(self.members()) > 1 and chance.random() < 0.4:
                self.kill_node(chance.choice(self.members()))
            else:
                os.kill(chance.choice(list(self.pids(round).values())), signal.SIGKILL)
            eventually(lambda round=round: self.newest_round() > round)  # type: ignore[misc]

    def finish(self) -> str:
        """Let the workers end. Return the output of the agents."""
        (self._shell.directory / "finish").touch()
        outputs = []
        for agent in self.agents:
            _, stderr = agent.communicate(timeout=TIMEOUT)
            assert agent.returncode == 0, stderr
            outputs.append(stderr)
        deadline = time.monotonic() + TIMEOUT
        while left := self._shell.processes():
            assert time.monotonic() < deadline, left
            time.sleep(0.02)
        return "".join(outputs)

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """Return the events of these kinds by time."""
        lines = read_event_lines(self._shell.directory / "runs/r/events")
        return [event for event in lines if event["event"] in kinds]

    def replaced(self, before: dict[int, int], round: int) -> set[int]:
        """Return the ranks of round 1, in the processes ``before``, whose processes are not in a later round.

        A worker that stays may have another rank: its peers may have begun a round without a node that came late.
        A worker that was killed because it was not parked in time does not count: gloo sometimes keeps a worker in a
        collective whose peer was killed, or that left while they connected (docs/workers.md). That may happen to all
        workers in a later round, whose nodes had hardly begun when another one joined. At the end of round 1 at least
        one worker must have been parked.
        """
        departures = self.events(*_DEPARTURES)
        ended = [event for event in departures if event["round"] < round and event.get("seconds") is not None]
        slow = {(event["node"], event["round"]) for event in ended if event["seconds"] >= WorkerSettings.park_grace}
        of_slow = {
            rank
            for event in self.events("workers started")
            if (event["node"], event["round"]) in slow
            for rank, pid in before.items()
            if pid in event["pids"].values()
        }
        after = self.pids(round).values()
        replaced = {rank for rank, pid in before.items() if pid not in after}
        parked = any(event["event"] == "workers parked" and event["round"] == 1 for event in departures)
        return replaced - of_slow if parked else replaced

    def story(self) -> str:
        """Return how rounds have begun and ended, one event in a line."""
        return "\n".join(str(event) for event in self.events("state changed", "workers started", *_DEPARTURES))

    def note(self, name: str) -> str:
        path = self._shell.directory / "notes" / name
        return path.read_text() if path.exists() else ""
