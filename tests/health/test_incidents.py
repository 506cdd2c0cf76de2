"""Incidents are recorded, found and forgiven."""

import os
import stat
from pathlib import Path

import pytest

from hpcelastic.backends.files import FileBackend
from hpcelastic.health.incidents import Incident, IncidentKind, forgive, read_incidents, record, record_lost
from hpcelastic.health.memory import excluded_nodes, node_verdicts, record_losses
from hpcelastic.health.settings import HealthSettings
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Member, NodeState, Participant, Phase, State
from hpcelastic.storage import files
from hpcelastic.storage.leases import OwnLease
from hpcelastic.storage.paths import RunPaths

HALF_LIFE = 3600.0


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


def incident(host: str, when: float = 1.0) -> Incident:
    return Incident(host, IncidentKind.CHECK, "GPU 1 has 3 uncorrected ECC errors", when, 2)


def test_without_records_there_are_no_incidents(paths: RunPaths) -> None:
    assert read_incidents(paths) == ()
    assert forgive(paths.incidents) == set()


def test_incidents_are_found_by_node_and_time(paths: RunPaths) -> None:
    noted = [incident("n1", 2.0), incident("n2", 3.0), incident("n1", 1.0)]
    for one in noted:
        record(paths, one)
    assert read_incidents(paths) == (noted[2], noted[0], noted[1])
    assert read_incidents(paths, "n1") == (noted[2], noted[0])
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths.incidents.iterdir()} == {0o600}


def test_invalid_records_are_ignored(paths: RunPaths) -> None:
    record(paths, incident("n1"))
    for name, content in {"n1~a.json": b"{", "n1~b.json": b'{"host": "n1", "cause": "odd"}', "other": b""}.items():
        files.publish(paths.incidents / name, content)
    assert read_incidents(paths) == (incident("n1"),)


def test_forgiving_removes_the_effect_of_earlier_incidents(paths: RunPaths) -> None:
    for host in ("n1", "n1", "n2", "a/b"):
        record(paths, incident(host))
    assert forgive(paths.incidents, ["n1", "n9"]) == {"n1"}
    assert {one.host for one in read_incidents(paths)} == {"n2", "a/b"}
    record(paths, incident("n1", 5.0))
    assert read_incidents(paths, "n1") == (incident("n1", 5.0),)
    assert forgive(paths.incidents) == {"a-b", "n1", "n2"}
    assert read_incidents(paths) == ()
    assert len(os.listdir(paths.incidents)) == 10, "the records stay readable"


def member(name: str, node_state: NodeState = NodeState.READY, **fields: object) -> Member:
    return Member(f"{name}@0-a", node_state, 1, 1, "10.0.0.1", 1, **fields)  # type: ignore[arg-type]  # its fields


def say(paths: RunPaths, *members: Member) -> None:
    files.make_directory(paths.leases)
    for one in members:
        OwnLease(paths.leases, one.node).renew(one)


def test_excluded_nodes_are_left_out(paths: RunPaths) -> None:
    record(paths, Incident("n1", IncidentKind.CHECK, "", 1e12))
    say(paths, member("n1"), member("n2"))
    assert excluded_nodes(paths, FileBackend(paths), HALF_LIFE) == ("n1",)


def test_slurm_gets_names_of_machines_instead_of_agents(paths: RunPaths) -> None:
    record(paths, Incident("n1", IncidentKind.CHECK, "", 1e12))
    say(paths, member("n1_0", host="n1"), member("n1_1", host="n1"))
    assert excluded_nodes(paths, FileBackend(paths), HALF_LIFE) == (), "the run has used no other machine"
    say(paths, member("n2_2", host="n2"))
    assert excluded_nodes(paths, FileBackend(paths), HALF_LIFE) == ("n1",)


def test_if_all_nodes_are_excluded_some_are_tried(paths: RunPaths) -> None:
    for name in ("n1", "n2"):
        record(paths, Incident(name, IncidentKind.CHECK, "", 1e12))
        say(paths, member(name))
    assert excluded_nodes(paths, FileBackend(paths), HALF_LIFE) == ()


def participants(*names: str) -> tuple[Participant, ...]:
    return tuple(Participant(f"{name}@0-a", 1, "10.0.0.1", 1) for name in names)


ROUND_2 = State("r", Settings(), Phase.RUNNING, 2, participants("n1", "n2"), standbys=("n3@0-a",))

LOSSES = {
    "no node": (("n1", "n2"), [], {}),
    "one without a departure": (("n1", "n2", "n4"), [member("n4", NodeState.RUNNING)], {"n4": "lost"}),
    "one whose lease is missing": (("n1", "n2", "n4"), [], {"n4": "lost"}),
    "two agents of one machine": (
        ("n1", "n2", "n4_0", "n4_1"),
        [member(name, NodeState.RUNNING, host="n4") for name in ("n4_0", "n4_1")],
        {"n4": "lost"},
    ),
    "one that has left": (("n1", "n2", "n4"), [member("n4", NodeState.LEFT)], {}),
    "a standby": (("n1", "n2", "n3"), [member("n3")], {}),
    "one that was fenced": (("n1", "n2"), [member("n1"), member("n2", fenced=1)], {"n2": "fenced"}),
    "one that was fenced earlier": (("n1", "n2"), [member("n1"), member("n2", fenced=0)], {}),
    "all were fenced": (("n1", "n2"), [member("n1", fenced=1), member("n2", fenced=1)], {}),
}


@pytest.mark.parametrize(("before", "leases", "expected"), LOSSES.values(), ids=LOSSES)
def test_nodes_that_were_lost_between_two_rounds(
    before: tuple[str, ...], leases: list[Member], expected: dict[str, str], paths: RunPaths
) -> None:
    say(paths, *leases)
    record_losses(paths, FileBackend(paths), participants(*before), ROUND_2)
    assert {one.host: one.cause.value for one in read_incidents(paths)} == expected
    assert all(one.round == 1 for one in read_incidents(paths))
    assert len(read_incidents(paths)) == len(expected), "a machine is lost once, also with several agents"


def test_a_single_loss_excludes_no_node(paths: RunPaths) -> None:
    record_lost(paths, "n1", 1, "was lost in round 1")
    assert not node_verdicts(paths, HealthSettings())["n1"].out
