"""SIGKILL at every point of a write: before, after and (if data is written) during each call on the filesystem."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.protocol.state import Member, NodeState
from hpcelastic.storage import files, keyvalue
from hpcelastic.storage.history import HistoryTrimmer
from hpcelastic.storage.keyvalue import KeyValueStore
from hpcelastic.storage.lease_names import lease_name, summary
from hpcelastic.storage.leases import OwnLease, read_leases
from hpcelastic.storage.register import Register
from tests.storage.forking import deaths, die_in, steps_of

KEEP = 3
MEMBER = Member("n1@0-ab", NodeState.READY, 0, 1, "127.0.0.1", 4000)


@dataclass(frozen=True)
class Case:
    """A write, and what later readers and writers must find."""

    publishes: str
    """The call with which the new value takes effect."""

    prepare: Callable[[Path], Any]
    operation: Callable[[Path], Any]
    read: Callable[[Path], Any]
    """Return the value that a fresh reader reads."""

    old: Any
    new: Any
    go_on: Callable[[Path], Any]
    """A later write by another process. It returns the resulting value."""

    links: bool = True
    settled: bool = False
    """Whether old versions may be removed at once."""

    writes: bool = True
    """Whether it writes a file. A heartbeat only renames one."""


def commit_twice(directory: Path) -> None:
    writer = Register(directory, "before")
    assert writer.commit(0, {"x": 1})
    assert writer.commit(1, {"x": 2})


def read_register(directory: Path) -> Any:
    version = Register(directory, "reader").read()
    return version.number, version.value


def update_register(directory: Path) -> bool:
    old = Register(directory, "after").read()
    new = Register(directory, "after").update(lambda value: {"x": "next"})
    return new.number == old.number + 1 and read_register(directory) == (new.number, {"x": "next"})


def renew_lease(member: Member) -> Callable[[Path], None]:
    def renew(directory: Path) -> None:
        lease = OwnLease(directory, MEMBER.node)
        for _ in range(3):
            lease.renew(member)

    return renew


def renew_again(member: Member) -> Callable[[Path], None]:
    def renew(directory: Path) -> None:
        lease = OwnLease(directory, MEMBER.node)
        lease._revision, lease._heartbeat, lease._published = 1, 3, MEMBER
        lease._summary = summary(MEMBER)
        lease._name = lease_name(MEMBER.node, 1, 3, lease._summary)
        lease.renew(member)

    return renew


def heartbeat(directory: Path) -> Any:
    lease = read_leases(directory).get(MEMBER.node)
    return lease and (lease.heartbeat, lease.member)


def renew_after(directory: Path) -> bool:
    """Another incarnation continues. The lease of the dead one is unchanged."""
    left, successor = heartbeat(directory), replace(MEMBER, node="n1@1-cd", dead=(MEMBER.node,))
    lease = OwnLease(directory, successor.node)
    lease.renew(successor)
    lease.renew(successor)
    return read_leases(directory)[successor.node].member == successor and heartbeat(directory) == left


def set_after(directory: Path) -> bool:
    store = KeyValueStore(directory, "after")
    store.set("key/1", "next")
    return store.get("key/1") == "next" and store.keys() == ["key/1"]


def add_after(directory: Path) -> bool:
    old = int(KeyValueStore(directory, "reader").get("n") or 0)
    return KeyValueStore(directory, "after").add("n", 1) == old + 1


MOVED = replace(MEMBER, node_state=NodeState.RUNNING, round=1)
FAILED = replace(MEMBER, node_state=NodeState.FAILED, round=1)
CASES = {
    "first commit": Case(
        "link",
        lambda directory: None,
        lambda directory: Register(directory, "w").commit(0, {"x": 1}),
        read_register,
        (0, None),
        (1, {"x": 1}),
        update_register,
    ),
    "later commit": Case(
        "link",
        commit_twice,
        lambda directory: Register(directory, "w").commit(2, {"x": list(range(5000))}),
        read_register,
        (2, {"x": 2}),
        (3, {"x": list(range(5000))}),
        update_register,
    ),
    "update under the lock": Case(
        "link",
        commit_twice,
        lambda directory: Register(directory, "w").update(lambda value: {"x": value["x"] + 1}),
        read_register,
        (2, {"x": 2}),
        (3, {"x": 3}),
        update_register,
    ),
    "update with symbolic links": Case(
        "symlink",
        commit_twice,
        lambda directory: Register(directory, "w").update(lambda value: {"x": value["x"] + 1}),
        read_register,
        (2, {"x": 2}),
        (3, {"x": 3}),
        update_register,
        links=False,
    ),
    "first lease": Case(
        "replace",
        lambda directory: None,
        lambda directory: OwnLease(directory, MEMBER.node).renew(MEMBER),
        heartbeat,
        None,
        (1, MEMBER),
        renew_after,
    ),
    "beat": Case(
        "replace",
        renew_lease(MEMBER),
        renew_again(MEMBER),
        heartbeat,
        (3, MEMBER),
        (4, MEMBER),
        renew_after,
        writes=False,
    ),
    "lease with a new revision": Case(
        "replace", renew_lease(MEMBER), renew_again(FAILED), heartbeat, (3, MEMBER), (4, FAILED), renew_after
    ),
    "lease with a new revision in its name": Case(
        "replace",
        renew_lease(MEMBER),
        renew_again(MOVED),
        heartbeat,
        (3, MEMBER),
        (4, MOVED),
        renew_after,
        writes=False,
    ),
    "new key": Case(
        "link",
        lambda directory: None,
        lambda directory: KeyValueStore(directory, "w").set("key/1", "new"),
        lambda directory: KeyValueStore(directory, "reader").get("key/1"),
        None,
        "new",
        set_after,
    ),
    "old key": Case(
        "link",
        lambda directory: KeyValueStore(directory, "before").set("key/1", "old"),
        lambda directory: KeyValueStore(directory, "w").set("key/1", "new"),
        lambda directory: KeyValueStore(directory, "reader").get("key/1"),
        "old",
        "new",
        set_after,
    ),
    "addition": Case(
        "link",
        lambda directory: KeyValueStore(directory, "before").add("n", 4),
        lambda directory: KeyValueStore(directory, "w").add("n", 1),
        lambda directory: KeyValueStore(directory, "reader").get("n"),
        "4",
        "5",
        add_after,
    ),
    "addition that removes old versions": Case(
        "link",
        lambda directory: [KeyValueStore(directory, "before").add("n", 1) for _ in range(2 * KEEP - 1)],
        lambda directory: KeyValueStore(directory, "w").add("n", 1),
        lambda directory: KeyValueStore(directory, "reader").get("n"),
        f"{2 * KEEP - 1}",
        f"{2 * KEEP}",
        add_after,
        settled=True,
    ),
    "plain file": Case(
        "replace",
        lambda directory: files.publish(directory / "a.json", b'"old"'),
        lambda directory: files.publish(directory / "a.json", b'"new"'),
        lambda directory: files.read_json(directory / "a.json"),
        "old",
        "new",
        lambda directory: files.publish(directory / "a.json", b'"next"') is None,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_death_at_any_point_leaves_the_old_or_the_new_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    if not case.links:
        monkeypatch.setattr(os, "link", refuse_links)
    if case.settled:
        monkeypatch.setattr(keyvalue, "_KEPT_VERSIONS", KEEP)
        monkeypatch.setattr(HistoryTrimmer, "_newest_settled", lambda self, newest: newest)
    whole = prepared(case, tmp_path / "whole")
    steps = steps_of(lambda: case.operation(whole))
    assert case.read(whole) == case.new
    assert {case.publishes} | ({"open", "write", "close"} if case.writes else set()) <= set(steps)
    assert not case.settled or steps.count("unlink") > KEEP
    effect = steps.index(case.publishes)
    for index, where in deaths(steps):
        directory = prepared(case, tmp_path / f"{index}-{where}")
        die_in(lambda directory=directory: case.operation(directory), index, where)
        point = f"killed {where} {steps[index]}, step {index} of {steps}"
        happened = index > effect or (index == effect and where == "after")
        assert case.read(directory) == (case.new if happened else case.old), point
        for path in directory.rglob("*.json"):
            json.loads(path.read_bytes())
        assert case.go_on(directory), point


def prepared(case: Case, directory: Path) -> Path:
    directory.mkdir()
    case.prepare(directory)
    return directory


def refuse_links(*args: Any, **more: Any) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")
