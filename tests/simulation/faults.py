"""The faults of a simulated run, as data. They are drawn in advance from the seed, so that a history can be reduced.

A history depends only on its `Scenario` and on the code under test. Faults and settings use one stream of random
numbers and the simulated delays another one, so the removal of a fault does not change the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal

from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, RestartSettings, Settings
from tests.simulation.filesystem import Traits

LEASE, MARGIN, POLL = 10.0, 2.0, 2.0
STALENESS = 1.5
"""Maximum delay in seconds until a reader sees a file's new content."""

LATENESS = 0.95
"""Maximum delay of a listing. The sum of the delays of leases and register must stay below MARGIN."""


@dataclass(frozen=True)
class Fault:
    """One fault, or another event from outside the run."""

    at: float
    """Seconds since the start of the run."""

    kind: str
    """Name of a method of `Simulation`."""

    who: int = 0
    """Index of the node in the list of names. If the fault cannot happen to this node, it happens to the next one."""

    lasts: float = 0.0
    operations: int = 0
    """The number of the node's operation on the filesystem in whose middle the fault happens; 0 for at once."""

    knowing: bool = False
    """A node that returns knows that its previous incarnations are dead. ``operations`` are those of its workers."""

    def __str__(self) -> str:
        parts = [f"at {self.at:.1f} s {self.kind} n{self.who + 1}"]
        parts += [f"for {self.lasts:.1f} s"] * bool(self.lasts) + [f"in operation {self.operations}"] * bool(
            self.operations
        )
        return " ".join(parts)


@dataclass(frozen=True)
class Profile:
    """Kinds of faults, their rates, and kinds of filesystems."""

    name: str
    faults: Mapping[str, float] = field(default_factory=dict)
    """Weights of the kinds."""

    traits: tuple[Traits, ...] = (Traits(),)
    """One of them is drawn."""

    every: float = 6.0
    """Mean number of seconds between two faults."""

    until: float = 40.0
    """Time of the last fault."""

    echo: float = 0.7
    """Probability that a worker fails because a peer is gone. Otherwise it hangs until it is stopped."""

    poll: float = POLL
    """Seconds between two turns of a rendezvous. The simulation is slower if there are more turns."""

    last_calls: tuple[float, ...] = (0.0, 3.0, 8.0)
    """One of them is drawn, in seconds."""

    losses: tuple[float, ...] = (0.0, 0.0, 0.3, 1.0)
    """Fraction of lost messages between nodes; one of them is drawn."""

    needs_all: bool = False
    """Whether a round needs all nodes with which the run begins."""

    publishes: bool = False
    """Whether workers publish with their token."""

    counts: bool = False
    """Whether workers count in a key-value store."""

    multiple: int = 1
    """The number of nodes of a round is a multiple of it."""

    within: Literal["switch", "block"] | None = None
    """Whether each group of so many nodes is under one switch. There are two switches then."""

    parks: bool = False
    """Whether workers can be parked at the end of a round."""

    starts_early: bool = False
    """Whether lost workers are started anew outside a round, while the others continue without them."""

    changes_leases: bool = False
    """Whether nodes change the durations of their leases."""

    final: bool = False
    """Whether an agent whose workers have succeeded starts none again and may end at once, like torch's agents."""


@dataclass(frozen=True)
class Scenario:
    """The complete input of a history. Equal scenarios have equal histories."""

    seed: int
    profile: Profile
    size: int
    settings: Settings
    faults: tuple[Fault, ...] = ()
    job_known: bool = True
    traits: Traits = Traits()  # noqa: RUF009  # frozen
    loss: float = 1.0
    """Fraction of lost messages between nodes; with 1 the network cannot be used."""


def scenario(seed: int, profile: Profile, size: int | None = None) -> Scenario:
    """Draw a scenario from the seed: 3 to 8 nodes, small runs more often than large ones."""
    random = Random(f"{seed}/{profile.name}")
    drawn = random.choice([3, 3, 3, 4, 4, 5, 6, 8])
    size = size or drawn
    settings = _settings(random, size, profile)
    known, traits = random.random() < 0.7, random.choice(profile.traits)
    loss = random.choice(profile.losses)
    return Scenario(seed, profile, size, settings, _faults(random, profile, size), known, traits, loss)


def without(scenario: Scenario, indexes: set[int]) -> Scenario:
    """Return the scenario without these faults."""
    return replace(scenario, faults=tuple(f for i, f in enumerate(scenario.faults) if i not in indexes))


def _settings(random: Random, size: int, profile: Profile) -> Settings:
    least = size if profile.needs_all else random.randint(1, size)
    most, multiple = random.randint(least, size + 1), profile.multiple
    least = multiple if profile.within else max(multiple, least - least % multiple)
    nodes = NodeRange(least, max(least, most - most % multiple), multiple=multiple, within=profile.within)
    last_call = random.choice(profile.last_calls)
    grace = random.choice([0.0, 5.0, 20.0])
    timings = RendezvousSettings(
        last_call=last_call, lease=LEASE, margin=MARGIN, poll=profile.poll, checkpoint_grace=grace
    )
    return Settings(nodes, timings, RestartSettings(random.randint(0, 3)))


def _faults(random: Random, profile: Profile, size: int) -> tuple[Fault, ...]:
    found, at = [], random.expovariate(1 / profile.every)
    while profile.faults and at < profile.until:
        kind = random.choices([*profile.faults], [*profile.faults.values()])[0]
        operations = random.choice([0, random.randint(1, 30)])
        lasts = random.choice([random.uniform(1, 20), random.uniform(LEASE - 2, LEASE + 2 * MARGIN)])
        found.append(Fault(at, kind, random.randrange(size + 1), lasts, operations, random.random() < 0.5))
        at += random.expovariate(1 / profile.every)
    return tuple(found)


QUICK = Traits()
NFS = Traits(staleness=STALENESS, negative=30.0)
GLUSTER = Traits(staleness=STALENESS, listing=0.5, stale_handles=0.5)
LOCAL_LOCKS = Traits(staleness=STALENESS, locks="local")
NO_LOCKS = Traits(staleness=STALENESS, locks="absent", pace=0.2)
BROKEN_LOCKS = Traits(staleness=STALENESS, listing=1.0, locks="never")
KEPT_LOCKS = Traits(staleness=STALENESS, locks="kept")
NO_LINKS = Traits(staleness=STALENESS, links="symbolic")
LATE_LISTINGS = Traits(staleness=STALENESS, listing=LATENESS)
ALL = (QUICK, NFS, GLUSTER, LOCAL_LOCKS, NO_LOCKS, BROKEN_LOCKS, KEPT_LOCKS, NO_LINKS)

PROFILES = (
    Profile("peace", traits=ALL, publishes=True, counts=True),
    Profile("crashes", {"crash": 1, "partition": 0.5}, traits=ALL),
    Profile("losses", {"kill": 1, "kill_agent": 0.5, "come": 1.5}, traits=ALL),
    Profile(
        "warnings", {"leave": 1, "drain": 1, "scale": 1, "come": 2, "crash": 0.5, "kill": 0.5}, traits=ALL, every=4
    ),
    Profile("coming and going", {"leave": 1, "come": 1.5, "crash": 0.3}, traits=ALL, every=5),
    Profile("long waits", {"kill": 2, "come": 1}, traits=ALL, every=6, until=60.0, needs_all=True),
    Profile("losses beside failures", {"kill": 1, "come": 2, "crash": 1, "leave": 0.7}, traits=ALL),
    Profile("frozen nodes and hung disks", {"freeze": 1, "pause": 1, "cut_off": 1, "crash": 0.5}, traits=ALL),
    Profile("hung disks, and no worker notices", {"cut_off": 1, "kill": 0.3, "crash": 0.5}, traits=ALL, echo=0.0),
    Profile(
        "late renewals",
        {"miss_the_end": 1},
        (LATE_LISTINGS,),
        every=12,
        until=30.0,
        echo=0.0,
        poll=0.5,
        last_calls=(0.0,),
        losses=(1.0,),
    ),
    Profile("requeues", {"requeue": 1, "crash": 1, "come": 1}, traits=ALL, every=12),
    Profile("users", {"close": 1, "reopen": 4, "crash": 3, "kill": 1, "cut_off": 1, "pause": 1}, traits=ALL, every=3),
    Profile("errors", {"flaky": 3, "full": 0.5, "slow": 1, "crash": 1, "kill": 0.5, "come": 1}, traits=ALL),
    Profile(
        "publishers", {"oversleep": 3, "freeze": 1, "come": 1, "cut_off": 1, "flaky": 1}, (NFS, GLUSTER), publishes=True
    ),
    Profile("counters", {"flaky": 1, "kill": 1, "come": 2, "crash": 1, "freeze": 2}, ALL, counts=True),
    Profile("agents of torch", {"kill": 1, "come": 2, "crash": 1, "scale": 1, "cut_off": 0.5}, ALL, final=True),
    Profile(
        "groups", {"kill": 1, "come": 2.5, "crash": 0.5, "leave": 0.5, "scale": 0.7, "reopen": 0.5}, ALL, multiple=2
    ),
    Profile(
        "groups under one switch",
        {"kill": 1, "come": 2.5, "crash": 0.5, "leave": 0.5, "scale": 0.7, "cut_off": 0.5},
        ALL,
        every=4,
        multiple=2,
        within="switch",
    ),
    Profile(
        "changing leases",
        {"cut_off": 1, "freeze": 1, "pause": 1, "kill": 0.5, "come": 1, "crash": 0.3},
        ALL,
        echo=0.2,
        changes_leases=True,
    ),
    Profile(
        "parked workers",
        {"kill": 1, "come": 2, "crash": 1, "leave": 0.7, "drain": 0.5, "cut_off": 1, "pause": 0.5, "kill_agent": 0.3},
        ALL,
        every=4,
        publishes=True,
        parks=True,
    ),
    Profile(
        "early workers",
        {"kill": 1, "come": 2, "crash": 3, "leave": 0.5, "drain": 0.3, "cut_off": 0.7, "pause": 0.5, "scale": 0.3},
        ALL,
        every=4,
        parks=True,
        starts_early=True,
    ),
    Profile(
        "everything",
        {
            "crash": 2,
            "kill": 2,
            "kill_agent": 1,
            "come": 3,
            "leave": 1,
            "drain": 0.5,
            "scale": 0.5,
            "freeze": 1,
            "pause": 1,
            "cut_off": 1,
            "partition": 0.5,
            "flaky": 1,
            "slow": 0.5,
            "full": 0.2,
            "requeue": 0.3,
            "close": 0.1,
            "reopen": 1,
        },
        traits=ALL,
        every=4,
        publishes=True,
    ),
)
