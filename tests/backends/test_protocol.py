"""Properties of a rendezvous, with every backend: nodes of one run, turn by turn, on a clock that the test advances."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from hpcelastic.api.status import read_status
from hpcelastic.backends import records as store_records
from hpcelastic.backends.connect import RunReader, open_agent_backend, open_backend
from hpcelastic.backends.etcd import connect, connect_v2
from hpcelastic.backends.etcd_server import EtcdServer
from hpcelastic.backends.state_copies import StateCopies
from hpcelastic.cli.status import lines
from hpcelastic.errors import ConfigError
from hpcelastic.protocol.settings import RendezvousSettings
from hpcelastic.protocol.state import Cause, NodeState, Phase
from hpcelastic.rendezvous.run import close_run, open_run, read_state, reopen_run
from hpcelastic.storage.paths import RunPaths
from hpcelastic.storage.register import Version
from tests.cli.shell import eventually
from tests.rendezvous.nodes import DEAD, LAST_CALL, Node, World, make_world, names, turns, wait

JOB = {"job": "7.0", "job_nodes": 2}


Make = Callable[..., World]
"""Makes a run for a minimum and a maximum of nodes."""


@pytest.fixture
def world(backend: tuple[str, str], root: Path) -> Iterator[Make]:
    name, endpoint = backend
    with contextlib.ExitStack() as stack:

        def make(minimum: int, maximum: int, restarts: int = 3) -> World:
            made = make_world(root, minimum, maximum, restarts, name, endpoint)
            stack.callback(made.backend.close)
            return made

        yield make


def pair(make: Make, minimum: int = 1, maximum: int = 2) -> tuple[World, Node, Node]:
    world = make(minimum, maximum)
    a, b = world.node("a", order=0, **JOB), world.node("b", order=1, **JOB)
    state = turns(a, b)
    assert (state.phase, state.round, names(state)) == (Phase.RUNNING, 1, ["a", "b"])
    return world, a, b


def test_barrier(world: Make) -> None:
    made = world(3, 3)
    a, b = made.node("a"), made.node("b")
    assert turns(a, b).phase is Phase.JOINING
    assert "2 of at least 3" in a.step().reason
    c = made.node("c")
    assert names(turns(a, b, c)) == ["a", "b", "c"]


def test_consistency(world: Make) -> None:
    made, a, b = pair(world)
    assert a.step().state == b.step().state == read_state(made.backend)
    assert {p.node for p in a.step().state.participants} == {a.member.node, b.member.node}


def test_exclusivity_and_the_wait_list(world: Make) -> None:
    made, a, b = pair(world)
    c = made.node("c", order=2)
    state = turns(a, b, c)
    assert (state.phase, state.round, names(state)) == (Phase.RUNNING, 1, ["a", "b"])
    b.set_state(NodeState.LEFT, 1)
    b.step()
    state = turns(a, c, times=4)
    assert (state.phase, state.round, names(state)) == (Phase.RUNNING, 2, ["a", "c"])


def test_only_one_of_those_who_decide_on_the_same_version_wins(world: Make) -> None:
    made = world(1, 2)
    ours, theirs = (made.backend.register(name) for name in ("ours", "theirs"))
    version = ours.read()
    assert theirs.read() == version
    assert ours.commit(version.number, {"phase": "joining", "by": "ours"})
    assert not theirs.commit(version.number, {"phase": "joining", "by": "theirs"})
    assert theirs.read().value == {"phase": "joining", "by": "ours"} and theirs.read().number == version.number + 1
    assert theirs.commit(version.number + 1, {"phase": "joining", "by": "theirs"})


def test_a_death_during_the_barrier(world: Make) -> None:
    made = world(2, 3)
    a, b = made.node("a"), made.node("b")
    a.step(), b.step()
    wait(made, 2 * DEAD, a)
    assert "1 of at least 2" in a.step().reason
    c = made.node("c")
    turns(a, c)
    wait(made, LAST_CALL, a, c)
    assert names(turns(a, c)) == ["a", "c"]


def test_a_death_after_the_barrier(world: Make) -> None:
    made, a, _ = pair(world)
    wait(made, DEAD / 2, a)
    assert a.step().state.phase is Phase.RUNNING
    wait(made, 3 * DEAD / 2, a)
    state = turns(a)
    assert (state.phase, state.round, names(state)) == (Phase.RUNNING, 2, ["a"])
    assert state.spent == {Cause.NODE.value: 1}


def test_a_failed_worker_spends_the_budget(world: Make) -> None:
    made, a, b = pair(partial(world, restarts=1))
    a.fail(1, "ValueError: first")
    assert b.step().state.phase is Phase.RUNNING
    a.step()
    turns(a, b)
    state = turns(a, b)
    assert (state.phase, state.round, state.restarts) == (Phase.RUNNING, 2, 1)
    assert state.failures[0].message == "ValueError: first"
    b.fail(2, "ValueError: second")
    b.step()
    state = turns(a, b)
    assert state.phase is Phase.FAILED and "ValueError: second" in read_state(made.backend).reason


def test_success(world: Make) -> None:
    _, a, b = pair(world)
    a.set_state(NodeState.SUCCEEDED, 1)
    assert a.step().state.phase is Phase.RUNNING
    b.set_state(NodeState.SUCCEEDED, 1)
    assert b.step().state.phase is Phase.SUCCEEDED
    assert a.step().state.phase is Phase.SUCCEEDED


def test_close_and_reopen(world: Make) -> None:
    made, a, b = pair(world)
    close_run(made.backend, "user", "enough")
    assert a.step().state.phase is Phase.CLOSED and b.step().state.reason == "enough"
    reopen_run(made.backend, "user", made.settings)
    assert turns(a, b, times=4).round == 2


def test_the_waits_end(world: Make) -> None:
    made = world(1, 3)
    a = made.node("a")
    turns(a)
    wait(made, LAST_CALL - 0.1, a)
    assert "last call: 1 node ready" in a.step().reason
    made.now += 0.2
    assert a.step().state.phase is Phase.RUNNING


def test_a_late_one_fences_nobody_out(world: Make) -> None:
    """A node whose lease ran out in the round finds another one going on, and a place in the next."""
    made, a, b = pair(world)
    wait(made, 2 * DEAD, a)
    turns(a)
    state = b.step().state
    assert b.member.node not in {p.node for p in state.participants}
    assert names(turns(b, a, times=4)) == ["a", "b"]


def test_whoever_names_another_backend_is_refused(backend: tuple[str, str], world: Make) -> None:
    made = world(1, 2)
    other = RendezvousSettings() if backend[0] != "file" else RendezvousSettings(backend="etcd", endpoint="n1:2379")
    with pytest.raises(ConfigError, match=r"must name the same backend and endpoint"):
        open_agent_backend(made.paths, made.paths.root.name, other)
    with pytest.raises(ConfigError, match="the run was created with"):
        open_run(made.backend, "run", replace(made.settings, rendezvous=RendezvousSettings(last_call=3)), "x")


def test_who_knows_the_directory_finds_it(world: Make) -> None:
    made, a, _ = pair(world)
    with contextlib.closing(open_backend(RunPaths(made.paths.root))) as reader:
        assert read_state(reader) == a.step().state
        assert set(reader.leases()) == {node.member.node for node in made.nodes}
        assert set(reader.leases(node_name="b")) == {made.nodes[1].member.node}


def test_the_newest_state_is_shown_without_the_server(root: Path, tmp_path: Path) -> None:
    server = EtcdServer(tmp_path / "etcd")
    try:
        made, a, b = pair(partial(make_world, root, backend="etcd", endpoint=server.endpoint))
        b.set_state(NodeState.LEFT, 1)
        b.step()
        turns(a)
    finally:
        server.stop(signal.SIGKILL)
    status = read_status(RunReader(made.paths))
    assert (status.phase, status.round, [node.name for node in status.nodes]) == ("running", 2, ["a"])
    assert "server     does not answer" in "\n".join(lines(status, {}))


def test_a_slow_copy_does_not_hide_that_the_run_has_ended(root: Path) -> None:
    paths = RunPaths(root)
    paths.known.parent.mkdir(parents=True)
    copies = StateCopies(paths)
    copies.write({"version": 5, "value": {"phase": Phase.SUCCEEDED.value}})
    copies.write({"version": 4, "value": {"phase": Phase.RUNNING.value}})
    assert copies.read() == Version(5, {"phase": "succeeded"})
    copies.write({"version": 6, "value": {"phase": Phase.JOINING.value}})  # the run was resumed
    assert copies.read() == Version(6, {"phase": "joining"})


@pytest.mark.parametrize("name", ["etcd", "etcd-v2"])
def test_the_server_removes_a_run_that_has_ended(
    name: str, root: Path, etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_records, "ENDED_RUN_TTL", 1.0)
    made, a, b = pair(partial(make_world, root, backend=name, endpoint=etcd.endpoint))
    server = (connect if name == "etcd" else connect_v2)(etcd.endpoint, root.name, False)
    for node in (a, b):
        node.set_state(NodeState.SUCCEEDED, 1)
        node.step()
    ended = read_state(made.backend)
    made.backend.close()
    eventually(lambda: server.get("state") is None and not server.all("nodes/"))
    # An agent that comes now does not begin the run anew.
    with contextlib.closing(open_agent_backend(made.paths, root.name, made.settings.rendezvous)) as backend:
        late = open_run(backend, "run", made.settings, "late")
    assert late == ended and late.phase is Phase.SUCCEEDED
    assert read_status(RunReader(made.paths)).phase == "succeeded"


def test_a_resumed_run_is_not_removed(root: Path, etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_records, "ENDED_RUN_TTL", 1.0)
    made, _, _ = pair(partial(make_world, root, backend="etcd", endpoint=etcd.endpoint))
    server = connect(etcd.endpoint, root.name, False)
    leases = server.all("nodes/")
    close_run(made.backend, "user", "enough")
    reopened = reopen_run(made.backend, "user", made.settings)
    eventually(lambda: not server.all("nodes/"))
    assert leases and read_state(made.backend) == reopened


def test_a_run_that_the_server_has_removed_is_resumed(
    root: Path, etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_records, "ENDED_RUN_TTL", 1.0)
    made, _, _ = pair(partial(make_world, root, backend="etcd", endpoint=etcd.endpoint))
    server = connect(etcd.endpoint, root.name, False)
    close_run(made.backend, "user", "enough")
    eventually(lambda: server.get("state") is None)
    reopen_run(made.backend, "user", made.settings)
    c, d = made.node("c", **JOB), made.node("d", order=1, **JOB)
    turns(c, d)
    wait(made, 2 * DEAD, c, d)
    assert turns(c, d).round == 2, "each round has a new number"
