"""Agents fetch snapshots from each other, and refuse requests and answers that make no sense."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hpcelastic.agent.snapshot_copies import CannotCopy
from hpcelastic.network import Transfer, TransferError
from hpcelastic.training import memory
from hpcelastic.training.memory import AvailableMemory
from tests.agent.copying import (
    DIRECTORY,
    NAME,
    SIZE,
    Agent,
    content,
    description,
    descriptors,
    nothing_changed,
    three_agents,
)


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Agent]]:
    with three_agents(monkeypatch) as made:
        yield made


def test_a_snapshot_is_fetched_once(agents: list[Agent]) -> None:
    first, second, third = agents
    data = second.take()
    assert content(first.copies.fetch(DIRECTORY, NAME, second.node)) == data
    assert first.content() == data
    assert content(first.copies.fetch(DIRECTORY, NAME, second.node)) == data
    assert first.dials == 1
    assert content(third.copies.fetch(DIRECTORY, NAME, first.node)) == data


def test_workers_that_fetch_the_same_share_one_transfer(agents: list[Agent]) -> None:
    first, second, _ = agents
    data, found = second.take(), []

    def fetch() -> None:
        found.append(content(first.copies.fetch(DIRECTORY, NAME, second.node)))

    threads = [threading.Thread(target=fetch) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [data] * 8
    assert first.dials == 1


@pytest.mark.parametrize("node", ["n1@a", "n2@b", "n2@before", ""])
def test_a_snapshot_that_is_not_there_cannot_be_fetched(agents: list[Agent], node: str) -> None:
    agents[1].take(NAME._replace(part=1))
    before = descriptors()
    with pytest.raises(CannotCopy, match=r"^it is not there any more$"):
        agents[0].copies.fetch(DIRECTORY, NAME, node)
    assert nothing_changed(agents[0], before)


def test_a_damaged_snapshot_is_not_fetched(agents: list[Agent]) -> None:
    agents[1].take()
    agents[1].damage()
    before = descriptors()
    with pytest.raises(CannotCopy, match=r"^it is damaged$"):
        agents[0].copies.fetch(DIRECTORY, NAME, agents[1].node)
    assert nothing_changed(agents[0], before)


def test_a_fetch_needs_memory(agents: list[Agent], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: AvailableMemory(SIZE, "this machine"))
    agents[1].take()
    before = descriptors()
    with pytest.raises(OSError, match="0 MiB are free in this machine"):
        agents[0].copies.fetch(DIRECTORY, NAME, agents[1].node)
    assert nothing_changed(agents[0], before)


def test_nothing_is_fetched_from_a_node_that_is_gone(agents: list[Agent]) -> None:
    agents[1].network.close()
    before = descriptors()
    with pytest.raises(TransferError, match="Connection refused"):
        agents[0].copies.fetch(DIRECTORY, NAME, agents[1].node)
    assert nothing_changed(agents[0], before)


def test_a_node_that_dies_during_a_fetch_is_reported(agents: list[Agent]) -> None:
    first, second, _ = agents

    def serve(end: Transfer) -> None:
        with end:
            assert "fetch" in end.receive()
            end.send({"snapshot": vars(description(NAME))})
            end.receive()
            end.send({}, memoryview(bytes(2**16)))

    second.serve = lambda end: threading.Thread(target=serve, args=(end,)).start()
    before = descriptors()
    with pytest.raises(TransferError, match="closed the connection"):
        first.copies.fetch(DIRECTORY, NAME, second.node)
    assert nothing_changed(first, before)


ANSWERS: dict[str, dict[str, Any]] = {
    "empty": {},
    "no snapshot": {"snapshot": [1, 2]},
    "fields are missing": {"snapshot": {"file": str(NAME)}},
    "another snapshot": {"snapshot": vars(description(NAME._replace(part=1)))},
    "another directory": {"snapshot": vars(description(NAME)) | {"directory": "/other"}},
    "another type of size": {"snapshot": vars(description(NAME)) | {"size": "5"}},
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_that_makes_no_sense_is_an_error(agents: list[Agent], answer: dict[str, Any]) -> None:
    def serve(end: Transfer) -> None:
        with end:
            assert end.receive()["fetch"] == str(NAME)
            end.send(answer)

    agents[1].serve = lambda end: threading.Thread(target=serve, args=(end,)).start()
    before = descriptors()
    with pytest.raises(CannotCopy):
        agents[0].copies.fetch(DIRECTORY, NAME, agents[1].node)
    assert nothing_changed(agents[0], before)


# Requests that make no sense


def keep(**changes: object) -> dict[str, Any]:
    return {"keep": vars(description(NAME)) | changes}


REQUESTS: dict[str, dict[str, Any]] = {
    "empty": {},
    "an unknown request": {"drop": str(NAME)},
    "a number to keep": {"keep": 3},
    "nothing to keep": {"keep": {}},
    "fields are missing": {"keep": {"file": str(NAME)}},
    "a negative size": keep(size=-100),
    "a small negative size": keep(size=-1),
    "a size that is text": keep(size="5"),
    "a size that is no integer": keep(size=5.5),
    "a size beyond all memory": keep(size=2**80),
    "a path as a name": keep(file="../../etc/passwd"),
    "a name that is a number": keep(file=5),
    "a name with a long number": keep(file=f"round-{'1' * 5000}.step-00000001.pt"),
    "a long name": keep(file="\u00e9" * 9_000),
    "a name of another step": keep(step=8),
    "a directory that is a list": keep(directory=["/"]),
    "an unknown rule": keep(retention={"newest": 3}),
    "a rule that is a number": keep(retention=3),
    "a path to fetch": {"fetch": "../../etc/passwd", "directory": DIRECTORY},
    "a number to fetch": {"fetch": 5, "directory": DIRECTORY},
    "a fetch without a directory": {"fetch": str(NAME)},
    "a fetch from a list": {"fetch": str(NAME), "directory": ["/"]},
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_a_request_that_makes_no_sense_is_refused(agents: list[Agent], request_: dict[str, Any]) -> None:
    first, second, _ = agents
    before = descriptors()
    assert first.ask(second, request_)["error"]
    assert nothing_changed(second, before)
    data = first.take()
    assert first.copies.send(DIRECTORY, NAME) == second.node
    assert second.content() == data


def test_a_newer_agent_may_send_more_fields(agents: list[Agent]) -> None:
    assert agents[0].ask(agents[1], keep(colour="blue")) == {}


def test_many_requests_that_make_no_sense_use_nothing_up(agents: list[Agent]) -> None:
    first, second, _ = agents
    for _ in range(40):
        assert first.ask(second, keep(size=-1))["error"]
    first.take()
    assert first.copies.send(DIRECTORY, NAME) == second.node
