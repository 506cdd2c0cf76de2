"""The node check: its findings, and its time limits."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcelastic.health import checks
from hpcelastic.health.checks import CheckContext, check_directory, check_node, run_all, run_command
from hpcelastic.health.finding import CheckFinding
from hpcelastic.health.settings import HealthSettings, size
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths
from tests.health.fake_gpus import ECC, nvml


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    made = RunPaths(tmp_path / "run")
    files.make_directory(made.incidents)
    return made


def bad(paths: RunPaths, environ: dict[str, str], **settings: object) -> list[tuple[str, str]]:
    premises = CheckContext(paths, environ, HealthSettings(**settings))  # type: ignore[arg-type]  # its fields
    return [(finding.check, finding.seen) for finding in check_node(premises) if finding.bad]


def test_a_node_without_faults_passes_and_no_file_is_left(paths: RunPaths) -> None:
    assert bad(paths, {"PATH": os.environ["PATH"]}, disk="1M", command="true") == []
    assert os.listdir(paths.incidents) == []


def test_all_faults_are_reported(paths: RunPaths, tmp_path: Path) -> None:
    environ = {**nvml(tmp_path / "nvml", ECC), "TMPDIR": str(tmp_path)}
    found = dict(bad(paths, environ, disk="9999T", shared_memory="9999T", command="echo no; exit 4"))
    assert found["GPUs"] == "GPU 1 has 3 uncorrected ECC errors"
    assert found["disk"].startswith(f"{tmp_path} has ") and found["disk"].endswith("less than health.disk, 9999T")
    assert "/dev/shm has " in found["shared memory"]
    assert found["health.command"] == "no (exit status 4)"


COMMANDS = {
    "passes": ("echo fine", []),
    "its last line is the reason": ("echo one; echo two >&2; echo; exit 1", ["two (exit status 1)"]),
    "without output": ("exit 3", ["exit status 3"]),
    "too late": ("echo begun; sleep 60", ["begun (has not ended within 0.3 s)"]),
    "its environment": ('test "$A" = b', []),
    "killed": ("kill -9 $$", ["exit status -9"]),
    "much output": ("yes | head -c 300000; echo bent; exit 1", ["bent (exit status 1)"]),
}


@pytest.mark.parametrize(("command", "seen"), COMMANDS.values(), ids=COMMANDS)
def test_a_command_of_the_user(command: str, seen: list[str]) -> None:
    timeout = 0.3 if "sleep" in command else 20.0
    found = run_command(command, {"PATH": os.environ["PATH"], "A": "b"}, timeout)
    assert [finding.seen for finding in found] == seen


def test_a_process_that_a_command_leaves_in_the_background_does_not_count(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert run_command('cat "$FIFO" & exit 0', {"PATH": os.environ["PATH"], "FIFO": str(fifo)}, 20.0) == []
    fifo.write_text("")  # ends the process


def test_a_check_that_hangs_is_a_result() -> None:
    forever = threading.Event()
    warning = CheckFinding("b", "seen", "remedy", bad=False)

    def hang() -> list[CheckFinding]:
        forever.wait()
        return []

    found = run_all({"a": hang, "b": lambda: [warning]}, 0.2)
    forever.set()
    assert [str(finding) for finding in found] == [
        "a: no answer within 0.2 s; drain the node, and find out what hangs there",
        "b: seen; remedy",
    ]


def test_a_check_that_fails_to_run_does_not_exclude_a_node() -> None:
    def fail() -> list[CheckFinding]:
        raise ValueError("odd")

    (finding,) = run_all({"a": fail}, 10.0)
    assert not finding.bad and finding.seen == "could not be checked: odd"


def test_a_file_that_is_not_listed_is_bad(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "names", lambda _directory: [])
    (finding,) = check_directory(paths.checks)
    assert finding.bad and finding.seen.endswith("a file that this node has written is not listed")


def test_a_check_leaves_nothing(paths: RunPaths) -> None:
    assert check_directory(paths.checks) == [] and list(paths.checks.iterdir()) == []


def test_a_fault_for_all_nodes_is_not_a_fault_of_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert check_directory(tmp_path / "file") == []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Return how far this node's clock is ahead, from its only finding."""
    ahead = [0.0]
    now = checks.time.time
    monkeypatch.setattr(checks.time, "time", lambda: now() + ahead[0])
    yield ahead


@pytest.mark.parametrize(
    ("ahead", "seen"),
    [(0.0, ""), (4.0, ""), (60.0, "60 s ahead of the file server's"), (-60.0, "60 s behind the file server's")],
    ids=["right", "nearly", "ahead", "behind"],
)
def test_a_wrong_clock_is_a_warning(ahead: float, seen: str, paths: RunPaths, clock: list[float]) -> None:
    clock[0] = ahead
    found = check_directory(paths.checks)
    assert [finding.bad for finding in found] == [False] * bool(seen)
    assert not seen or found[0].seen.endswith(seen)


@pytest.mark.parametrize(
    ("text", "expected"), [("0", 0), ("7", 7), ("1K", 1024), ("2g", 2 << 30), ("1T", 1 << 40)], ids=str
)
def test_sizes(text: str, expected: int) -> None:
    assert size(text) == expected


WRONG = {
    "disk": ({"disk": "much"}, r"health\.disk is 'much'; write a number and a unit"),
    "timeout": ({"timeout": 0.0}, r"health\.timeout is 0\.0; it must be"),
    "half_life": ({"half_life": float("inf")}, r"health\.half_life is inf"),
    "command": ({"command": " "}, r"health\.command is empty"),
    "shared_record": ({"shared_record": "nodes"}, r"health\.shared_record is 'nodes'; write an absolute path"),
}


@pytest.mark.parametrize(("settings", "message"), WRONG.values(), ids=WRONG)
def test_invalid_health_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HealthSettings(**settings)  # type: ignore[arg-type]  # what a job file may hold
