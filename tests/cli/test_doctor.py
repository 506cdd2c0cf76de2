"""``hpcelastic doctor``, alone and with several members: its output, its files, and the inputs that it refuses."""

import json
import os
import re
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from hpcelastic.cli import doctor as module
from hpcelastic.cli.doctor import report
from hpcelastic.doctor.measurements import Measurements
from hpcelastic.doctor.rules import judge
from hpcelastic.doctor.verdict import FilesystemReport
from hpcelastic.protocol.codec import decode
from tests.cli.shell import JOB, TIMEOUT, Shell, eventually
from tests.doctor.measured import NEVER, alone, fails, late, together

LEFT = ".hpcelastic-filesystem.json"


def test_doctor_alone_prints_a_report_and_writes_the_verdict(shell: Shell) -> None:
    (shell.directory / "runs").mkdir(mode=0o700)
    done = shell.hpcelastic("doctor", "--dir", "runs", "--quick")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ok +exclusive creation +each name had one winner", done.stdout, re.MULTILINE)
    assert "SAFE: it takes " in done.stdout
    kept = shell.directory / "runs" / LEFT
    assert os.listdir(kept.parent) == [LEFT]
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert decode(FilesystemReport, json.loads(kept.read_text())).safe


def start(shell: Shell, count: int, rank: int, *flags: str) -> "subprocess.Popen[str]":
    where = ("--dir", "runs", "--nodes", str(count), "--node-rank", str(rank), "--id", "x")
    return shell.start("-m", "hpcelastic", "doctor", *where, *flags)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_one_of_several_members_reports_the_results_of_all(shell: Shell, count: int) -> None:
    (shell.directory / "runs").mkdir(mode=0o700)
    members = [start(shell, count, rank, "--quick", "--json") for rank in reversed(range(count))]
    *others, (output, _) = (member.communicate(timeout=2 * TIMEOUT) for member in members)
    assert [member.returncode for member in members] == [0] * count
    assert others == [("", "")] * (count - 1)
    found = json.loads(output)
    measured = decode(Measurements, found["measurements"])
    assert len(measured.nodes) == count
    assert measured.across is not None
    assert measured.across.exclusive.works
    assert measured.across.round_trip
    assert len(measured.across.visibility) == count
    for visibility in measured.across.visibility:
        lags = (
            visibility.new_by_listing,
            visibility.new_by_open,
            visibility.new_by_stat,
            visibility.content,
            visibility.mtime,
            visibility.gone,
        )
        assert all(lag is not None and lag.seconds is not None for lag in lags), visibility
        assert (visibility.backwards, visibility.torn) == (0, 0)
    assert decode(FilesystemReport, found["verdict"]).nodes == count
    assert os.listdir(shell.directory / "runs") == [LEFT]


@pytest.mark.slow
def test_tasks_of_a_slurm_step_find_each_other(shell: Shell) -> None:
    (shell.directory / "runs").mkdir(mode=0o700)
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURMD_NODENAME": "n1", "SLURM_STEP_NUM_TASKS": "2"}
    members = [
        shell.start(
            "-m", "hpcelastic", "doctor", "--dir", "runs", "--quick", environ={**step, "SLURM_PROCID": str(rank)}
        )
        for rank in range(2)
    ]
    output = [member.communicate(timeout=2 * TIMEOUT)[0] for member in members]
    assert [member.returncode for member in members] == [0, 0]
    assert "runs: 2 members" in output[0]
    assert output[1] == ""


@pytest.mark.slow
def test_an_unsafe_directory_has_an_exit_status_and_runs_are_refused(shell: Shell) -> None:
    shell.write({"job.yaml": JOB, "train.py": "", "runs/keep": ""})
    (shell.directory / "runs").chmod(0o777)
    done = shell.hpcelastic("doctor", "--dir", "runs", "--quick")
    assert done.returncode == 1, done.stderr
    assert re.search(r"^unsafe +access .*mode 0777", done.stdout, re.MULTILINE)
    assert "UNSAFE: runs in this directory are refused" in done.stdout
    before = shell.listing()
    refused = shell.hpcelastic("run", "job.yaml")
    assert refused.returncode == 2
    assert "cannot be safe: access: " in refused.stderr
    assert "hpcelastic doctor --dir" in refused.stderr
    assert shell.listing() == before


@pytest.mark.slow
def test_the_benchmark_reports_the_speed_of_each_node_and_keeps_the_best(shell: Shell) -> None:
    (shell.directory / "runs").mkdir(mode=0o700)
    members = [start(shell, 2, rank, "--quick", "--benchmark", "--interface", "lo") for rank in reversed(range(2))]
    (output, errors), _ = (member.communicate(timeout=2 * TIMEOUT) for member in reversed(members))
    for check in ("computation", "memory bandwidth", "filesystem speed", "network"):
        assert re.search(rf"^(ok|bad|warning) +{check} ", output, re.MULTILINE), (output, errors)
    assert "connections: " in output and "/s" in output
    kept = json.loads((shell.directory / "runs/.hpcelastic-benchmark.json").read_text())
    assert {"computation", "network bandwidth"} <= kept["best"].keys()
    assert {*os.listdir(shell.directory / "runs")} == {LEFT, ".hpcelastic-benchmark.json"}


def test_an_interrupted_doctor_leaves_nothing(shell: Shell) -> None:
    runs = shell.directory / "runs"
    runs.mkdir(mode=0o700)
    waiting = start(shell, 2, 0)
    eventually(lambda: ".doctor-x" in os.listdir(runs))
    os.killpg(waiting.pid, signal.SIGINT)
    waiting.communicate(timeout=TIMEOUT)
    assert waiting.returncode == 130
    assert os.listdir(runs) == []


def test_a_member_that_gives_up_ends_the_wait_of_the_others(shell: Shell) -> None:
    runs = shell.directory / "runs"
    runs.mkdir(mode=0o700)
    first, second = (start(shell, 3, rank) for rank in (0, 1))
    eventually((runs / ".doctor-x" / "steps" / "here.1").exists)
    os.killpg(second.pid, signal.SIGINT)
    _, error = first.communicate(timeout=TIMEOUT)
    assert first.returncode == 1
    assert "member 1 gave up" in error
    assert os.listdir(runs) == []


def test_an_id_that_exists_is_refused(shell: Shell) -> None:
    shell.write({"runs/.doctor-x/keep": ""})
    done = shell.command("doctor", "--dir", "runs", "--nodes", "2", "--node-rank", "0", "--id", "x")
    assert done.returncode == 1
    assert "exists already" in done.stderr and "another --id" in done.stderr
    assert shell.listing() == {"runs", "runs/.doctor-x", "runs/.doctor-x/keep"}


WRONG = {
    "no directory": ("", "--dir"),
    "missing": ("--dir nowhere", "nowhere: no such directory"),
    "a file": ("--dir file", "file: is a file"),
    "rank too large": ("--dir . --nodes 2 --node-rank 2 --id x", "rank 2 is not in 0..1"),
    "rank negative": ("--dir . --nodes 2 --node-rank -1 --id x", "rank -1 is not in 0..1"),
    "no nodes": ("--dir . --nodes 0", "the number of members is 0"),
    "no number": ("--dir . --nodes two", "--nodes"),
    "rank without nodes": ("--dir . --node-rank 1", "--nodes is missing"),
    "id without nodes": ("--dir . --id x", "--nodes is missing"),
    "no rank": ("--dir . --nodes 2 --id x", "--node-rank is missing"),
    "no id": ("--dir . --nodes 2 --node-rank 0", "--id is missing"),
    "id is a path": ("--dir . --nodes 2 --node-rank 0 --id a/b", "--id is 'a/b'"),
    "unknown flag": ("--dir . --quik", "did you mean --quick?"),
}


@pytest.mark.parametrize(("flags", "words"), WRONG.values(), ids=WRONG.keys())
def test_wrong_input_is_refused(shell: Shell, flags: str, words: str) -> None:
    (shell.directory / "file").touch()
    done = shell.command("doctor", *flags.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.startswith("hpcelastic doctor: ") and done.stderr.count("\n") == 1
    assert shell.listing() == {"file"}


def test_the_error_names_missing_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcelastic.api.doctor._TIMEOUT", 0.2)
    args = ["--dir", str(tmp_path), "--nodes", "3", "--node-rank", "0", "--id", "x"]
    assert _main(monkeypatch, args) == 1
    assert os.listdir(tmp_path) == []


def test_a_directory_that_never_answers_ends_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT", 0.2)
    monkeypatch.setattr(module, "examine", lambda *_: signal.pause())
    assert _main(monkeypatch, ["--dir", str(tmp_path)]) == 1


def test_the_error_of_a_path_that_is_not_utf_8_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _main(monkeypatch, ["--dir", os.fsdecode(b"missing-\xff")]) == 2
    assert r"missing-\udcff" in capsys.readouterr().err


def _main(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> int:
    from hpcelastic.cli import main

    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return main(["doctor", *arguments])


REPORTS = {
    "sound": (together(), "SAFE: changes by other nodes are visible within 20 ms; it takes"),
    "no hard links": (together(node={"hard_links": fails("EPERM")}), r"handled  links +no hard links \(on n1: EPERM\)"),
    "late": (together(visibility={"content": late(3.5)}), "raised rendezvous.min_lease from 2 to 20 s"),
    "unsafe": (
        together(visibility={"content": NEVER}),
        "unsafe   replaced content +not seen by other nodes within 35 s",
    ),
    "one node": (alone(), "warning  nodes +one node only"),
}


@pytest.mark.parametrize(("measured", "words"), REPORTS.values(), ids=REPORTS.keys())
def test_the_report_shows_the_findings(measured: Measurements, words: str) -> None:
    lines = report(Path("/scratch/runs"), judge(measured))
    assert lines[0].startswith("/scratch/runs: ")
    assert re.search(words, "\n".join(lines)), lines
    assert max(map(len, lines)) <= 100
