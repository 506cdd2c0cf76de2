"""The leases as one node has read them last."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from hpcelastic.protocol.settings import NodeRange, Settings
from hpcelastic.protocol.state import Member, NodeState, Participant, Phase, Seen, State
from hpcelastic.rendezvous.observed_leases import ObservedLeases

SETTINGS = Settings(NodeRange(1, 9))


def member(name: str, node_state: NodeState = NodeState.READY) -> Member:
    return Member(f"{name}@0-a", node_state, 0, 1, "10.0.0.1", 4000, order=ord(name))


def running(*names: str) -> State:
    participants = tuple(Participant(f"{name}@0-a", 1, "10.0.0.1", 4000) for name in names)
    return State("run", SETTINGS, Phase.RUNNING, 1, participants)


class Observer:
    """An observer of the leases that a test sets."""

    def __init__(self) -> None:
        self.seen: Mapping[str, Seen] = {}

    def observe(self, expected: object, *, complete: bool) -> Mapping[str, Seen]:
        return self.seen

    def admit(self, nodes: object) -> None: ...

    def limit(self) -> float:
        return 15.0


def test_the_leaders_change_with_the_state_with_the_leases_and_with_the_own_lease() -> None:
    observer, backend = Observer(), SimpleNamespace(observer=lambda *_: observer)
    known: Any = SimpleNamespace(state=State("run", SETTINGS), number=0)
    lease: Any = SimpleNamespace(published=member("c"))
    leases = ObservedLeases(backend, SETTINGS.rendezvous, lambda: 0.0, known, lease)  # type: ignore[arg-type]  # a fake

    def found() -> str:
        return "".join(leader.node[0] for leader in leases.leaders())

    assert found() == "", "no other node is known"
    observer.seen = {f"{name}@0-a": Seen(member(name), alive=True) for name in "abde"}
    leases.look()
    assert found() == found() == "abc", "the first ready nodes"
    known.state = running("d", "c", "e")
    assert found() == "dce", "the members of the round"
    lease.published = member("c", NodeState.LEFT)
    assert found() == "de"
    observer.seen = {**observer.seen, "d@0-a": Seen(member("d"), alive=False)}
    leases.look()
    assert found() == "e"
