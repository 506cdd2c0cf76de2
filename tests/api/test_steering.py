"""Requests for an active run: their results, and the requests that are refused without an effect."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.api import steering
from hpcelastic.api.jobs import record_job
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.api.run import Run
from hpcelastic.api.steering import replace_nodes
from hpcelastic.backends.connect import RunReader
from hpcelastic.backends.files import FileBackend
from hpcelastic.cli import main
from hpcelastic.errors import ConfigError, SlurmError
from hpcelastic.protocol.decide import Decision
from hpcelastic.protocol.events import WorkersPoll
from hpcelastic.protocol.state import Member, NodeState, Phase, State, participants_of
from hpcelastic.rendezvous.run import close_run, read_state, steer_run
from hpcelastic.slurm.queue import Capacity
from hpcelastic.storage import events
from hpcelastic.storage.events import EventLog
from hpcelastic.storage.leases import OwnLease
from hpcelastic.storage.paths import RunPaths
from tests.api.jobs import job

MEMBERS = (
    Member("n1@0", NodeState.RUNNING, 1, 1, "10.0.0.1", 1),
    Member("n2_0@0", NodeState.RUNNING, 1, 1, "10.0.0.2", 1, host="n2"),
    Member("n2_1@0", NodeState.RUNNING, 1, 1, "10.0.0.2", 2, host="n2"),
)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunPaths]:
    """Return a function that makes a run with three nodes in its first round, two of them on one machine."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()

    def made(**settings: Any) -> RunPaths:
        given = {"nodes": {"min": 2, "max": 4, "spares": settings.pop("spares", 0)}}
        given["nodes"]["multiple"] = settings.pop("multiple", 1)
        paths = prepare(resolve(job(**given, **settings), []))
        for member in MEMBERS:
            OwnLease(paths.leases, member.node).renew(member)
        members = participants_of(MEMBERS)
        commit(paths, lambda state: replace(state, phase=Phase.RUNNING, round=1, participants=members))
        return paths

    return made


def commit(paths: RunPaths, change: Callable[[State], State]) -> None:
    steer_run(FileBackend(paths), "test", lambda state: Decision(change(state), "for the test"))


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The run's capacity in SLURM, and the calls of SLURM."""
    calls: dict[str, Any] = {"has": Capacity(3, 0, ()), "added": 0, "cancelled": ()}

    def add(_paths: RunPaths, _config: object, count: int) -> str:
        calls["added"] = count
        return "17"

    monkeypatch.setattr(steering, "capacity", lambda _: calls["has"])
    monkeypatch.setattr(steering, "add_elements", add)
    monkeypatch.setattr(steering, "cancel_jobs", lambda jobs: calls.update(cancelled=tuple(jobs)))
    return calls


def submitted(paths: RunPaths) -> Run:
    paths.slurm.mkdir(exist_ok=True)
    record_job(paths, "7")
    return Run(paths.root)


@pytest.mark.parametrize(
    ("has", "spares", "wanted", "message", "cancelled"),
    [
        pytest.param(Capacity(3, 0, ()), 0, 5, "5 nodes wanted, 3 running, 2 submitted as job 17", (), id="more"),
        pytest.param(
            Capacity(3, 1, ()),
            0,
            5,
            "5 nodes wanted, 3 running, 1 pending, 1 submitted as job 17",
            (),
            id="some",
        ),
        pytest.param(
            Capacity(3, 0, ()), 1, 3, "3 nodes wanted and 1 spare, 3 running, 1 submitted as job 17", (), id="a spare"
        ),
        pytest.param(Capacity(3, 2, ("7_3", "7_4")), 0, 5, "5 nodes wanted, 3 running, 2 pending", (), id="all"),
        pytest.param(Capacity(3, 0, ()), 0, 2, "2 nodes wanted, 3 running, 1 of them leaving", (), id="fewer"),
        pytest.param(
            Capacity(3, 2, ("7_3", "7_4")),
            0,
            4,
            "4 nodes wanted, 3 running, 1 pending, 1 pending cancelled",
            ("7_4",),
            id="fewer pending",
        ),
        pytest.param(
            Capacity(3, 2, ("7_3", "7_4")),
            0,
            2,
            "2 nodes wanted, 3 running, 1 of them leaving, 2 pending cancelled",
            ("7_3", "7_4"),
            id="fewer than running",
        ),
        pytest.param(Capacity(0, 4, ()), 0, 2, "2 nodes wanted, 0 running, 4 pending", (), id="a pending allocation"),
    ],
)
def test_scale(
    has: Capacity,
    spares: int,
    wanted: int,
    message: str,
    cancelled: tuple[str, ...],
    make: Callable[..., RunPaths],
    slurm: dict[str, Any],
) -> None:
    paths = make(spares=spares)
    slurm["has"] = has
    assert str(submitted(paths).scale(wanted)) == f"r: {message}"
    assert slurm["cancelled"] == cancelled
    assert slurm["added"] == max(0, wanted + spares - has.running - has.waiting)
    assert read_state(FileBackend(paths)).target == wanted


def test_a_scale_that_slurm_refuses_reports_the_state_of_the_run(
    make: Callable[..., RunPaths], slurm: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> str:
        raise SlurmError("sbatch refused the job: no such partition")

    monkeypatch.setattr(steering, "add_elements", refuse)
    run = submitted(make())
    with pytest.raises(
        SlurmError, match=r"no such partition; r accepts up to 4 nodes now, but no job was added; scale"
    ):
        run.scale(4)
    assert run.status().scaled == 4


def test_a_scale_to_a_group_that_is_not_whole_is_refused(make: Callable[..., RunPaths]) -> None:
    run = Run(make(multiple=2).root)
    with pytest.raises(ConfigError, match=r"^3 nodes are not a multiple of nodes\.multiple, 2; write 2 or 4$"):
        run.scale(3)
    assert run.status().scaled == 0
    run.scale(2)
    assert run.status().scaled == 2


def test_a_scale_beyond_the_limit_of_the_site_is_refused(
    make: Callable[..., RunPaths], slurm: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("limits: {nodes.max: 4}\n")
    monkeypatch.setenv("HPCELASTIC_SITE_CONFIG", str(site))
    run = submitted(make())
    with pytest.raises(ConfigError, match=rf"^nodes\.max is 5; this site allows at most 4 \({site}\)$"):
        run.scale(5)
    assert run.status().scaled == 0
    run.scale(4)
    assert run.status().scaled == 4


def test_root_submits_no_job_to_the_run_of_another_user(
    make: Callable[..., RunPaths], slurm: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job would run as root, and its files could not be used by the owner's jobs."""
    run = submitted(paths := make())
    slurm["has"] = Capacity(3, 0, ())
    if os.geteuid() == 0:
        os.chown(paths.root, 1000, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for change in (lambda: run.scale(4), lambda: replace_nodes(RunReader(paths), 1)):
        with pytest.raises(
            ConfigError, match=r"^r: it belongs to \S+, and the new job would run as root; repeat this as"
        ):
            change()
    assert (run.status().scaled, slurm["added"]) == (0, 0)
    run.scale(2)
    assert run.status().scaled == 2


def test_a_scale_that_is_refused_changes_nothing(make: Callable[..., RunPaths]) -> None:
    run = Run(make().root)
    with pytest.raises(ConfigError, match=r"^1 is fewer than nodes\.min, 2: no round could form"):
        run.scale(1)
    with pytest.raises(
        ConfigError,
        match=r"^r: 3 nodes running, and hpcelastic cannot add nodes, because it did not submit .* yourself: "
        r"hpcelastic agent --run-dir ",
    ):
        run.scale(4)
    RunPaths(run.directory).config.unlink()
    with pytest.raises(ConfigError, match=r"start more agents yourself: the command of the other agents$"):
        run.scale(4)
    assert run.status().scaled == 0
    assert str(run.scale(2)) == "r: 2 nodes wanted, 3 running, 1 of them leaving"


def test_drain_by_name_and_by_machine_and_undo(make: Callable[..., RunPaths]) -> None:
    run = Run(make().root)
    assert run.drain("n2_0") == ("n2_0",)
    assert run.drain("n2", "n1") == ("n1", "n2", "n2_0")
    assert run.status().drained == ("n1", "n2", "n2_0")
    assert run.drain("n2", undo=True) == ("n1",)
    with pytest.raises(ConfigError, match=r"^n3, n4: is not in this run; known nodes: n1, n2_0, n2_1$"):
        run.drain("n4", "n1", "n3")
    with pytest.raises(ConfigError, match=r"^n2: is not drained; known nodes: n1$"):
        run.drain("n2", undo=True)


def test_a_drain_that_leaves_too_few_nodes_reports_it(
    make: Callable[..., RunPaths], capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(make().root)
    assert main(["drain", "n1", str(run.directory)]) == 0
    assert capsys.readouterr().out == "r: n1 leaves at the end of a step; drained: n1\n"
    assert main(["drain", "n2", str(run.directory)]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "0 nodes left, fewer than nodes.min, 2: the run waits for nodes"
    assert main(["status", str(run.directory)]) == 0
    assert "drained    n1, n2\n" in capsys.readouterr().out


def record_stop_check(paths: RunPaths, round: int) -> None:
    log = EventLog(paths.event_log("n1@0"), "n1")
    log.write(WorkersPoll(round=round))
    assert log.close(10)


def test_a_checkpoint_needs_workers_that_poll(make: Callable[..., RunPaths]) -> None:
    paths = make()
    record_stop_check(paths, round=0)
    with pytest.raises(ConfigError, match=r"the workers of round 1 have not called should_stop\(\) so far: workers"):
        Run(paths.root).checkpoint()
    assert read_state(FileBackend(paths)).phase is Phase.RUNNING
    record_stop_check(paths, round=1)
    assert steering.checkpoint(RunReader(paths)).startswith("r: round 1 ends at the end of a step, in 120 s at most")
    with pytest.raises(ConfigError, match=r"r: no round runs \(a checkpoint was requested"):
        Run(paths.root).checkpoint()


def test_a_checkpoint_reads_no_events_of_other_rounds(
    make: Callable[..., RunPaths], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = make()
    log = EventLog(paths.event_log("n1@0"), "n1")
    for number in (1, 2, 3):
        log.write(WorkersPoll(round=number))
    assert log.close(10)
    read: list[Any] = []
    real = events.parse

    def parse(kind: str, fields: dict[str, Any]) -> Any:
        read.append(fields.get("round"))
        return real(kind, fields)

    monkeypatch.setattr(events, "parse", parse)
    steering.checkpoint(RunReader(paths))
    assert [round for round in read if round is not None] == [1]


def test_a_checkpoint_anyway(make: Callable[..., RunPaths], capsys: pytest.CaptureFixture[str]) -> None:
    paths = make()
    assert main(["checkpoint", str(paths.root)]) == 2
    assert "to stop them nevertheless: hpcelastic checkpoint --anyway" in capsys.readouterr().err
    assert main(["checkpoint", str(paths.root), "--anyway"]) == 0
    assert (
        "the next continues from the last checkpoint: the workers of round 1 have not called" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    "action", [lambda run: run.scale(3), lambda run: run.drain("n1"), lambda run: run.checkpoint()], ids=["s", "d", "c"]
)
def test_an_ended_run_refuses_requests(action: Callable[[Run], object], make: Callable[..., RunPaths]) -> None:
    paths = make()
    close_run(FileBackend(paths), "test", "enough")
    with pytest.raises(ConfigError, match=r"^r has closed: enough; continue with hpcelastic submit --resume"):
        action(Run(paths.root))
