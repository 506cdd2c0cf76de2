"""The results of a probe on filesystems of this machine, and of races with errors."""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.doctor import race, run_check
from hpcelastic.doctor.bounded_calls import run_trial
from hpcelastic.doctor.measurements import Measurements, NodeMeasurements, Result
from hpcelastic.doctor.probe import QUICK, SHORT, Effort, measure_node, number_in, whole_content
from hpcelastic.doctor.rules import judge
from hpcelastic.doctor.run_check import check_race, ensure_verdict, mount_remarks, read_verdict
from hpcelastic.doctor.verdict import Conclusion, FilesystemReport, Severity
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.protocol.codec import encode
from hpcelastic.storage import files
from hpcelastic.storage.bounded import Hang, bounded
from hpcelastic.storage.mounts import Mount, mount_of
from hpcelastic.storage.paths import RunPaths, doctor_verdict
from tests.storage.forking import in_processes

TRIALS = ("read_back", "hard_links", "symbolic_links", "exclusive", "replacement", "durable_file", "durable_directory")


@pytest.fixture(params=[None, "/dev/shm"], ids=["temporary", "tmpfs"])
def place(request: pytest.FixtureRequest) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=request.param, prefix="hpcelastic-") as directory:
        yield Path(directory)


@pytest.mark.parametrize("effort", [pytest.param(SHORT, id="short"), pytest.param(QUICK, id="quick")])
def test_a_filesystem_without_faults_passes_and_no_file_is_left(place: Path, effort: Effort) -> None:
    found = measure_node(place, "n", effort)
    assert {name: getattr(found, name).result for name in TRIALS} == dict.fromkeys(TRIALS, Result.WORKS)
    assert found.publishing and found.listing and found.reading
    assert found.access and found.access.ours
    assert judge(Measurements((found,))).safe
    assert os.listdir(place) == []


BROKEN: dict[str, tuple[Any, str, Callable[..., Any], str]] = {
    "no links": (os, "link", lambda *_: _raise(PermissionError(1, "Operation not permitted")), "hard_links"),
    "links replace": (os, "link", lambda a, b, **_: Path(b).write_bytes(Path(a).read_bytes()), "hard_links"),
    "all writers win": (files, "publish_new", lambda path, data: [path.write_bytes(data), True][1], "exclusive"),
    "no writer wins": (files, "publish_new", lambda path, data: False, "exclusive"),
    "changed in place": (files, "publish", lambda path, data, **_: _slowly(path, data), "replacement"),
    "old content": (files, "read", lambda path: b"old", "read_back"),
    "nothing listed": (files, "names", lambda path: [], "read_back"),
    "no sync": (os, "fsync", lambda fd: _raise(OSError(22, "Invalid argument")), "durable_directory"),
}


def _raise(error: Exception) -> Any:
    raise error


def _slowly(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        for start in range(0, len(data), 1024):
            file.write(data[start : start + 1024])
            file.flush()
            time.sleep(0.001)  # a reader runs meanwhile, also on a busy machine


@pytest.mark.parametrize(("where", "name", "instead", "trial"), BROKEN.values(), ids=BROKEN.keys())
def test_faults_are_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: Any,
    name: str,
    instead: Callable[..., Any],
    trial: str,
) -> None:
    monkeypatch.setattr(where, name, instead)
    found = measure_node(tmp_path, "n", SHORT)
    assert getattr(found, trial).bad, getattr(found, trial)


def test_the_wait_for_a_hung_check_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(os, "symlink", lambda *_: release.wait())
    try:
        found = measure_node(tmp_path, "n", Effort(2, 2, 2, 2, processes=False, limit=0.2))
    finally:
        release.set()
    assert found.hard_links.works
    assert found.symbolic_links.result is Result.HANGS
    assert found.exclusive.result is Result.UNMEASURED
    assert found.hangs and not NodeMeasurements("n").hangs


def test_the_wait_for_a_slow_call_is_bounded() -> None:
    release = threading.Event()
    with pytest.raises(Hang, match=r"slow: no answer within 0\.05 s"):
        bounded(release.wait, 0.05, "slow")
    release.set()


def test_a_transient_error_is_not_a_result() -> None:
    errors = [OSError(116, "Stale file handle"), OSError(5, "Input/output error")]
    assert run_trial(lambda: _raise(errors.pop()) if errors else "", 5.0, "x").works
    assert run_trial(lambda: _raise(PermissionError(1, "Operation not permitted")), 5.0, "x").detail == (
        "Operation not permitted"
    )


def test_incomplete_content_is_detected() -> None:
    whole = whole_content(7)
    assert number_in(whole) == 7
    assert number_in(whole[:-8]) is None
    assert number_in(whole[:4096] + whole_content(8)[4096:]) is None
    assert number_in(b"") is None


RACES = {
    "one winner each": ({"a": ["x"], "b": ["y"]}, {"x": "a", "y": "b"}, ""),
    "two winners": ({"a": ["x"], "b": ["x"]}, {"x": "a"}, "2 racers created"),
    "no winner": ({"a": [], "b": []}, {"x": ""}, "no racer created"),
    "no reported winner": ({"a": [], "b": []}, {"x": "a"}, "no racer got success"),
    "another's content": ({"a": ["x"], "b": []}, {"x": "b"}, "holds the content of b"),
    "no content": ({"a": ["x"], "b": []}, {"x": ""}, "holds no content"),
}


@pytest.mark.parametrize(("claims", "held", "wrong"), RACES.values(), ids=RACES.keys())
def test_errors_of_a_race(claims: dict[str, list[str]], held: dict[str, str], wrong: str) -> None:
    assert wrong in race.violation(claims, held)
    assert bool(race.violation(claims, held)) is bool(wrong)


def test_concurrent_agents_race_without_an_error(tmp_path: Path) -> None:
    assert in_processes(4, lambda index: race.race_at_start(tmp_path / "race", f"n{index}", 5)) == [""] * 4
    assert len(os.listdir(tmp_path / "race")) == 5
    assert race.race_at_start(tmp_path / "race", "late", 5) == ""


def test_an_agent_that_wrongly_won_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another node has the name too: its content exists when this one reads it."""

    def both(path: Path, data: bytes) -> bool:
        path.write_bytes(b"other 1234")
        return True

    monkeypatch.setattr(files, "publish_new", both)
    with pytest.raises(
        ConfigError, match=r"exclusive creation: .* was created by this node.* holds the content of other"
    ):
        check_race(RunPaths(tmp_path), "me")


def test_an_agent_that_wrongly_lost_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "publish_new", lambda path, data: bool(path.write_bytes(data)) and False)
    with pytest.raises(ConfigError, match=r"exclusive creation: .* created by another node"):
        check_race(RunPaths(tmp_path), "me")


# The filesystem report of a run


def run_in(directory: Path) -> RunPaths:
    paths = RunPaths(directory / "run")
    files.make_directory(paths.root)
    return paths


def test_all_agents_of_a_run_use_one_verdict(tmp_path: Path) -> None:
    paths = run_in(tmp_path)
    found = in_processes(4, lambda _: encode(ensure_verdict(paths)))
    assert found == [found[0]] * 4
    assert encode(read_verdict(paths.filesystem)) == found[0]
    assert os.listdir(paths.root) == ["filesystem.json"]


def left_by_doctor(directory: Path, **changes: Any) -> FilesystemReport:
    verdict = FilesystemReport(**{"safe": True, "mount": mount_of(directory), "nodes": 4, "lag": 7.0, **changes})
    files.publish(doctor_verdict(directory), files.to_json(encode(verdict)))
    return verdict


def test_the_report_of_doctor_is_used(tmp_path: Path) -> None:
    verdict = left_by_doctor(tmp_path, lag=3.0)
    assert ensure_verdict(run_in(tmp_path)) == verdict


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: left_by_doctor(path.parent, mount=Mount("nfs4", "s:/x", "/x")), id="other mount"),
        pytest.param(lambda path: path.chmod(0o666), id="others may have written it"),
        pytest.param(lambda path: path.write_bytes(b"{}"), id="no verdict"),
        pytest.param(lambda path: path.write_bytes(b"{"), id="no JSON"),
        pytest.param(lambda path: path.unlink(), id="removed"),
    ],
)
def test_an_invalid_report_of_doctor_is_not_used(tmp_path: Path, spoil: Callable[[Path], Any]) -> None:
    left_by_doctor(tmp_path)
    spoil(doctor_verdict(tmp_path))
    assert ensure_verdict(run_in(tmp_path)).nodes == 1


def test_a_directory_that_doctor_found_unsafe_is_refused(tmp_path: Path) -> None:
    finding = Conclusion("exclusive creation", Severity.UNSAFE, "two winners", remedy="use another filesystem")
    left_by_doctor(tmp_path, safe=False, findings=(finding,))
    paths = run_in(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be safe: exclusive creation: two winners.*doctor --dir"):
        ensure_verdict(paths)
    assert os.listdir(paths.root) == []


@pytest.mark.parametrize(
    ("spoil", "check"),
    [
        pytest.param(lambda m, paths: paths.root.chmod(0o777), "access", id="writable by others"),
        pytest.param(
            lambda m, paths: m.setattr(files, "publish_new", BROKEN["all writers win"][2]),
            "exclusive creation",
            id="all writers win",
        ),
    ],
)
def test_a_directory_that_cannot_be_safe_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Any, RunPaths], None], check: str
) -> None:
    paths = run_in(tmp_path)
    spoil(monkeypatch, paths)
    with pytest.raises(ConfigError, match=rf"cannot be safe: {check}: .*hpcelastic doctor --dir {tmp_path}"):
        ensure_verdict(paths)
    assert os.listdir(paths.root) == []


def test_a_directory_that_does_not_work_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="a part of the path is a file"):
        ensure_verdict(RunPaths(tmp_path / "file" / "run"))


REMARKS = {
    "local, several nodes": ("ext4", 2, Mount("ext4", "/dev/vda", "/"), "a filesystem of this machine"),
    "local, one node": ("ext4", 1, Mount("ext4", "/dev/vda", "/"), ""),
    "shared": ("nfs4", 2, Mount("nfs4", "s:/x", "/x", ("local_lock=none",)), ""),
    "mounted otherwise": ("nfs4", 2, Mount("nfs4", "s:/x", "/x"), "/here is mounted differently on this node"),
    "local locks": ("nfs4", 2, Mount("nfs4", "s:/x", "/x", ("local_lock=all",)), ""),
}


@pytest.mark.parametrize(("kind", "nodes", "then", "words"), REMARKS.values(), ids=REMARKS.keys())
def test_remarks_about_the_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, nodes: int, then: Mount, words: str
) -> None:
    options = then.options or (("local_lock=none",) if kind == "nfs4" else ())
    here = Mount(kind, then.source, "/here", options)
    monkeypatch.setattr(run_check, "mount_of", lambda _: here)
    output = " ".join(mount_remarks(RunPaths(tmp_path), FilesystemReport(True, mount=then), nodes=nodes))
    assert words in output
    assert bool(words) is bool(output)
