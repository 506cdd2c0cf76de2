"""An agent that gets a signal resolves it, informs its workers, and leaves or continues."""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hpcelastic.agent.agent import Agent
from hpcelastic.agent.agent_spec import AgentSpec
from hpcelastic.agent.batch_system import STOP_SIGNALS, NoBatchSystem
from hpcelastic.agent.guard_main import boottime
from hpcelastic.agent.settings import AgentSettings, Entrypoint, NetworkSettings, WorkerSettings
from hpcelastic.agent.signals import signal_handlers
from hpcelastic.backends.files import FileBackend
from hpcelastic.errors import StoreError
from hpcelastic.protocol.decide import checkpoint
from hpcelastic.protocol.events import ClockMeasured, Event, SignalReceived, WorkersStarted
from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, RestartSettings, Settings
from hpcelastic.protocol.state import Member, NodeState, Notice
from hpcelastic.rendezvous.run import find_run, read_state, steer_run
from hpcelastic.storage import files
from hpcelastic.storage.events import read_events
from hpcelastic.storage.paths import RunPaths
from tests.cli.shell import TIMEOUT, eventually

COMPLIES = """
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
SAVES = """
import os, signal, sys, time
here = os.environ["HPCELASTIC_RUN_DIR"]
def save(signum, frame):
    open(here + "/1.saves", "w").close()
    while not os.path.exists(here + "/finish"):
        time.sleep(0.01)
    open(here + "/1.ended", "w").close()
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
open(here + "/1.up", "w").close()
time.sleep(600)
"""
LEAVES = Notice("the time limit comes", 20.0, "limit")
SignalResolution = Callable[[], Notice | None]


class FakeBatchSystem(NoBatchSystem):
    """A batch system with the answers of a test."""

    def __init__(self, meaning: SignalResolution, query_delay: float = 0.0, repeats_signals: bool = True) -> None:
        super().__init__(20.0)
        self.query_delay, self.repeats_signals = query_delay, repeats_signals  # type: ignore[misc]  # of the class there
        self.queried: list[int] = []
        self._says = meaning

    def resolve_signal(self, signum: int) -> Notice | None:
        self.queried.append(signum)
        return self._says()


class SingleAgent:
    """The agent of a run on one node, in this process. It runs `COMPLIES`, or another ``script``."""

    def __init__(
        self,
        root: Path,
        batch_system: NoBatchSystem,
        saving: float = 0.0,
        *,
        script: str = "",
        workers: int = 1,
        forward: tuple[str, ...] = (),
    ) -> None:
        self.paths = RunPaths(root)
        for directory in (self.paths.register, self.paths.leases, self.paths.incidents):
            files.make_directory(directory)
        (root / "train.py").write_text(script or COMPLIES.format(saving=saving))
        times = RendezvousSettings(lease=2.0, margin=0.5, poll=0.05, last_call=0.0)
        settings = Settings(NodeRange(1, 1), times, RestartSettings(0))
        agent = AgentSettings(
            Entrypoint(script=str(root / "train.py")),
            workers=WorkerSettings(workers, preload=(), stop_grace=20.0, forward_signals=forward),
            network=NetworkSettings(notifications=False),
        )
        member = Member(f"n@0-{os.getpid():x}", NodeState.READY, 0, workers, "127.0.0.1", 0)
        self.backend = FileBackend(self.paths)
        found = find_run(self.backend, "r", settings, member.node, boottime)
        spec = AgentSpec(
            self.paths, self.backend, "r", settings, agent, member, found, {**os.environ, "PYTHONPATH": os.getcwd()},
            batch_system=batch_system,
        )  # fmt: skip
        self.reported: list[str] = []
        self.agent = Agent(spec, self.reported.append)

    def run(self, act: Callable[[], None]) -> int:
        """Return the exit status of the agent. ``act`` is called in another thread once the first worker runs."""
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
        """Whether the worker has ended by itself."""
        return (self.paths.root / f"{round}.ended").exists()

    def until_said(self, words: str) -> None:
        eventually(lambda: any(words in line for line in self.reported))


def send(signum: int) -> None:
    os.kill(os.getpid(), signum)


@pytest.mark.parametrize(
    ("signum", "status"),
    [(signal.SIGUSR1, 0), (signal.SIGUSR2, 0), (signal.SIGTERM, 143)],
    ids=["USR1", "USR2", "TERM"],
)
def test_a_node_that_must_leave_leaves_after_its_workers_have_saved(signum: int, status: int, tmp_path: Path) -> None:
    single = SingleAgent(tmp_path, FakeBatchSystem(lambda: LEAVES))
    assert single.run(lambda: send(signum)) == status
    assert single.ended(1)
    notice = single.agent.notice
    assert notice is not None and notice.requeue == "limit"
    assert notice.seconds < LEAVES.seconds, "what is left by now"


def test_a_signal_without_a_meaning_is_resolved_and_ignored(tmp_path: Path) -> None:
    fake_system = FakeBatchSystem(lambda: None)
    single = SingleAgent(tmp_path, fake_system)

    def ask(count: int) -> None:
        send(signal.SIGUSR2)
        eventually(lambda: len(fake_system.queried) == count)
        eventually(lambda: single.agent._signal_resolver.signum is None)

    def twice() -> None:
        ask(1)
        ask(2)
        single.finish()

    assert single.run(twice) == 0
    assert single.agent.notice is None
    assert read_state(single.backend).round == 1


@pytest.mark.parametrize(
    ("error", "words"),
    [(StoreError("the disk is full"), "the disk"), (ValueError("odd"), "internal error: ValueError")],
)
def test_after_a_failed_query_the_next_signal_is_resolved(error: Exception, words: str, tmp_path: Path) -> None:
    def fails() -> Notice | None:
        raise error

    answers: list[SignalResolution] = [lambda: LEAVES, fails]
    single = SingleAgent(tmp_path, FakeBatchSystem(lambda: answers.pop()()))

    def twice() -> None:
        send(signal.SIGUSR2)
        single.until_said(f"SIGUSR2: {words}")
        eventually(lambda: single.agent._signal_resolver.signum is None)
        send(signal.SIGTERM)

    assert single.run(twice) == 143
    assert single.ended(1)


def test_a_sigterm_is_resolved_during_the_query_for_a_user_signal(tmp_path: Path) -> None:
    goes_on = threading.Event()
    answers: list[SignalResolution] = [lambda: LEAVES, lambda: goes_on.wait(2 * TIMEOUT) and None]
    fake_system = FakeBatchSystem(lambda: answers.pop()())
    single = SingleAgent(tmp_path, fake_system)

    def both() -> None:
        send(signal.SIGUSR2)
        eventually(lambda: fake_system.queried == [signal.SIGUSR2])
        send(signal.SIGTERM)
        single.until_said("leaving the run")
        goes_on.set()

    assert single.run(both) == 143


def test_a_warning_before_the_handlers_is_resolved(tmp_path: Path) -> None:
    fake_system = FakeBatchSystem(lambda: LEAVES)
    single = SingleAgent(tmp_path, fake_system)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        # To this thread: another thread of the test runner does not block the signal and would be killed by it.
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
        assert single.agent.run() == 0
        assert signal.SIGUSR2 in signal.pthread_sigmask(signal.SIG_BLOCK, ()), "as it was"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert fake_system.queried == [signal.SIGUSR2]


def test_signals_that_were_ignored_at_the_start_stay_ignored(tmp_path: Path) -> None:
    fake_system = FakeBatchSystem(lambda: LEAVES)
    single = SingleAgent(tmp_path, fake_system)

    def act() -> None:
        for signum in STOP_SIGNALS:
            send(signum)
        single.finish()

    with signal_handlers(dict.fromkeys(STOP_SIGNALS, signal.SIG_IGN)):
        assert single.run(act) == 0
    assert fake_system.queried == []
    assert not any(isinstance(logged.event, SignalReceived) for logged in read_events(single.paths.events))


def test_slurms_second_sigterm_does_not_end_the_grace_period(tmp_path: Path) -> None:
    single = SingleAgent(tmp_path, FakeBatchSystem(lambda: LEAVES), saving=1.0)

    def twice() -> None:
        send(signal.SIGTERM)
        single.until_said("asking the workers")
        send(signal.SIGTERM)

    assert single.run(twice) == 143
    assert single.ended(1)


def test_a_users_second_interrupt_ends_the_grace_period(tmp_path: Path) -> None:
    single = SingleAgent(tmp_path, NoBatchSystem(600.0), saving=600.0)

    def twice() -> None:
        send(signal.SIGINT)
        single.until_said("asking the workers")
        send(signal.SIGINT)

    assert single.run(twice) == 130
    assert not single.ended(1)


def test_a_signal_that_is_forwarded_does_not_end_the_grace_period(tmp_path: Path) -> None:
    single = SingleAgent(tmp_path, NoBatchSystem(600.0), script=SAVES, forward=("SIGHUP",))

    def both() -> None:
        send(signal.SIGTERM)
        eventually((tmp_path / "1.saves").exists)
        send(signal.SIGHUP)
        eventually(lambda: signal.SIGHUP in single.agent._inbox.waiting())
        single.finish()

    assert single.run(both) == 143
    assert single.ended(1)


def test_other_agents_use_the_answer_of_the_first(tmp_path: Path) -> None:
    """The round ends for the checkpoint that all nodes were signalled for."""
    fake_system = FakeBatchSystem(lambda: None, query_delay=0.5)
    single = SingleAgent(tmp_path, fake_system)

    def act() -> None:
        send(signal.SIGUSR2)
        eventually(lambda: single.agent._signal_resolver.signum)
        steer_run(single.backend, "n9@0-ab", checkpoint)
        single.until_up(2)
        eventually(lambda: single.agent._signal_resolver.signum is None)
        single.finish()

    assert single.run(act) == 0
    assert fake_system.queried == []
    assert read_state(single.backend).round == 2


def test_the_first_agent_queries_for_any_end_of_the_round(tmp_path: Path) -> None:
    known = threading.Event()
    single = SingleAgent(tmp_path, FakeBatchSystem(lambda: LEAVES if known.wait(TIMEOUT) else None))

    def act() -> None:
        send(signal.SIGUSR2)
        eventually(lambda: single.agent._signal_resolver.signum)
        steer_run(single.backend, "n9@0-ab", checkpoint)
        single.until_up(2)
        known.set()
        single.until_said("leaving the run")

    assert single.run(act) == 0
    assert single.agent.notice is not None


def test_an_observer_gets_the_events_of_the_event_log(tmp_path: Path) -> None:
    observed: list[Event] = []
    single = SingleAgent(tmp_path, NoBatchSystem(1.0))
    spec = replace(single.agent._spec, observe=observed.append)
    single.agent = Agent(spec, single.reported.append)
    assert single.run(single.finish) == 0
    logged = [each.event for each in read_events(single.paths.events)]
    assert observed == [event for event in logged if not isinstance(event, ClockMeasured)]  # the log writes it itself
    (started,) = (event for event in observed if isinstance(event, WorkersStarted))
    assert (started.round, started.world_size, started.group_rank, started.group_world_size) == (1, 1, 0, 1)
    assert list(started.pids) == [0]
