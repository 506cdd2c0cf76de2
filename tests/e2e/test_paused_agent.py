"""A node that pauses for longer than its lease and continues. The notes of its workers show what they do then."""

import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.api.jobs import LocalNodes
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.api.run import Run
from tests.cli.shell import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NODES = 3
SCRIPT = Path(__file__).parent / "scripts" / "publishes.py"
Note = dict[str, Any]


class Nodes:
    """A run on three nodes of this machine, with functions to stop one of them."""

    def __init__(self, directory: Path) -> None:
        job = {
            "run": {"name": "paused", "directory": str(directory)},
            "entrypoint": {"script": str(SCRIPT)},
            "nodes": f"2..{NODES}",
            "workers": {"per_node": 1, "stop_grace": 1, "preload": ["argparse"]},
            "rendezvous": {"last_call": 1, "lease": 3, "margin": 1, "poll": 0.05, "join_timeout": 120},
            "restarts": {"max": 0},
        }
        self.paths = prepare(resolve(job, []))
        self.latest = self.paths.root / "latest"
        self.run = Run(self.paths.root)
        self.agents = LocalNodes(self.paths, NODES)

    def await_round(self, nodes: int, after: int = 0) -> int:
        """Wait until a round later than ``after`` runs on so many nodes and has published. Return its number."""

        def published() -> int:
            status = self.run.status()
            stands = [node.node_state for node in status.nodes if node.ranks]
            running = status.round > after and status.phase == "running" and stands == ["running"] * nodes
            done = any(note["round"] == status.round for note in self.publications() if not note["refused"])
            return status.round if running and done else 0

        return eventually(published)

    def node_of_rank_0(self) -> int:
        name = eventually(lambda: next((node.name for node in self.run.status().nodes if node.ranks == "0"), ""))
        return int(name.removeprefix("node"))

    def await_worker(self, index: int, event: str) -> Note:
        """Wait until a worker that is alive on the node has recorded ``event``. Return its note."""

        def found() -> Note | None:
            mine = [note for note in self.notes() if note["node"] == f"node{index}" and note["event"] == event]
            return next((note for note in mine if not ended(note["pid"])), None)

        note = eventually(found)
        assert note is not None
        return note

    def keepers(self, index: int) -> tuple[int, int]:
        """Return agent and guard of a node."""
        agent = self.agents.alive()[index].pid
        children = {int(pid) for pid in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()}
        command_lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
        (guard,) = (pid for pid, line in command_lines.items() if b"guard_main.py" in line)
        return agent, guard

    def notes(self) -> list[Note]:
        texts = [path.read_text() for path in (self.paths.root / "proof").glob("*.jsonl")]
        lines = [line for text in texts for line in text.splitlines(keepends=True)]
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def publications(self) -> list[Note]:
        return [note for note in self.notes() if note["event"] == "publication"]

    def finish(self) -> None:
        """Let the workers end. Fail unless the run succeeds on every node."""
        (self.paths.root / "finish").touch()
        assert set(self.agents.wait(timeout=60).values()) == {0}
        assert self.run.status().phase == "succeeded"
        assert self.run.status().restarts == 0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    try:
        made.agents.start()
        yield made
    finally:
        for index in range(NODES):
            made.agents.kill_node(index)


@contextlib.contextmanager
def watched(latest: Path) -> Iterator[list[int]]:
    """Record the rounds that a reader sees published, in order."""
    seen, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.005):
            round = int(latest.read_text()) if latest.exists() else 0
            if round != seen[-1]:
                seen.append(round)

    reader = threading.Thread(target=watch)
    reader.start()
    try:
        yield seen
    finally:
        stop.set()
        reader.join()


def check_publications(nodes: Nodes, seen: list[int]) -> None:
    """Check that no round published after a newer one, by the notes of the workers and for a reader."""
    done = [note for note in nodes.publications() if not note["refused"]]
    for note in done:
        newer = [other for other in done if other["round"] > note["round"] and other["at"] < note["began"]]
        assert not newer, f"{note} published after {newer[0]}"
    assert seen == sorted(seen)
    assert int(nodes.latest.read_text()) == max(note["round"] for note in done)


def check_exclusivity(nodes: Nodes) -> None:
    """Check that no worker of an older round did anything after a newer round's first worker had begun."""
    begins: dict[int, float] = {}
    for note in nodes.notes():
        begins[note["round"]] = min(note["at"], begins.get(note["round"], note["at"]))
    for note in nodes.notes():
        late = [round for round, begin in begins.items() if round > note["round"] and begin < note["at"]]
        assert not late, f"{note} came after the begin of rounds {late}"


def stop(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def go_on(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def test_stopped_agent_loses_its_workers_and_joins_again(nodes: Nodes) -> None:
    with watched(nodes.latest) as seen:
        nodes.await_round(NODES)
        paused = nodes.node_of_rank_0()
        worker = nodes.await_worker(paused, "alive")
        agent, _ = nodes.keepers(paused)
        stop(agent)
        second = nodes.await_round(NODES - 1, after=worker["round"])
        assert ended(worker["pid"]), "the guard kills it before other nodes continue"
        go_on(agent)
        nodes.await_round(NODES, after=second)
        nodes.finish()
    check_exclusivity(nodes)
    check_publications(nodes, seen)
    assert any(event["event"] == "fenced" for event in nodes.run.events())


def test_a_node_frozen_during_a_publication_publishes_nothing_when_it_thaws(nodes: Nodes) -> None:
    hold = nodes.paths.root / "hold"
    with watched(nodes.latest) as seen:
        nodes.await_round(NODES)
        paused = nodes.node_of_rank_0()
        hold.write_text(f"node{paused}")
        holder = nodes.await_worker(paused, "holds")
        worker = holder["pid"]
        agent, guard = nodes.keepers(paused)
        stop(agent, guard, worker)
        second = nodes.await_round(NODES - 1, after=holder["round"])
        hold.unlink()

        go_on(worker)  # the zombie lives, because agent and guard are stopped
        refusals = eventually(lambda: refusals_of(nodes, worker, at_least=2))
        assert "a newer round publishes in" in refusals[0], "the fence refused the rename"
        assert re.match(r"round \d+ has formed", refusals[-1]), "later publications are refused before they begin"
        assert int(nodes.latest.read_text()) >= second

        go_on(guard)
        eventually(lambda: ended(worker))
        go_on(agent)
        nodes.await_round(NODES, after=second)
        nodes.finish()
    check_publications(nodes, seen)
    begin = min(note["at"] for note in nodes.notes() if note["round"] == second)
    late = [note for note in nodes.publications() if note["pid"] == worker and note["at"] > begin]
    assert late and all(note["refused"] for note in late)


def refusals_of(nodes: Nodes, pid: int, at_least: int) -> list[str]:
    """Return the errors of the worker ``pid`` once it was refused ``at_least`` times; empty before."""
    errors = [note["refused"] for note in nodes.publications() if note["pid"] == pid and note["refused"]]
    return errors if len(errors) >= at_least else []


def ended(pid: int) -> bool:
    """Return True once the process ``pid`` has ended. Its stopped agent cannot reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
