"""Hypothesis looks for a sequence of faults and waits that breaks a promise, and shrinks it where there is one."""

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, RestartSettings, Settings
from tests.protocol.node import LEASE, MARGIN, POLL
from tests.protocol.simulation import Profile, Simulation

names = st.sampled_from(["n1", "n2", "n3", "n4"])


class Run(RuleBasedStateMachine):
    """A run of up to four nodes; the referee judges after each event, and peace must end the run."""

    world: Simulation

    @initialize(
        seed=st.integers(0, 999),
        size=st.integers(2, 3),
        least=st.integers(1, 2),
        room=st.integers(0, 2),
        restarts=st.integers(0, 2),
        last_call=st.sampled_from([0.0, 5.0]),
    )
    def create(self, seed: int, size: int, least: int, room: int, restarts: int, last_call: float) -> None:
        timings = RendezvousSettings(last_call=last_call, lease=LEASE, margin=MARGIN, poll=POLL)
        settings = Settings(NodeRange(least, least + room), timings, RestartSettings(restarts))
        self.world = Simulation(seed, Profile("found by hypothesis"), size, settings=settings)

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 3.0, LEASE, LEASE + MARGIN]))
    def wait(self, seconds: float) -> None:
        self.world.advance(self.world.now + seconds)

    @rule(name=names)
    def crash(self, name: str) -> None:
        self.world.crash(name)

    @rule(name=names)
    def kill(self, name: str) -> None:
        self.world.kill(name)

    @rule(name=names)
    def freeze(self, name: str) -> None:
        self.world.freeze(name)

    @rule(name=names)
    def cut_off(self, name: str) -> None:
        self.world.cut_off(name)

    @rule(name=names)
    def leave(self, name: str) -> None:
        self.world.leave(name)

    @rule(name=names)
    def come(self, name: str) -> None:
        self.world.come(name)

    @rule()
    def requeue(self) -> None:
        self.world.requeue()

    @rule()
    def close(self) -> None:
        self.world.close()

    @rule()
    def reopen(self) -> None:
        self.world.reopen()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()


TestRun = Run.TestCase
TestRun.settings = hypothesis_settings(
    max_examples=150, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
