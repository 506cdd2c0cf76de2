"""What a long run no longer needs is removed, and its account stays the same."""

import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hpcelastic.accounting import Fold
from hpcelastic.accounting.folded import EndedAgent, FaultSums, Sums
from hpcelastic.agent import old_rounds
from hpcelastic.agent.old_rounds import OldRounds, fold_interval, read_fold, remove_ended_agents
from hpcelastic.backends.files import FileBackend
from hpcelastic.errors import StoreError
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.state import Member, NodeState
from hpcelastic.storage import files
from hpcelastic.storage.leases import OwnLease
from hpcelastic.storage.paths import RunPaths
from tests.agent.processes import eventually

PART = Assignment(50, 0, 2, 0, 1, 2, "h", 1, "", 0, 2)


def ended(node: str, before: int) -> EndedAgent:
    return EndedAgent(node, 0, 1, node, "", None, ended_before=before)


def folded(kept: int, *agents: EndedAgent) -> Fold:
    return Fold(kept, 0, 0, {}, (), FaultSums(), Sums(), 0, agents)


def write_fold(paths: RunPaths, fold: Fold) -> None:
    files.publish(paths.account, files.to_json(encode(fold)))


def round_directories(paths: RunPaths) -> dict[str, set[int]]:
    parents = {"stores": paths.stores, "logs": paths.logs, "hangs": paths.hangs}
    return {name: {int(each.rpartition("-")[2]) for each in os.listdir(path)} for name, path in parents.items()}


def leases(paths: RunPaths) -> set[str]:
    return {name.partition("~")[0] for name in files.names(paths.leases)}


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """The directory of a run with 50 rounds and some agents."""
    paths = RunPaths(tmp_path)
    for round in range(1, 51):
        for directory in (paths.store(round), paths.round_logs(round), paths.hang(round, 1)):
            directory.mkdir(parents=True)
    paths.events.mkdir()
    paths.leases.mkdir(parents=True)
    paths.training_totals.mkdir()
    paths.work_fractions.mkdir()
    for node in ("n1@0-a", "n1@1-b", "n2@0-a"):
        for path in (paths.event_log(node), paths.totals_of(node), paths.work_fraction(node, 12)):
            path.write_text("")
        OwnLease(paths.leases, node).renew(Member(node, NodeState.RUNNING, 1, 1, "h", 1))
    return paths


@pytest.mark.parametrize(("keep", "kept"), [(10, set(range(41, 51))), (None, set(range(1, 51)))])
def test_the_first_node_removes_what_belongs_to_old_rounds(paths: RunPaths, keep: int | None, kept: set[int]) -> None:
    OldRounds(paths, FileBackend(paths), keep).begin(PART)
    assert eventually(lambda: round_directories(paths) == {"stores": {49, 50}, "logs": kept, "hangs": kept})


def test_the_other_nodes_remove_nothing(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_rounds.threading, "Thread", lambda **_: pytest.fail("a thread"))
    OldRounds(paths, FileBackend(paths), 10).begin(replace(PART, group_rank=1))
    assert round_directories(paths)["logs"] == set(range(1, 51))


def test_events_stay_until_they_are_folded_and_for_the_last_rounds(paths: RunPaths) -> None:
    ten, every = OldRounds(paths, FileBackend(paths), 10), OldRounds(paths, FileBackend(paths), None)
    for each in (ten, every):
        each.begin(replace(PART, group_rank=1))
    assert ten.first_needed() == every.first_needed() == 0, "there is no account"
    write_fold(paths, folded(30))
    assert (ten.first_needed(), every.first_needed()) == (30, 0)
    write_fold(paths, folded(45))
    assert (ten.first_needed(), every.first_needed()) == (41, 0)
    paths.account.write_text("{")
    assert ten.first_needed() == 0


def test_an_account_that_cannot_be_read_is_not_taken_for_none(paths: RunPaths) -> None:
    paths.account.mkdir()
    with pytest.raises(StoreError, match=r"account\.json"):
        read_fold(paths)


def test_the_files_of_agents_that_ended_long_ago_are_removed(paths: RunPaths) -> None:
    remove_ended_agents(paths, FileBackend(paths), 30)
    assert len(files.names(paths.leases)) == 3, "without an account"
    write_fold(paths, folded(40, ended("n1@0-a", 30), ended("n2@0-a", 31), ended("n7@0-a", 1)))
    remove_ended_agents(paths, FileBackend(paths), 30)
    left = {"n1@1-b", "n2@0-a"}
    assert leases(paths) == {"n1@1-b"}, "those of all agents that are part of the account"
    assert files.names(paths.work_fractions) == [paths.work_fraction("n1@1-b", 12).name]
    for directory in (paths.events, paths.training_totals):
        assert {name.removesuffix(".jsonl") for name in files.names(directory)} == left


def test_the_leases_of_earlier_starts_of_a_job_are_removed_once(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(*jobs: str) -> None:
        for job in jobs:
            node = f"m@{job.replace('.', '-')}"
            OwnLease(paths.leases, node).renew(Member(node, NodeState.RUNNING, 1, 1, "h", 1, job=job))

    monkeypatch.setattr(old_rounds, "_PAUSE", 0.0)
    add("7.0", "7.1", "7.12", "12.1", "12_3.0", "odd", "odd.x")
    first, others = OldRounds(paths, FileBackend(paths), None), leases(paths)
    first._sweep(PART)
    assert others - leases(paths) == {"m@7-0", "m@7-1"}
    add("7.13")
    first._sweep(PART)
    assert "m@7-12" in leases(paths), "SLURM ends the agents of a job before it starts the job again"


def test_after_the_end_of_an_agent_no_lease_is_removed(paths: RunPaths) -> None:
    for job in ("7.0", "7.1"):
        OwnLease(paths.leases, f"m@{job}").renew(Member(f"m@{job}", NodeState.RUNNING, 1, 1, "h", 1, job=job))
    rounds, before = OldRounds(paths, FileBackend(paths), None), leases(paths)
    threads = {*threading.enumerate()}
    rounds.begin(PART)
    (sweep,) = {*threading.enumerate()} - threads
    rounds.end()
    sweep.join(10.0)
    assert not sweep.is_alive() and leases(paths) == before


def test_the_account_is_folded_by_a_command_from_time_to_time(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = list[list[str]]()

    def run(command: list[str], **_: object) -> None:
        commands.append(command)
        write_fold(paths, folded(40, ended("n1@0-a", 30)))

    monkeypatch.setattr(old_rounds, "_PAUSE", 0.0)
    monkeypatch.setattr(old_rounds, "_MOST", 25)
    monkeypatch.setattr(old_rounds.subprocess, "run", run)
    first = OldRounds(paths, FileBackend(paths), 10)
    first._sweep(replace(PART, round=49))
    OldRounds(paths, FileBackend(paths), None)._sweep(PART)
    assert not commands
    first._sweep(PART)
    assert commands == [["nice", "-n", "19", sys.executable, "-m", "hpcelastic", "goodput", str(paths.root)]]
    assert not paths.event_log("n1@0-a").exists()


@pytest.mark.parametrize(("nodes", "rounds"), [(1, 1000), (50, 1000), (64, 781), (1024, 48), (10_000, 20)])
def test_larger_runs_are_folded_more_often(nodes: int, rounds: int) -> None:
    assert fold_interval(nodes) == rounds
