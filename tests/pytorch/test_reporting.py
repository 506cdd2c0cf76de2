"""Events and metrics of torch from `hpcelastic agent`."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic import events, metrics
from torch.distributed.elastic.events import handlers

from hpcelastic.agent.session import Observe
from hpcelastic.agent.settings import AgentSettings, Entrypoint, WorkerSettings
from hpcelastic.bootstrap import Task
from hpcelastic.errors import ConfigError, HpcElasticError, RunFailed
from hpcelastic.protocol.events import AgentStarted, RunEnded, TimerExpired, WorkerEnded, WorkersStarted
from hpcelastic.protocol.settings import NodeRange, RestartSettings, Settings
from hpcelastic.protocol.state import Failure, Phase
from hpcelastic.pytorch.reporting import run_reported
from hpcelastic.storage.paths import RunPaths
from tests.cli.shell import TIMEOUT, Shell, shell_in

STARTED = WorkersStarted(
    round=1,
    world_size=2,
    group_rank=0,
    group_world_size=1,
    role_rank=0,
    role_world_size=2,
    pids={0: 70, 1: 71},
    cpus="0",
)
FAILURE = Failure(1, "n@0", 1, 1, 7, "exit status 7")


class Kept(logging.Handler):
    """A handler of events, such as a package registers."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.events.append(json.loads(record.getMessage()))

    @property
    def states(self) -> list[tuple[str, str, int | None]]:
        return [(e["source"], e["metadata"]["state"], e["metadata"]["global_rank"]) for e in self.events]


@pytest.fixture
def kept() -> Iterator[Kept]:
    """The handler ``mine``."""
    handler = handlers._log_handlers["mine"] = Kept()
    yield handler
    del handlers._log_handlers["mine"]
    events._events_loggers.pop("mine", None)
    logging.getLogger("torchelastic-events-mine").handlers.clear()


class Numbers(metrics.MetricHandler):
    def __init__(self) -> None:
        self.last: dict[str, Any] = {}

    def emit(self, metric_data: metrics.MetricData) -> None:
        self.last[metric_data.name] = metric_data.value


@pytest.fixture
def numbers() -> Iterator[Numbers]:
    handler = Numbers()
    metrics.configure(handler)
    yield handler
    metrics.configure(metrics.NullMetricHandler())


@pytest.fixture
def task(tmp_path: Path) -> Task:
    agent = AgentSettings(Entrypoint("train.py"), WorkerSettings(2, role="trainer"))
    return Task(RunPaths(tmp_path / "r"), "r", Settings(NodeRange(1, 1), restarts=RestartSettings(3)), agent)


def agent(*seen: Any, end: int | Exception = 0) -> Callable[[Observe], int]:
    """An agent with these events."""

    def run(observe: Observe) -> int:
        for event in (AgentStarted(address="n", pid=1, workers=2), *seen):
            observe(event)
        if isinstance(end, Exception):
            raise end
        return end

    return run


def test_a_success_is_reported_like_that_of_torchrun(task: Task, kept: Kept, numbers: Numbers) -> None:
    ended = [
        *(WorkerEnded(round=1, rank=rank, exit_code=0) for rank in (0, 1)),
        RunEnded(phase=Phase.SUCCEEDED, reason=""),
    ]
    assert run_reported(agent(STARTED, *ended), task, "mine", 0.1) == 0
    assert kept.states == [
        ("AGENT", "RENDEZVOUS", None),
        ("AGENT", "ASSIGN_WORKER_RANKS", None),
        ("WORKER", "START", 0),
        ("WORKER", "START", 1),
        ("WORKER", "SUCCEEDED", 0),
        ("WORKER", "SUCCEEDED", 1),
        ("AGENT", "SUCCEEDED", None),
    ]
    about = kept.events[-1]["metadata"]
    assert (about["run_id"], about["role"], json.loads(about["metadata"])["entry_point"]) == (
        "r",
        "trainer",
        "train.py",
    )
    assert numbers.last["workers.trainer.remaining_restarts"] == 3
    assert numbers.last["workers.trainer.run_success_no_retries"] == 1
    assert numbers.last["SimpleElasticAgent.run.success"] == 1


def test_the_rank_that_failed_is_reported(task: Task, kept: Kept, numbers: Numbers) -> None:
    seen = [STARTED, WorkerEnded(round=1, rank=1, exit_code=7), RunEnded(phase=Phase.FAILED, reason="")]
    error = RunFailed("the run has failed", (FAILURE,))
    with pytest.raises(RunFailed) as caught:
        run_reported(agent(*seen, end=error), task, "mine", 0.1)
    assert caught.value is error
    assert kept.states[-3:] == [
        ("WORKER", "TERMINATED", 0),
        ("WORKER", "FAILED", 1),
        ("AGENT", "SUCCEEDED", None),
    ]
    assert numbers.last["workers.trainer.run_failed_no_retries"] == 1


@pytest.mark.parametrize(
    ("seen", "error"),
    [
        pytest.param([], HpcElasticError("no round formed"), id="no round"),
        pytest.param([STARTED], ZeroDivisionError("a defect"), id="a defect"),
        pytest.param(
            [STARTED, RunEnded(phase=Phase.CLOSED, reason="")], RunFailed("cancelled", (FAILURE,)), id="cancelled"
        ),
    ],
)
def test_an_error_of_the_agent_is_reported_with_its_traceback(
    seen: list[Any], error: Exception, task: Task, kept: Kept, numbers: Numbers
) -> None:
    with pytest.raises(type(error)) as caught:
        run_reported(agent(*seen, end=error), task, "mine", 0.1)
    assert caught.value is error
    assert kept.states[-1] == ("AGENT", "FAILED", None)
    assert str(error) in kept.events[-1]["metadata"]["raw_error"]
    assert numbers.last["SimpleElasticAgent.run.failure"] == 1


def test_an_agent_that_a_signal_has_ended_has_failed(task: Task, kept: Kept) -> None:
    assert run_reported(agent(STARTED, end=143), task, "mine", 0.1) == 143
    assert kept.states[-1] == ("AGENT", "FAILED", None)
    assert kept.events[-1]["metadata"]["raw_error"] == "the agent has ended with status 143"


def test_an_unknown_handler_is_an_error_before_the_agent_runs(task: Task) -> None:
    with pytest.raises(
        ConfigError, match=r"^--event-log-handler is 'nowhere', but torch.*has no handler of that name$"
    ):
        run_reported(agent(end=AssertionError("it runs")), task, "nowhere", 0.1)


@pytest.mark.parametrize(
    ("sent", "names", "number"),
    [("SIGTERM", ["timer expired", "kill worker process"], "15"), (None, ["timer expired"], "0")],
)
def test_an_expired_timer_is_reported_like_by_torchs_watchdog(
    sent: str | None, names: list[str], number: str, task: Task, kept: Kept
) -> None:
    expired = TimerExpired(round=1, rank=1, pid=71, scope="save", sent=sent)
    run_reported(agent(STARTED, expired), task, "mine", 0.1)
    told = [event for event in kept.events if event["name"] in ("timer expired", "kill worker process")]
    assert [event["name"] for event in told] == names
    for event in told:
        about = event["metadata"]
        assert (event["source"], about["state"], about["global_rank"]) == ("AGENT", "RUNNING", None)
        assert json.loads(about["metadata"]) == {
            "watchdog_event": event["name"],
            "worker_pid": "71",
            "scope_id": "save",
            "signal": number,
        }


# The command


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        made.write({"train.py": "import os, sys\nsys.exit(int(sys.argv[1]) if os.environ['RANK'] == '1' else 0)\n"})
        yield made


def told(stderr: str) -> list[tuple[Any, ...]]:
    """What the handler ``console`` has printed, without times and processes."""
    lines = [json.loads(line) for line in stderr.splitlines() if line.startswith('{"name": "torchelastic.')]
    return [
        (
            line["name"],
            line["source"],
            *(line["metadata"][key] for key in ("global_rank", "role", "hostname", "run_id")),
        )
        for line in lines
    ]


@pytest.mark.slow
@pytest.mark.parametrize("status", ["0", "7"])
def test_the_console_shows_the_events_that_torchrun_shows(status: str, shell: Shell) -> None:
    flags = ("--event-log-handler", "console", "--nproc-per-node=2", "--rdzv-id=r")
    theirs = shell.start(
        "-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", *flags, "train.py", status
    )
    ours = shell.agent(*flags, "--preload=", "train.py", status)
    found = []
    for process in (theirs, ours):
        _, stderr = process.communicate(timeout=4 * TIMEOUT)
        assert process.returncode == int(status != "0"), stderr
        found.append(told(stderr))
    assert found[1] == found[0]
    assert len(found[1]) > 3


@pytest.mark.slow
def test_an_unknown_handler_leaves_nothing(shell: Shell) -> None:
    done = shell.agent("--event-log-handler=nowhere", "train.py", "0")
    _, stderr = done.communicate(timeout=2 * TIMEOUT)
    assert done.returncode == 2
    assert stderr.startswith("hpcelastic agent: --event-log-handler is 'nowhere'")
    assert not (shell.directory / "runs").exists()
