"""Simulated runs with faults of every kind. A history that violates a property is reduced and printed."""

import os
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, RestartSettings, Settings
from hpcelastic.protocol.state import Phase
from tests.protocol.under_test import GUARD, NODE, Patch
from tests.simulation.faults import LEASE, MARGIN, POLL, PROFILES, Fault, Profile, Scenario, scenario
from tests.simulation.node import Node
from tests.simulation.referee import Violation
from tests.simulation.shrink import shrunk, story, to_text, violation_of
from tests.simulation.simulation import Simulation

SEEDS = range(20)
FOUND = {
    "a departure that a listing does not show yet": ("users", 8817),
    "a drained node that leaves after its grace period": ("warnings", 34683),
    "a request that an outdated read makes seem done": ("everything", 37110),
    "a drain whose end the user requests after that of the run": ("everything", 8000004473),
    "a writer that is no leader": ("hung disks, and no worker notices", 2720901312),
}
"""Seeds that have found a bug, in the protocol or in the referee, and their profiles."""

FRESH = 3
"""Number of histories of each profile that have a new seed in every test run."""


class Seed(UserWarning):
    """A warning that shows in pytest's summary which seeds were drawn, even if the test passes."""


def simulate(drawn: Scenario) -> Simulation:
    world = Simulation(drawn)
    world.run()
    return world


def keeps_all_promises(drawn: Scenario) -> None:
    if violation_of(drawn) is not None:
        smallest = shrunk(drawn)
        violation = violation_of(smallest)
        assert violation is not None
        pytest.fail(story(smallest, violation), pytrace=False)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_no_property_is_violated(profile: Profile) -> None:
    for seed in SEEDS:
        keeps_all_promises(scenario(seed, profile))


@pytest.mark.parametrize(("profile", "seed"), FOUND.values(), ids=FOUND)
def test_a_seed_that_found_a_bug_finds_none_now(profile: str, seed: int) -> None:
    (chosen,) = (each for each in PROFILES if each.name == profile)
    keeps_all_promises(scenario(seed, chosen))


def test_no_property_is_violated_with_a_fresh_seed() -> None:
    first = int.from_bytes(os.urandom(4), "big")
    command = f"python -m tests.simulation --first {first} --seeds {FRESH * len(PROFILES)}"
    warnings.warn(f"simulated with fresh seeds: {command}", Seed, stacklevel=1)
    for seed in range(first, first + FRESH * len(PROFILES)):
        keeps_all_promises(scenario(seed, PROFILES[seed % len(PROFILES)]))


def test_the_same_seed_gives_the_same_history() -> None:
    first, again, other = (simulate(scenario(seed, PROFILES[-1])).history for seed in (3, 3, 4))
    assert first == again != other


def test_the_same_seed_gives_the_same_history_in_another_process() -> None:
    text = (
        "from tests.simulation.test_simulation import *; "
        "print(hash_of([simulate(scenario(seed, PROFILES[-1])).history for seed in range(5)]))"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", text], env={**os.environ, "PYTHONHASHSEED": salt}, check=True, capture_output=True
        ).stdout
        for salt in ("1", "2")
    }
    assert len(hashes) == 1


def hash_of(histories: list[list[str]]) -> int:
    """Return a hash that is the same in every process, unlike `hash`."""
    return int.from_bytes(repr(histories).encode(), "big") % (2**61 - 1)


@pytest.mark.nightly
def test_every_kind_of_end_and_of_fault_is_reached() -> None:
    worlds = [simulate(scenario(seed, p)) for p in PROFILES for seed in range(12)]
    assert {world.state.phase for world in worlds} == {Phase.SUCCEEDED, Phase.FAILED, Phase.CLOSED}
    struck = sum((world.struck for world in worlds), Counter[str]())
    assert set(struck) == {kind for profile in PROFILES for kind in profile.faults}
    assert sum(world.referee.moves for world in worlds) > 100 < sum(world.referee.counted for world in worlds)


def three_nodes(least: int, max_nodes: int, restarts: int = 3) -> Settings:
    timings = RendezvousSettings(last_call=8.0, lease=LEASE, margin=MARGIN, poll=POLL)
    return Settings(NodeRange(least, max_nodes), timings, RestartSettings(restarts))


def scenario_of_three(seed: int, settings: Settings, *faults: Fault) -> Scenario:
    return Scenario(seed, Profile("by hand"), 3, settings, faults)


def test_a_violation_shows_the_scenario_the_history_and_how_to_repeat_it() -> None:
    world = Simulation(scenario_of_three(1, three_nodes(1, 3)))
    advance_to_round(world, 1)
    for who in range(3):
        world.strike(Fault(world.now, "kill", who))
    world.come = lambda fault: False  # type: ignore[method-assign]  # none comes back
    with pytest.raises(Violation, match=r"stuck in running, round 1") as caught:
        world.run()
    shown = story(world.scenario, caught.value)
    for part in ("NodeRange(min=1", "n1@0 comes", "n1@0 is killed", "--replay '" + to_text(world.scenario)[:10]):
        assert part in shown


@pytest.mark.parametrize("seed", range(10))
def test_without_faults_one_round_has_all_nodes(seed: int) -> None:
    world = simulate(scenario_of_three(seed, three_nodes(1, 3)))
    assert (world.state.round, len(world.state.participants)) == (1, 3)


@pytest.mark.parametrize("seed", range(10))
def test_a_lost_node_costs_one_round_and_no_budget(seed: int) -> None:
    world = Simulation(scenario_of_three(seed, three_nodes(1, 3, restarts=0)))
    advance_to_round(world, 1)
    world.strike(Fault(world.now, "kill"))
    world.run()
    assert (world.state.phase, world.state.round, world.state.spent) == (Phase.SUCCEEDED, 2, {"node": 1})
    assert [p.node for p in world.state.participants] == ["n2@0", "n3@0"]


@pytest.mark.parametrize("seed", range(10))
def test_a_standby_takes_the_place_of_a_lost_node(seed: int) -> None:
    world = Simulation(scenario_of_three(seed, three_nodes(2, 2)))
    advance_to_round(world, 1)
    lost = world.state.participants[0].name
    world.strike(Fault(world.now, "kill", int(lost[1:]) - 1))
    world.run()
    assert (world.state.phase, world.state.round) == (Phase.SUCCEEDED, 2)
    assert {p.name for p in world.state.participants} == {"n1", "n2", "n3"} - {lost}


HASTY = Patch(NODE, "and settled and now < lease.end:", "and True:")
"""An agent that starts workers on an observation of any age."""

FORGETFUL = Patch(GUARD, "if self._expired_at >= float(arguments[-1]):", "if False:")
"""A guard that uses the lease as it is now, although it had expired before the workers existed."""


def notified(node: Node) -> bool:
    """Return True if a notification that the node is in a round has arrived and is not read yet."""
    return node.has_unread_round


def about_to_start(node: Node) -> bool:
    return node.starting


def freeze_before_the_start(seed: int, moment: Callable[[Node], bool], *patches: Patch) -> None:
    """Freeze a node at that moment, until the others have lost it."""
    world = Simulation(scenario_of_three(seed, three_nodes(1, 3)), patches)
    try:
        while not (late := [node for node in world.nodes if moment(node)]):
            assert world.now < 60
            world.advance(world.now + 0.01)
        world.strike(Fault(world.now, "pause", int(late[0].member.name[1:]) - 1, lasts=2 * (LEASE + MARGIN)))
        world.advance(world.now + 2 * (LEASE + MARGIN))
        world.settle()
    finally:
        world.end_all_tasks()


MOMENTS = pytest.mark.parametrize(
    "moment", [notified, about_to_start], ids=["when it is notified", "when it starts workers"]
)


@MOMENTS
@pytest.mark.parametrize("patches", [(), (HASTY,)], ids=["agent and guard", "guard alone"])
def test_a_node_starts_no_workers_after_an_old_notification(
    patches: tuple[Patch, ...], moment: Callable[[Node], bool]
) -> None:
    for seed in range(25):
        freeze_before_the_start(seed, moment, *patches)


@pytest.mark.parametrize(
    ("patches", "moment"),
    [
        pytest.param((HASTY, FORGETFUL), notified, id="neither checks"),
        pytest.param((FORGETFUL,), about_to_start, id="only the agent checks, before it is stopped"),
    ],
)
def test_the_simulator_detects_workers_started_after_an_old_notification(
    patches: tuple[Patch, ...], moment: Callable[[Node], bool]
) -> None:
    with pytest.raises(Violation, match=r"workers of rounds \[1, 2\] run at the same time"):
        for seed in range(200):
            freeze_before_the_start(seed, moment, *patches)


def test_a_failing_scenario_is_reduced() -> None:
    last = [replace(scenario(seed, PROFILES[-1]), size=5) for seed in range(60)]
    failing = next(drawn for drawn in last if violation_of(drawn, (FORGETS_RUNNING,)) is not None)
    smallest = shrunk(failing, (FORGETS_RUNNING,))
    assert violation_of(smallest, (FORGETS_RUNNING,)) is not None
    assert smallest.size <= 4 and len(smallest.faults) <= 2


FORGETS_RUNNING = Patch("hpcelastic.protocol.decide", "    if busy:\n", "    if False:\n")


def advance_to_round(world: Simulation, round: int) -> None:
    """Advance until all members of the round have started their workers."""
    while world.state.round < round or sum(n.running == round for n in world.nodes) < len(world.state.participants):
        world.advance(world.now + 0.1)
