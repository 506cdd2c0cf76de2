"""An agent that is signalled asks what that means, tells its workers, and leaves, or goes on."""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hpcelastic.agent.agent import Agent, AgentSpec
from hpcelastic.agent.batch_system import STOP_SIGNALS, NoBatchSystem
from hpcelastic.agent.settings import AgentSettings, Entrypoint, NetworkSettings, WorkerSettings
from hpcelastic.agent.signals import signal_handlers
from hpcelastic.backends.files import FileBackend
from hpcelastic.errors import StoreError
from hpcelastic.protocol.decide import checkpoint
from hpcelastic.protocol.events import Event, SignalReceived, WorkersStarted
from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, RestartSettings, Settings
from hpcelastic.protocol.state import Member, NodeState, Notice
from hpcelastic.rendezvous.run import open_run, read_state, steer_run
from hpcelastic.storage import files
from hpcelastic.storage.events import read_events
from hpcelastic.storage.paths import RunPaths
from tests.cli.shell import TIMEOUT, eventually

HEEDS = """
import os, sys, time
from hpcelastic.training import should_stop
here = os.environ["HPCELASTIC_RUN_DIR"] + "/" + os.environ["HPCELASTIC_ROUND"]
should_stop()
open(here + ".up", "w").close()
while not should_stop() and not os.path.exists(os.path.dirname(here) + "/finish"):
    time.sleep(0.01)
time.sleep({saving})
open(here + ".ended", "w").close()
"""
LEAVES = Notice("the time limit comes", 20.0, "limit")
SignalResolution = Callable[[], Notice | None]


class Told(NoBatchSystem):
    """A batch system whose answers a test selects."""

    def __init__(self, meaning: SignalResolution, query_delay: float = 0.0, repeats_signals: bool = True) -> None:
        super().__init__(20.0)
        self.query_delay, self.repeats_signals = query_delay, repeats_signals  # type: ignore[misc]  # of the class there
        self.asked: list[int] = []
        self._says = meaning

    def resolve_signal(self, signum: int) -> Notice | None:
        self.asked.append(signum)
        return self._says()


class Lone:
    """The agent of a run on one node, in this process."""

    def __init__(self, root: Path, batch_system: NoBatchSystem, saving: float = 0.0) -> None:
        self.paths = RunPaths(root)
        for directory in (self.paths.register, self.paths.leases, self.paths.incidents):
            files.make_directory(directory)
        (root / "train.py").write_text(HEEDS.format(saving=saving))
        times = RendezvousSettings(lease=2.0, margin=0.5, poll=0.05, last_call=0.0)
        settings = Settings(NodeRange(1, 1), times, RestartSettings(0))
        workers = WorkerSettings(preload=(), stop_grace=20.0)
        agent = AgentSettings(
            Entrypoint(script=str(root / "train.py")), workers=workers, network=NetworkSettings(notifications=False)
        )
        member = Member(f"n@0-{os.getpid():x}", NodeState.READY, 0, 1, "127.0.0.1", 0)
        self.backend = FileBackend(self.paths)
        state = open_run(self.backend, "r", settings, member.node)
        spec = AgentSpec(
            self.paths, self.backend, "r", settings, agent, member, state, {**os.environ, "PYTHONPATH": os.getcwd()},
            batch_system=batch_system,
        )  # fmt: skip
        self.said: list[str] = []
        self.agent = Agent(spec, self.said.append)

    def run(self, act: Callable[[], None]) -> int:
        """The exit status of the agent; ``act`` is called in another thread once the first worker is up."""
        failures: list[BaseException] = []

        def play() -> None:
            try:
                self.until_up(1)
                act()
            except BaseException as failure:
                failures.append(failure)
                self.finish()

        thread = threading.Thread(target=play)
        thread.start()
        try:
            return self.agent.run()
        finally:
            thread.join()
            assert not failures, failures

    def until_up(self, round: int) -> None:
        eventually((self.paths.root / f"{round}.up").exists)

    def finish(self) -> None:
        (self.paths.root / "finish").touch()

    def ended(self, round: int) -> bool:
        """Whether the worker has come to its end by itself."""
        return (self.paths.root / f"{round}.ended").exists()

    def until_said(self, words: str) -> None:
        eventually(lambda: any(words in line for line in self.said))


def send(signum: int) -> None:
    os.kill(os.getpid(), signum)


@pytest.mark.parametrize(
    ("signum", "status"),
    [(signal.SIGUSR1, 0), (signal.SIGUSR2, 0), (signal.SIGTERM, 143)],
    ids=["USR1", "USR2", "TERM"],
)
def test_a_node_that_must_go_leaves_once_its_workers_have_saved(signum: int, status: int, tmp_path: Path) -> None:
    lone = Lone(tmp_path, Told(lambda: LEAVES))
    assert lone.run(lambda: send(signum)) == status
    assert lone.ended(1)
    notice = lone.agent.notice
    assert notice is not None and notice.requeue == "limit"
    assert notice.seconds < LEAVES.seconds, "what is left by now"


def test_a_signal_that_means_nothing_is_asked_about_and_forgotten(tmp_path: Path) -> None:
    told = Told(lambda: None)
    lone = Lone(tmp_path, told)

    def ask(count: int) -> None:
        send(signal.SIGUSR2)
        eventually(lambda: len(told.asked) == count)
        eventually(lambda: lone.agent._signal_resolver.signum is None)

    def twice() -> None:
        ask(1)
        ask(2)
        lone.finish()

    assert lone.run(twice) == 0
    assert lone.agent.notice is None
    assert read_state(lone.backend).round == 1


def test_a_question_that_fails_leaves_the_next_signal_heard(tmp_path: Path) -> None:
    answers: list[SignalResolution] = [lambda: LEAVES, fails]
    lone = Lone(tmp_path, Told(lambda: answers.pop()()))

    def twice() -> None:
        send(signal.SIGUSR2)
        lone.until_said("SIGUSR2: the disk is full")
        eventually(lambda: lone.agent._signal_resolver.signum is None)
        send(signal.SIGTERM)

    assert lone.run(twice) == 143
    assert lone.ended(1)


def fails() -> Notice | None:
    raise StoreError("the disk is full")


def test_a_sigterm_is_asked_about_while_a_user_signal_is(tmp_path: Path) -> None:
    goes_on = threading.Event()
    answers: list[SignalResolution] = [lambda: LEAVES, lambda: goes_on.wait(2 * TIMEOUT) and None]
    told = Told(lambda: answers.pop()())
    lone = Lone(tmp_path, told)

    def both() -> None:
        send(signal.SIGUSR2)
        eventually(lambda: told.asked == [signal.SIGUSR2])
        send(signal.SIGTERM)
        lone.until_said("leaving the run")
        goes_on.set()

    assert lone.run(both) == 143


def test_a_warning_that_came_before_the_agent_had_handlers_is_asked_about(tmp_path: Path) -> None:
    told = Told(lambda: LEAVES)
    lone = Lone(tmp_path, told)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        # To this thread: another one, of the test runner, does not block the signal and would die of it.
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
        assert lone.agent.run() == 0
        assert signal.SIGUSR2 in signal.pthread_sigmask(signal.SIG_BLOCK, ()), "as it was"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert told.asked == [signal.SIGUSR2]


def test_signals_that_were_ignored_at_the_start_stay_ignored(tmp_path: Path) -> None:
    told = Told(lambda: LEAVES)
    lone = Lone(tmp_path, told)

    def act() -> None:
        for signum in STOP_SIGNALS:
            send(signum)
        lone.finish()

    with signal_handlers(dict.fromkeys(STOP_SIGNALS, signal.SIG_IGN)):
        assert lone.run(act) == 0
    assert told.asked == []
    assert not any(isinstance(logged.event, SignalReceived) for logged in read_events(lone.paths.events))


def test_slurms_second_sigterm_takes_no_grace_away(tmp_path: Path) -> None:
    lone = Lone(tmp_path, Told(lambda: LEAVES), saving=1.0)

    def twice() -> None:
        send(signal.SIGTERM)
        lone.until_said("asking the workers")
        send(signal.SIGTERM)

    assert lone.run(twice) == 143
    assert lone.ended(1)


def test_a_persons_second_interrupt_does(tmp_path: Path) -> None:
    lone = Lone(tmp_path, NoBatchSystem(600.0), saving=600.0)

    def twice() -> None:
        send(signal.SIGINT)
        lone.until_said("asking the workers")
        send(signal.SIGINT)

    assert lone.run(twice) == 130
    assert not lone.ended(1)


def test_whoever_is_not_first_hears_from_others_what_a_user_signal_means(tmp_path: Path) -> None:
    """The round ends for the checkpoint that all were signalled for."""
    told = Told(lambda: None, query_delay=0.5)
    lone = Lone(tmp_path, told)

    def act() -> None:
        send(signal.SIGUSR2)
        eventually(lambda: lone.agent._signal_resolver.signum)
        steer_run(lone.backend, "n9@0-ab", checkpoint)
        lone.until_up(2)
        eventually(lambda: lone.agent._signal_resolver.signum is None)
        lone.finish()

    assert lone.run(act) == 0
    assert told.asked == []
    assert read_state(lone.backend).round == 2


def test_who_is_first_asks_whatever_the_round_ends_for(tmp_path: Path) -> None:
    known = threading.Event()
    lone = Lone(tmp_path, Told(lambda: LEAVES if known.wait(TIMEOUT) else None))

    def act() -> None:
        send(signal.SIGUSR2)
        eventually(lambda: lone.agent._signal_resolver.signum)
        steer_run(lone.backend, "n9@0-ab", checkpoint)
        lone.until_up(2)
        known.set()
        lone.until_said("leaving the run")

    assert lone.run(act) == 0
    assert lone.agent.notice is not None


def test_who_observes_the_agent_is_told_what_the_event_log_is(tmp_path: Path) -> None:
    told: list[Event] = []
    lone = Lone(tmp_path, NoBatchSystem(1.0))
    spec = replace(lone.agent._spec, observe=told.append)
    lone.agent = Agent(spec, lone.said.append)
    assert lone.run(lone.finish) == 0
    assert told == [logged.event for logged in read_events(lone.paths.events)]
    (started,) = (event for event in told if isinstance(event, WorkersStarted))
    assert (started.round, started.world_size, started.group_rank, started.group_world_size) == (1, 1, 0, 1)
    assert list(started.pids) == [0]
