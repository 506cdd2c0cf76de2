"""The seat of a process that stays for the next round. The test acts as the agent."""

import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.ipc.worker_channel import Park, Parked, Resume, WorkerChannel
from hpcelastic.training import rounds
from hpcelastic.training.context import context

TIMEOUT = 60.0


class Groups:
    """The process groups of a process that has none. Each attempt to end their collectives fails with ``error``."""

    error: Exception | None = None

    def end_collectives(self, store_port: int) -> None:
        if self.error is not None:
            raise self.error

    def destroy(self, *, failed: bool) -> None: ...


class Agent:
    """The agent of this process, whose seat is made without its effects on the whole process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        page = ControlPage.make(1)
        page.grant(0, 1)
        for name, value in {"CONTROL_PAGE": page.name, "ROUND": "1", "LOCAL_RANK": "0"}.items():
            monkeypatch.setenv(f"HPCELASTIC_{name}", value)
        monkeypatch.setattr(rounds, "ProcessGroups", Groups)
        monkeypatch.setattr(rounds, "kept_wrappers", list)
        monkeypatch.setattr(rounds, "leave_errors_to_agent", lambda: None)
        monkeypatch.setattr(rounds, "revoke_token", lambda keep: None)
        monkeypatch.setattr(rounds.gc, "freeze", lambda: None)
        monkeypatch.setattr(rounds.Seat, "_guard_optimizer_steps", lambda seat: None)
        monkeypatch.setattr(rounds, "_INTERRUPT_DELAY", 0.01)
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel = WorkerChannel(there)
        self.seat = rounds.Seat(WorkerChannel(here), page)

    def begin_next_round(self) -> None:
        self.channel.send(Park(1))
        while self.channel.receive(wait=True) != (Parked(1), []):
            pass
        self.resume(1, 2)

    def resume(self, *fds: int) -> None:
        assert self.channel.send(Resume(2, {"HPCELASTIC_ROUND": "2"}), fds)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    before = signal.getsignal(rounds._INTERRUPT_SIGNAL)
    made = Agent(monkeypatch)
    yield made
    made.channel.close()
    made.seat._listener.join(TIMEOUT)
    signal.signal(rounds._INTERRUPT_SIGNAL, before)


def test_a_round_ends_although_its_collectives_cannot_be_ended(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has too many open files, for example."""
    monkeypatch.setattr(Groups, "error", OSError(24, "Too many open files"))
    calls: list[int] = []
    acts = threading.Thread(target=agent.begin_next_round)

    def body() -> int:
        calls.append(context().round)
        if len(calls) == 1:
            acts.start()
            signal.sigtimedwait([], TIMEOUT)  # until the signal
        return len(calls)

    assert agent.seat.run(body) == 2 and calls == [1, 2]
    acts.join(TIMEOUT)


@pytest.mark.parametrize("fds", [(), (1,)])
def test_without_its_output_a_process_cannot_be_resumed(agent: Agent, fds: tuple[int, ...]) -> None:
    """The kernel drops descriptors that would be too many for the process."""
    agent.channel.send(Park(1))
    agent.resume(*fds)
    with pytest.raises(RuntimeError, match="cannot take part in another round") as error:
        agent.seat.run(lambda: signal.sigtimedwait([], TIMEOUT))
    assert "the descriptors of the output have not arrived" in str(error.value.__cause__)


def test_a_process_that_has_no_further_round_ends(agent: Agent) -> None:
    agent.channel.send(Park(1))
    agent.channel.close()
    with pytest.raises(SystemExit) as end:
        agent.seat.run(lambda: signal.sigtimedwait([], TIMEOUT))
    assert end.value.code == 0
