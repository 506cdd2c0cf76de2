"""Hundreds of simulated runs with faults of every kind; a run that breaks a promise prints its history."""

from collections.abc import Callable

import pytest

from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, RestartSettings, Settings
from hpcelastic.protocol.state import Phase
from tests.protocol.node import LEASE, MARGIN, POLL, Node, Outcome
from tests.protocol.referee import Violation
from tests.protocol.simulation import Profile, Simulation

PROFILES = [
    Profile("peace"),
    Profile("crashes", {"crash": 1}),
    Profile("losses", {"kill": 1, "come": 1.5}),
    Profile("coming and going", {"leave": 1, "come": 1.5, "crash": 0.3}, every=5),
    Profile("losses beside failures", {"kill": 1, "come": 2, "crash": 1, "leave": 0.7}),
    Profile("frozen nodes and hung disks", {"freeze": 1, "cut_off": 1, "crash": 0.5}),
    Profile("hung disks, and no worker notices", {"cut_off": 1, "kill": 0.3, "crash": 0.5}, echo=0.0),
    Profile("requeues", {"requeue": 1, "crash": 1, "come": 1}, every=15),
    Profile("users", {"close": 1, "reopen": 3, "crash": 3, "kill": 1}),
    Profile(
        "everything",
        {
            "crash": 2,
            "kill": 2,
            "come": 3,
            "leave": 1,
            "freeze": 1,
            "cut_off": 1,
            "requeue": 0.3,
            "close": 0.1,
            "reopen": 1,
        },
        every=5,
    ),
]
SEEDS = range(60)


def simulate(profile: Profile, seed: int) -> Simulation:
    world = Simulation(seed, profile, size=2 + seed % 5)
    world.run()
    return world


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_every_promise_is_kept(profile: Profile) -> None:
    for seed in SEEDS:
        simulate(profile, seed)


def test_the_same_seed_gives_the_same_history() -> None:
    first, again, other = (simulate(PROFILES[-1], seed).history for seed in (3, 3, 4))
    assert first == again != other


def test_every_kind_of_end_is_reached() -> None:
    ends = {simulate(p, seed).state.phase for p in PROFILES[-2:] for seed in SEEDS}
    assert ends == {Phase.SUCCEEDED, Phase.FAILED, Phase.CLOSED}


def test_a_violation_shows_the_history() -> None:
    world = Simulation(1, Profile("all nodes are lost"), settings=three_nodes(1, 3))
    advance_to_round(world, 1)
    for name in ("n1", "n2", "n3"):
        world.kill(name)
    world.come = lambda name=None: None  # type: ignore[method-assign]  # and none comes back
    with pytest.raises(Violation, match=r"(?s)stuck in running, round 1.*NodeRange\(min=1.*n1@0 comes.*n1@0 is killed"):
        world.run()


def three_nodes(least: int, most: int, restarts: int = 3) -> Settings:
    timings = RendezvousSettings(last_call=8.0, lease=LEASE, margin=MARGIN, poll=POLL)
    return Settings(NodeRange(least, most), timings, RestartSettings(restarts))


@pytest.mark.parametrize("seed", range(20))
def test_without_faults_one_round_takes_everyone_in(seed: int) -> None:
    world = Simulation(seed, Profile("peace"), settings=three_nodes(1, 3))
    world.run()
    assert (world.state.round, len(world.state.participants)) == (1, 3)


@pytest.mark.parametrize("seed", range(20))
def test_a_lost_node_costs_one_round_and_no_budget(seed: int) -> None:
    world = Simulation(seed, Profile("one loss"), settings=three_nodes(1, 3, restarts=0))
    advance_to_round(world, 1)
    world.kill("n1")
    world.run()
    assert (world.state.phase, world.state.round, world.state.spent) == (Phase.SUCCEEDED, 2, {"node": 1})
    assert [p.node for p in world.state.participants] == ["n2@0", "n3@0"]


@pytest.mark.parametrize("seed", range(20))
def test_a_standby_takes_the_place_of_a_lost_node(seed: int) -> None:
    world = Simulation(seed, Profile("one loss"), settings=three_nodes(2, 2))
    advance_to_round(world, 1)
    lost = world.state.participants[0].name
    world.kill(lost)
    world.run()
    assert (world.state.phase, world.state.round) == (Phase.SUCCEEDED, 2)
    assert {p.name for p in world.state.participants} == {"n1", "n2", "n3"} - {lost}


class Hasty(Node):
    """An agent that starts workers on news of any age."""

    def _may_start(self, outcome: Outcome) -> bool:
        return True


class Forgetful(Node):
    """A guard that looks at the lease as it is now, though it ran out before the workers came."""

    def _has_lapsed_since(self, lease_from: float) -> bool:
        return False


class HastyAndForgetful(Hasty, Forgetful):
    """Neither the agent nor the guard knows that the news is old."""


def told(node: Node) -> bool:
    """The news that the node is in the round is there, and not read."""
    return bool(node.inbox) and node.inbox[0].state.phase is Phase.RUNNING


def about_to_start(node: Node) -> bool:
    return node.starting


def freeze_before_the_start(seed: int, node: type[Node], moment: Callable[[Node], bool]) -> Simulation:
    """Freeze a node at that moment, until it has been lost."""
    world = Simulation(seed, Profile("a late start"), node=node, settings=three_nodes(1, 3))
    while not (late := [n for n in world.nodes if moment(n)]):
        world.advance(world.now + 0.01)
    late[0].frozen = True
    world.referee.disturbed_until[late[0].id] = float("inf")
    world.advance(world.now + 2 * (LEASE + MARGIN))
    world.settle()
    return world


MOMENTS = pytest.mark.parametrize("moment", [told, about_to_start], ids=["as it is told", "as it starts"])


@MOMENTS
@pytest.mark.parametrize("node", [Node, Hasty], ids=["agent and guard", "guard alone"])
def test_a_node_runs_no_workers_on_old_news(node: type[Node], moment: Callable[[Node], bool]) -> None:
    for seed in range(40):
        freeze_before_the_start(seed, node, moment)


@pytest.mark.parametrize(
    ("node", "moment"),
    [
        pytest.param(HastyAndForgetful, told, id="neither looks"),
        pytest.param(Forgetful, about_to_start, id="only the agent looks, before it is frozen"),
    ],
)
def test_the_simulator_catches_a_node_that_does(node: type[Node], moment: Callable[[Node], bool]) -> None:
    with pytest.raises(Violation, match=r"workers of rounds \[1, 2\] run at the same time"):
        for seed in range(300):
            freeze_before_the_start(seed, node, moment)


def advance_to_round(world: Simulation, round: int) -> None:
    """Until all members of the round have started their workers."""
    while world.state.round < round or sum(n.running == round for n in world.nodes) < len(world.state.participants):
        world.advance(world.now + 0.1)
