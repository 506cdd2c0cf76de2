"""The record of bad nodes that several users share: what is recorded, who is believed, and files that lie."""

import json
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.cli import main
from hpcelastic.errors import ConfigError
from hpcelastic.health import node_record
from hpcelastic.health.incidents import Incident, IncidentKind, read_incidents
from hpcelastic.health.memory import forgive_nodes, node_verdicts, record_incident, recorded_nodes
from hpcelastic.health.node_record import KEPT, NodeRecord, recorded_incidents
from hpcelastic.health.settings import HealthSettings
from hpcelastic.storage.foreign import user_name
from hpcelastic.storage.paths import RunPaths
from tests.users import GROUP, MEMBER, OUTSIDER, as_user

BROKEN = Incident("n1", IncidentKind.HARDWARE, "GPU 3 has fallen off the bus", time.time(), 4)
RUN = Path("/runs/alpha")
ME = user_name(os.geteuid())
CONTENT = {"host": "n1", "cause": "hardware error", "message": "it smokes", "run": "/runs/alpha"}

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")


@pytest.fixture
def directory() -> Iterator[Path]:
    """A record of a group, which other users can reach."""
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o711)
        path = Path(parent) / "nodes"
        path.mkdir()
        if os.geteuid() == 0:
            os.chown(path, -1, GROUP.gr_gid)
        path.chmod(0o1770)
        yield path


@pytest.fixture
def record(directory: Path) -> NodeRecord:
    return NodeRecord(directory)


def put(directory: Path, content: Any, name: str = "n1~abc.json") -> Path:
    (directory / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return directory / name


def test_an_incident_has_its_author_and_its_run(record: NodeRecord, directory: Path) -> None:
    record.add(BROKEN, RUN)
    (entry,) = record.entries()
    assert (entry.node, entry.cause, entry.message) == ("n1", IncidentKind.HARDWARE, BROKEN.message)
    assert (entry.user, entry.run, entry.round, entry.forgiven_by) == (ME, "/runs/alpha", 4, "")
    assert abs(entry.time - time.time()) < 60
    assert record.entries("n1") == [entry] and record.entries("n2") == []
    assert entry.incident.message.endswith(f"fallen off the bus (recorded by {ME}, run /runs/alpha)")


@pytest.mark.parametrize("kind", IncidentKind)
def test_only_incidents_that_blame_the_machine_are_shared(kind: IncidentKind, record: NodeRecord) -> None:
    record.add(replace(BROKEN, cause=kind), RUN)
    shared = kind in (IncidentKind.CHECK, IncidentKind.HARDWARE)
    assert [entry.cause for entry in record.entries()] == ([kind] if shared else [])


def test_the_runs_of_others_are_believed_and_the_own_run_is_not_counted_twice(directory: Path) -> None:
    health = HealthSettings(shared_record=str(directory))
    alpha, beta = RunPaths(RUN), RunPaths(Path("/runs/beta"))
    NodeRecord(directory).add(BROKEN, alpha.root)
    assert recorded_nodes(beta, health) == {"n1"} and recorded_nodes(alpha, health) == set()
    assert node_verdicts(beta, health)["n1"].out and not node_verdicts(alpha, health)
    assert node_verdicts(beta, health, "n1")["n1"].out and not node_verdicts(beta, health, "n2")
    assert recorded_nodes(beta, HealthSettings()) == set()


def test_an_incident_of_this_job_alone_is_not_shared(directory: Path, tmp_path: Path) -> None:
    paths, health = RunPaths(tmp_path), HealthSettings(shared_record=str(directory))
    record_incident(paths, health, BROKEN, of_machine=False)
    assert NodeRecord(directory).entries() == [] and read_incidents(paths) == (BROKEN,)
    record_incident(paths, health, BROKEN, of_machine=True)
    assert len(NodeRecord(directory).entries()) == 1 and read_incidents(paths) == (BROKEN, BROKEN)


def test_a_node_that_is_repaired_is_forgiven_for_all(directory: Path, record: NodeRecord, tmp_path: Path) -> None:
    health = HealthSettings(shared_record=str(directory))
    record.add(BROKEN, RUN)
    record.add(replace(BROKEN, host="n2"), RUN)
    paths = RunPaths(tmp_path / "run")
    assert forgive_nodes(paths, health) == (), "all nodes of a run that has had no incident"
    assert forgive_nodes(paths, health, ["n1", "n9"]) == ("n1",)
    assert recorded_nodes(paths, health) == {"n2"}
    assert {entry.node: entry.forgiven_by for entry in record.entries()} == {"n1": ME, "n2": ""}
    record.add(BROKEN, RUN)
    assert recorded_nodes(paths, health) == {"n1", "n2"}, "it has failed again"


def test_the_weight_decreases(directory: Path, record: NodeRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    record.add(BROKEN, RUN)
    assert len(recorded_incidents(str(directory), Path("/runs/beta"), 3600.0)) == 1
    later = time.time() + 11 * 3600
    monkeypatch.setattr(node_record.time, "time", lambda: later)
    assert recorded_incidents(str(directory), Path("/runs/beta"), 3600.0) == []


def link(directory: Path) -> None:
    (directory.parent / "target").write_text(json.dumps(CONTENT))
    (directory / "n1~abc.json").symlink_to(directory.parent / "target")


LIES: dict[str, Callable[[Path], object]] = {
    "a link": link,
    "a pipe": lambda path: os.mkfifo(path / "n1~abc.json"),
    "a directory": lambda path: (path / "n1~abc.json").mkdir(),
    "an empty file": lambda path: put(path, ""),
    "not JSON": lambda path: put(path, "{"),
    "not text": lambda path: (path / "n1~abc.json").write_bytes(b"\xff\xfe"),
    "deep": lambda path: put(path, "[" * 4000),
    "too long": lambda path: put(path, {**CONTENT, "message": "x" * 5000}),
    "another kind": lambda path: put(path, {**CONTENT, "cause": "lost"}),
    "no kind": lambda path: put(path, {**CONTENT, "cause": 7}),
    "another node than in its name": lambda path: put(path, {**CONTENT, "host": "n2"}),
    "two nodes": lambda path: put(path, {**CONTENT, "host": "n1,n2"}, "n1,n2~abc.json"),
    "a range of nodes": lambda path: put(path, {**CONTENT, "host": "n[1-9]"}, "n[1-9]~abc.json"),
    "an option": lambda path: put(path, {**CONTENT, "host": "--uid=0"}, "--uid=0~abc.json"),
    "no node": lambda path: put(path, {**CONTENT, "host": ""}, "~abc.json"),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_file_that_lies_is_ignored(lie: Callable[[Path], object], directory: Path, record: NodeRecord) -> None:
    lie(directory)
    assert record.entries() == []
    record.add(BROKEN, RUN)
    assert [entry.message for entry in record.entries()] == [BROKEN.message]


def test_a_file_cannot_claim_to_be_newer_than_it_is(directory: Path, record: NodeRecord) -> None:
    path = put(directory, CONTENT)
    os.utime(path, (2e9 * 2, 2e9 * 2))
    (entry,) = record.entries()
    assert entry.time < time.time() + 60


def test_a_message_cannot_control_a_terminal(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(directory, {**CONTENT, "message": "ok\x1b[2J\r\n\u202egpu", "run": "a\x07b"})
    assert main(["nodes", "--record", str(directory), "n1"]) == 0
    printed = capsys.readouterr().out
    assert "ok [2J   gpu" in printed and "run a b" in printed
    assert all(c.isprintable() or c == "\n" for c in printed)


def test_old_incidents_are_removed_by_their_author(
    directory: Path, record: NodeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.add(BROKEN, RUN)
    record.forgive(["n1"])
    newest = max(path.stat().st_ctime for path in directory.iterdir())
    time.sleep(0.05)  # the clock of the filesystem advances
    monkeypatch.setattr(node_record.time, "time", lambda: newest + KEPT + 1e-6)
    record.add(replace(BROKEN, host="n2"), RUN)
    assert [name.partition("~")[0] for name in os.listdir(directory)] == ["n2"]


@pytest.mark.parametrize("absent", [True, False], ids=["absent", "hangs"])
def test_a_record_that_is_not_available_does_not_stop_a_run(
    absent: bool, directory: Path, record: NodeRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.add(BROKEN, RUN)
    health = HealthSettings(shared_record=str(directory / "absent" if absent else directory))
    release = threading.Event()
    if not absent:
        monkeypatch.setattr(node_record, "_READ_TIMEOUT", 0.05)
        monkeypatch.setattr(NodeRecord, "entries", lambda *_: release.wait())
    assert node_verdicts(RunPaths(tmp_path), health) == {}
    release.set()


@as_root
def test_a_member_can_neither_remove_nor_replace_the_incidents_of_others(directory: Path, record: NodeRecord) -> None:
    record.add(BROKEN, RUN)
    (name,) = os.listdir(directory)
    assert "PermissionError" in as_user(MEMBER, lambda: os.unlink(directory / name))["error"]
    assert "PermissionError" in as_user(MEMBER, lambda: (directory / name).write_text("{}"))["error"]
    as_user(MEMBER, lambda: NodeRecord(directory).add(replace(BROKEN, host="n2"), Path("/runs/theirs")))
    assert {entry.node: entry.user for entry in record.entries()} == {"n1": "root", "n2": f"user {MEMBER}"}
    assert as_user(MEMBER, lambda: [entry.node for entry in NodeRecord(directory).entries()]) == ["n1", "n2"]
    as_user(MEMBER, lambda: list(NodeRecord(directory).forgive(["n1"])))
    assert {entry.node: entry.forgiven_by for entry in record.entries()} == {"n1": f"user {MEMBER}", "n2": ""}
    assert "error" in as_user(OUTSIDER, lambda: len(NodeRecord(directory).entries()))


@as_root
def test_a_link_does_not_forge_the_user_that_forgives(directory: Path, record: NodeRecord) -> None:
    record.add(BROKEN, RUN)
    (name,) = os.listdir(directory)
    as_user(MEMBER, lambda: os.symlink("/etc/passwd", directory / name.replace(".json", ".forgiven")))
    assert [entry.forgiven_by for entry in record.entries()] == [f"user {MEMBER}"]


def test_the_record_is_checked_before_a_run(directory: Path, tmp_path: Path) -> None:
    NodeRecord(directory).check()
    with pytest.raises(ConfigError, match=r"is no directory; create it: install -d -m 1770 -g GROUP"):
        NodeRecord(tmp_path / "absent").check()
    directory.chmod(0o770)
    with pytest.raises(ConfigError, match=r"has mode 770, .*chmod \+t"):
        NodeRecord(directory).check()
    directory.chmod(0o700)
    NodeRecord(directory).check()
    if os.geteuid() == 0:
        directory.chmod(0o1755)
        refused = as_user(MEMBER, lambda: NodeRecord(directory).check())["error"]
        assert "you may not read and write it; ask its owner, root" in refused


def test_the_report(directory: Path, record: NodeRecord, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--record", str(directory)]
    assert main(["nodes", *place]) == 0
    assert capsys.readouterr().out == f"{directory}: no incidents in 30 days\n"
    for run in ("/runs/alpha", "/runs/beta"):
        record.add(BROKEN, Path(run))
    record.add(replace(BROKEN, host="gpu12"), RUN)
    record.forgive(["gpu12"])
    assert main(["nodes", *place]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"n1     out for 120 min  incidents: 2, users: 1, runs: 2; hardware error just now: {BROKEN.message}",
        f"gpu12  admitted         incidents: 1, users: 1, runs: 1; hardware error just now: {BROKEN.message} "
        f"(forgiven by {ME})",
    ]
    assert main(["nodes", *place, "n1", "--forgive"]) == 0
    printed = capsys.readouterr().out
    assert printed.count(f"forgiven by {ME}") == 3 and f"user {ME}, run /runs/beta, round 4" in printed
    assert main(["nodes", *place, "--json"]) == 0
    nodes = json.loads(capsys.readouterr().out)  # the clock of a filesystem may give two files the same time
    found = {each["node"]: (each["excluded_for"], len(each["incidents"])) for each in nodes}
    assert found == {"gpu12": (0.0, 1), "n1": (0.0, 2)}


WRONG = {
    ("--days", "0"): "argument --days: write a number of days, more than 0, not '0'",
    ("--forgive",): "write the nodes that are repaired",
    ("n9", "--forgive"): "n9: no incident is recorded",
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.items(), ids=lambda each: " ".join(each))
def test_a_wrong_request(
    arguments: tuple[str, ...], message: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nodes", "--record", str(directory), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_sites_file_names_the_record(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site.yaml"
    monkeypatch.setenv("HPCELASTIC_SITE_CONFIG", str(site))
    site.write_text("limits: {nodes.max: 4}\n")
    assert main(["nodes"]) == 2
    assert "names no record of nodes (health.shared_record); use --record DIR" in capsys.readouterr().err
    site.write_text(f"defaults: {{health: {{shared_record: {directory}}}}}\n")
    assert main(["nodes"]) == 0
    assert "no incidents in 30 days" in capsys.readouterr().out


def test_the_files_are_as_open_as_the_directory(directory: Path, record: NodeRecord) -> None:
    record.add(BROKEN, RUN)
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o644}
