"""The lives of agents that died, although no log names them: each ends once, and is nobody's time afterwards."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from hpcelastic.accounting import Account, Category, Journal, account, fold
from hpcelastic.accounting.journal import SECOND
from hpcelastic.accounting.segments import lives_of
from hpcelastic.protocol.state import Cause, Phase

from .logs import Node, decided, journal, micros
from .test_account import seconds

EXPIRY = 30.0


def told(found: Journal, renewed: Mapping[str, float]) -> Journal:
    """Return a journal with the times of the last renewals."""
    renewals = {node: micros(time) for node, time in renewed.items()}
    return replace(found, renewed=renewals, expiry=round(EXPIRY * SECOND))


def lives(found: Journal) -> dict[str, tuple[float, float]]:
    """Return the beginning and the end of each agent's life, in seconds."""
    return {
        life.log.node: ((life.begin - micros(0.0)) / SECOND, (life.end - micros(0.0)) / SECOND)
        for life in lives_of(found)
    }


def trained(nodes: list[Node], job: str = "") -> None:
    """Let nodes train in round 1 from 6 s on."""
    for node in nodes:
        node.start(2.0, launched=1.0, job=job, nodes=4 if job else 0)
        node.state(3.0, Phase.RUNNING, 1)
        node.workers(4.0, 1)


def two_of_four_die() -> list[Node]:
    """Return four nodes. The last two die at 58 s, and the decision at 60 s names one of them."""
    nodes = [Node(f"n{i}") for i in range(4)]
    trained(nodes)
    decided(nodes[0], 60.0, Phase.JOINING, 1, lost="n2@0-a", silence=3.0)
    for node in nodes[:2]:
        node.state(60.0, Phase.JOINING, 1, cause=Cause.NODE, lost="n2@0-a")
        node.train(60.0, 1, steps=54, before=0, first_step_at=6.0, last_step_at=60.0)
        node.park(60.0, 1)
        node.state(62.0, Phase.RUNNING, 2)
        node.workers(62.0, 2)
        node.train(1062.0, 2, steps=1000, before=54, first_step_at=62.0, last_step_at=1062.0)
    return nodes


def test_a_node_that_dies_with_the_lost_one_ends_at_its_last_renewal() -> None:
    found = told(
        journal(*two_of_four_die(), now=1062.0, last_sign=1062.0),
        {"n0@0-a": 1061.0, "n1@0-a": 1060.0, "n2@0-a": 57.0, "n3@0-a": 58.0},
    )
    assert lives(found) == {"n0@0-a": (1, 1062), "n1@0-a": (1, 1062), "n2@0-a": (1, 60), "n3@0-a": (1, 58)}
    assert account(found).total == (2 * 1061 + 59 + 57) * SECOND
    assert seconds(account(found))["useful"] == 2 * 54 + 54 + 52 + 2 * 1000
    assert "unknown" not in seconds(account(found))


def test_an_agent_is_alive_until_its_lease_expires() -> None:
    found = journal(*two_of_four_die(), now=1062.0, last_sign=1062.0)
    assert lives(told(found, {"n3@0-a": 1062.0 - EXPIRY}))["n3@0-a"] == (1, 1062)
    assert lives(told(found, {"n3@0-a": 1062.0 - EXPIRY - 1.0}))["n3@0-a"] == (1, 1062 - EXPIRY - 1)
    assert lives(found)["n3@0-a"] == (1, 1062), "nothing is known of its lease"


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("leases", [False, True])
def test_a_job_that_is_killed_and_requeued_has_its_nodes_once(final: bool, leases: bool) -> None:
    """All four agents are killed at 60 s. The job starts again at 100 s, and one of the nodes is named as lost."""
    old = [Node(f"n{i}") for i in range(4)]
    trained(old, "77.0")
    new = [Node(f"n{i + 1}", incarnation="1-b") for i in range(4)]
    for node in new:
        node.start(102.0, launched=101.0, job="77.1", nodes=4, job_start=micros(100.0) / SECOND)
        node.version = 1
    decided(new[0], 103.0, Phase.JOINING, 1, lost="n0@0-a")
    for node in new:
        node.state(103.0, Phase.JOINING, 1, cause=Cause.NODE, lost="n0@0-a")
        node.state(104.0, Phase.RUNNING, 2)
        node.workers(104.0, 2)
        node.train(1000.0, 2, steps=900, before=0, first_step_at=104.0, last_step_at=1000.0)
        if final:
            node.state(1000.0, Phase.SUCCEEDED, 2)
            node.end(1000.0)
    now = None if final else 1000.0
    found = journal(*old, *new, jobs={"77": 0.0}, now=now, last_sign=now)
    if leases:
        found = told(found, {node.id: 60.0 for node in old})
    known = lives(found)
    assert [known[node.id] for node in new] == [(100, 1000)] * 4
    # The decision counts for n0. It comes after the new start of the job, at which its time is over.
    end = 60.0 if leases else 4.0 if final else 100.0
    assert [known[node.id] for node in old] == [(1, 100), *[(1, end)] * 3]
    assert account(found).total == 4 * 1000 * SECOND
    assert seconds(account(found))["queue"] == 4 * 1 + 3 * (100 - end)


def test_a_node_has_one_agent_at_a_time() -> None:
    first, second = Node("n0"), Node("n1")
    trained([first, second])
    again = Node("n1", incarnation="1-b")
    again.start(51.0, launched=50.0)
    found = journal(first, second, again, now=100.0, last_sign=100.0)
    assert lives(found) == {"n0@0-a": (1, 100), "n1@0-a": (1, 50), "n1@1-b": (50, 100)}


def a_spare_dies(rounds: int) -> list[Node]:
    """Return two nodes with rounds of 100 s each, and a spare node that has no power from round 2 on."""
    nodes = [Node("n0"), Node("n1"), Node("spare")]
    for node in nodes:
        node.start(1.0, launched=1.0)
    for number in range(1, rounds + 1):
        begin = 100.0 * number
        decided(nodes[0], begin, Phase.RUNNING, number, "n0", "n1")
        for node in nodes[: 3 if number == 1 else 2]:
            node.state(begin, Phase.RUNNING, number)
            if node is nodes[2]:
                continue
            node.workers(begin, number)
            node.state(begin + 100.0, Phase.JOINING, number, cause=Cause.JOIN)
            node.train(
                begin + 100.0,
                number,
                steps=100,
                before=100 * (number - 1),
                first_step_at=begin,
                last_step_at=begin + 100.0,
            )
            node.park(begin + 100.0, number)
    return nodes


def test_a_spare_node_that_loses_power_is_no_time_afterwards_with_and_without_a_fold() -> None:
    renewed = {"spare@0-a": 180.0}
    nodes = a_spare_dies(45)
    running = told(journal(*nodes, now=4600.0, last_sign=4600.0), {**renewed, "n0@0-a": 4599.0, "n1@0-a": 4599.0})
    folded = fold(running, account(running), 25, [node.id for node in nodes])
    assert folded is not None
    assert [(agent.node, agent.end) for agent in folded.ended] == [("spare@0-a", micros(180.0))]
    assert total(account(running)) == total(account(replace(running, fold=folded))) == 2 * 4599 + 179
    for node in nodes[:2]:
        node.state(4600.0, Phase.SUCCEEDED, 45)
        node.end(4600.0)
    ended = told(journal(*nodes), renewed)
    assert account(ended).categories == account(replace(ended, fold=folded)).categories
    assert total(account(ended)) == 2 * 4599 + 179
    assert account(ended).categories[Category.UNKNOWN] == 80 * SECOND


def test_the_time_of_a_copied_lease_is_no_renewal() -> None:
    nodes = a_spare_dies(2)
    for node in nodes[:2]:
        node.end(300.0)
    assert lives(told(journal(*nodes), {"spare@0-a": 100_000.0}))["spare@0-a"] == (1, 100)


def total(found: Account) -> float:
    return found.total / SECOND
