"""Hypothesis searches for a sequence of faults and waits that violates a property, and reduces it."""

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, RestartSettings, Settings
from tests.simulation.faults import ALL, LEASE, MARGIN, POLL, Fault, Profile, Scenario
from tests.simulation.filesystem import Traits
from tests.simulation.simulation import Simulation

KINDS = ["crash", "kill", "kill_agent", "freeze", "pause", "cut_off", "leave", "come", "flaky", "slow", "partition"]
RARE = ["requeue", "close", "reopen", "full"]


class Run(RuleBasedStateMachine):
    """A run of up to four nodes. The referee checks after each event. Without more faults the run must end."""

    world: Simulation

    @initialize(
        seed=st.integers(0, 999),
        size=st.integers(2, 3),
        least=st.integers(1, 2),
        room=st.integers(0, 2),
        restarts=st.integers(0, 2),
        last_call=st.sampled_from([0.0, 5.0]),
        traits=st.sampled_from(ALL),
    )
    def create(
        self, seed: int, size: int, least: int, room: int, restarts: int, last_call: float, traits: Traits
    ) -> None:
        timings = RendezvousSettings(last_call=last_call, lease=LEASE, margin=MARGIN, poll=POLL)
        settings = Settings(NodeRange(least, least + room), timings, RestartSettings(restarts))
        self.world = Simulation(Scenario(seed, Profile("found by hypothesis"), size, settings, traits=traits))

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 3.0, LEASE, LEASE + MARGIN]))
    def wait(self, seconds: float) -> None:
        self.world.advance(self.world.now + seconds)

    @rule(kind=st.sampled_from(KINDS), who=st.integers(0, 3), operations=st.sampled_from([0, 0, 1, 3, 10]))
    def strike(self, kind: str, who: int, operations: int) -> None:
        self.world.strike(Fault(self.world.now, kind, who, lasts=13.0, operations=operations))

    @rule(kind=st.sampled_from(RARE))
    def strike_all(self, kind: str) -> None:
        self.world.strike(Fault(self.world.now, kind, lasts=13.0))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.world.settle()
            finally:
                self.world.end_all_tasks()


TestRun = Run.TestCase
TestRun.settings = hypothesis_settings(max_examples=100, stateful_step_count=40, derandomize=True, database=None)
