"""The account of a long run: old rounds are folded, so their events are not read again."""

import json
import os
import time
from pathlib import Path

import pytest

from hpcelastic.accounting.journal import SECOND
from hpcelastic.agent.old_rounds import read_fold, remove_ended_agents
from hpcelastic.api import accounts
from hpcelastic.api.accounts import _last_renewals, account_of, log_bytes, read_journal
from hpcelastic.api.html_report import report_of
from hpcelastic.api.run import Run
from hpcelastic.backends.connect import record_backend
from hpcelastic.backends.files import FileBackend
from hpcelastic.cli import status
from hpcelastic.protocol.events import to_fields
from hpcelastic.protocol.settings import RendezvousSettings, Settings
from hpcelastic.protocol.state import Member, NodeState
from hpcelastic.rendezvous.run import open_run, read_state
from hpcelastic.slurm import scheduler
from hpcelastic.storage import files
from hpcelastic.storage.events import read_logs, remove_before
from hpcelastic.storage.leases import OwnLease
from hpcelastic.storage.paths import RunPaths
from tests.accounting.logs import BEGIN
from tests.accounting.test_folds import LongRun, figures, run_of


def write(run: LongRun, directory: Path, later: float = 0.0) -> Run:
    """Write the directory of a run, whose rounds were ``later`` seconds later."""
    paths = RunPaths(directory)
    for each in (paths.register, paths.events):
        each.mkdir(parents=True)
    open_run(FileBackend(paths), "long", Settings(), "n0@0-a")
    for node in run.all:
        lines = [
            {
                "time": each.time + later,
                "up": None if each.up is None else each.up + later,
                "node": each.node,
                "event": each.event.kind,
                **to_fields(each.event),
            }
            for each in node.events
        ]
        paths.event_log(node.id).write_bytes(b"".join(files.to_json(line) for line in lines))
    return Run(directory)


@pytest.fixture
def long_run(tmp_path: Path) -> Run:
    run, _ = run_of([("worker", 0), ("node", 1), ("spare", 2), ("back", 0)] * 15, final=True)
    return write(run, tmp_path / "long")


def test_old_rounds_are_read_once(long_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = account_of(long_run.reader)
    folded = read_fold(long_run.reader.paths)
    assert folded is not None and folded.kept == 40 and len(first.faults) == 30
    read: list[int] = []

    def counted(*args: object) -> object:
        found = read_logs(*args)  # type: ignore[arg-type]
        read.append(sum(map(len, found.values())))
        return found

    monkeypatch.setattr(accounts, "read_logs", counted)
    again = account_of(long_run.reader)
    whole = sum(map(len, read_logs(long_run.reader.paths.events).values()))
    assert figures(again) == figures(first)
    assert read[0] < whole / 2
    assert min(again.rounds) == 40


def test_a_fold_that_cannot_be_read_or_written_is_done_without(long_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = figures(account_of(long_run.reader))
    paths = long_run.reader.paths
    for content in ("{", "[]", json.dumps({"kept": 7})):
        paths.account.write_text(content)
        assert figures(account_of(long_run.reader)) == expected
        assert read_fold(paths) is not None, "it is written again"
    paths.account.unlink()
    monkeypatch.setattr(accounts.os, "geteuid", lambda: paths.root.stat().st_uid + 1)
    assert figures(account_of(long_run.reader)) == expected
    assert not paths.account.exists(), "a file of another user would be in the way of the owner"


def shorten(run: Run, first: int = 0) -> int:
    """Remove the events of rounds that are part of the account, or that come before ``first``.

    Return the first round that is left.
    """
    paths = run.reader.paths
    folded = read_fold(paths)
    assert folded is not None
    before = log_bytes(paths)
    remove_ended_agents(paths, FileBackend(paths), folded.kept)
    for path in paths.events.iterdir():
        remove_before(path, first or folded.kept)
    assert log_bytes(paths) < before
    return first or folded.kept


def test_the_account_is_the_same_without_the_events_that_are_part_of_it(long_run: Run) -> None:
    expected, paths = figures(account_of(long_run.reader)), long_run.reader.paths
    before = files.names(paths.events)
    assert shorten(long_run) == 40
    assert len(files.names(paths.events)) < len(before)
    for _ in range(2):
        assert figures(account_of(long_run.reader)) == expected
    report = report_of(long_run.reader)
    assert "round 58" in report.html and "round 39" not in report.html


def test_a_run_that_another_command_folds_meanwhile_is_read_again(
    long_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents may remove the events that are part of the new account."""
    paths = long_run.reader.paths
    expected = figures(account_of(long_run.reader))
    content = paths.account.read_bytes()
    paths.account.unlink()
    reads: list[int] = []

    def read(*args: object) -> object:
        reads.append(1)
        if len(reads) == 1:
            paths.account.write_bytes(content)
            shorten(long_run)
        return read_logs(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(accounts, "read_logs", read)
    assert figures(account_of(long_run.reader)) == expected
    assert len(reads) > 2, "the logs, and the totals, twice"
    assert paths.account.read_bytes() == content


def test_a_damaged_account_is_not_replaced_once_the_events_are_removed(long_run: Run) -> None:
    account_of(long_run.reader)
    kept = shorten(long_run, 15)
    paths = long_run.reader.paths
    content = paths.account.read_bytes()
    paths.account.write_text("{")
    assert min(account_of(long_run.reader).rounds) == kept
    assert paths.account.read_text() == "{"
    paths.account.write_bytes(content)
    assert account_of(long_run.reader).fault_sums.count == 30


def test_rounds_that_have_just_ended_are_not_folded(tmp_path: Path) -> None:
    run, _ = run_of([("worker", 0)] * 60, final=True)
    young = write(run, tmp_path / "young", later=time.time() - BEGIN - 60.0 * 21.0)
    account_of(young.reader)
    assert read_fold(young.reader.paths) is None


def test_a_short_run_has_no_fold(tmp_path: Path) -> None:
    run, _ = run_of([("worker", 0)] * 30, final=True)
    short = write(run, tmp_path / "short")
    account_of(short.reader)
    assert read_fold(short.reader.paths) is None


def test_the_last_renewal_of_each_node_is_that_of_its_lease(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    for name in ("n2@0-a", "n3@0-a"):
        files.make_directory(paths.leases)
        OwnLease(paths.leases, name).renew(Member(name, NodeState.RUNNING, 1, 1, "h", 1))
    assert _last_renewals(paths) == {
        name.partition("~")[0]: round((paths.leases / name).stat().st_ctime * SECOND)
        for name in files.names(paths.leases)
    }
    assert _last_renewals(paths).keys() == {"n2@0-a", "n3@0-a"}
    assert _last_renewals(RunPaths(tmp_path / "other")) == {}


def test_the_status_has_the_goodput_and_the_last_fault(long_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    goodput, fault = status.goodput_lines(long_run)
    assert goodput.startswith("goodput    ") and "of allocated node time" in goodput
    assert fault.startswith("last fault round 58, ") and fault.endswith(": see hpcelastic why long")
    monkeypatch.setattr(status, "_MAX_LOG_BYTES", 1000)
    (hint,) = status.goodput_lines(long_run)
    assert "see hpcelastic goodput long" in hint


def test_the_status_is_coloured_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    row = "phase      failed: too many restarts"
    assert status._coloured(row, "failed") == row
    monkeypatch.setattr(status.sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert status._coloured(row, "failed") == "\033[31mphase\033[0m      failed: too many restarts"
    assert status._coloured("round      7", "failed") == "round      7"
    monkeypatch.setenv("NO_COLOR", "1")
    assert status._coloured(row, "failed") == row


def test_slurm_is_asked_once_how_the_jobs_of_a_run_without_agents_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def answer(jobs: list[str], owner: int) -> dict[str, list[str]]:
        assert owner == tmp_path.stat().st_uid
        asked.append(jobs)
        return {"7": ["TIMEOUT"]} if len(asked) == 1 else {"7": ["TIMEOUT"], "8": ["NODE_FAIL"] * 2}

    monkeypatch.setattr(scheduler, "final_states", answer)
    run, _ = run_of([("worker", 0)], final=False)
    made = write(run, tmp_path / "long")
    paths = RunPaths(made.directory)
    paths.slurm.mkdir()
    paths.jobs.write_text("".join(json.dumps({"job": job, "submitted": BEGIN}) + "\n" for job in ("7", "8")))
    paths.leases.mkdir(exist_ok=True)

    def states(age: float) -> dict[str, tuple[str, ...]]:
        last = time.time() - age
        os.utime(paths.leases, (round(last, -2), round(last, -2)))
        journal = read_journal(paths, read_state(FileBackend(paths)))
        assert journal.abandoned == (age > 300)
        return {job.id: job.ended for job in journal.jobs}

    assert states(0.0) == {"7": (), "8": ()} and not asked, "an agent may be alive"
    assert states(1000.0) == {"7": ("TIMEOUT",), "8": ()}, "not all have ended: it is asked again"
    ended = {"7": ("TIMEOUT",), "8": ("NODE_FAIL", "NODE_FAIL")}
    assert states(1000.0) == states(1000.0) == ended
    assert asked == [["7", "8"]] * 2
    assert states(700.0) == ended, "agents have been alive since"
    assert len(asked) == 3


def test_a_run_whose_leases_are_in_a_server_is_not_abandoned(tmp_path: Path) -> None:
    run, _ = run_of([("worker", 0)], final=False)
    paths = RunPaths(write(run, tmp_path / "long").directory)
    paths.leases.mkdir(exist_ok=True)  # no agent changes it
    os.utime(paths.leases, (BEGIN, BEGIN))
    assert read_journal(paths, read_state(FileBackend(paths))).abandoned
    record_backend(paths, "long", RendezvousSettings(backend="etcd", endpoint="127.0.0.1:9"))
    journal = read_journal(paths, read_state(FileBackend(paths)))
    assert (journal.abandoned, journal.last_sign) == (False, None)
