"""torch's `elastic_launch` and hpcelastic's with the same input: results, errors, and torch's events and metrics."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.elastic import metrics
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousTimeoutError
from torch.numa.binding import AffinityMode, NumaOptions

from hpcelastic.errors import ConfigError
from hpcelastic.pytorch.launch import LaunchConfig, elastic_launch
from hpcelastic.pytorch.launch_config import launch_spec
from tests.cluster.waiting import wait_until
from tests.ports import free_port
from tests.pytorch import entries
from tests.pytorch.recorded import Register
from tests.pytorch.sides import SIDES, Ours, Side

ROOT = Path(__file__).parents[2]
TIMEOUT = 100.0

pytestmark = pytest.mark.slow

Make = Callable[..., Side]


@pytest.fixture(autouse=True)
def temporary_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove temporary files: every LaunchConfig creates a directory that torch does not remove."""
    with tempfile.TemporaryDirectory(prefix="launch-") as directory:
        monkeypatch.setenv("TMPDIR", directory)
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield


@pytest.fixture(autouse=True)
def signals_put_back() -> Iterator[None]:
    """Restore signal handlers, because torch's own agent does not."""
    before = {
        signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    }
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


BOTH = [pytest.param("torch", marks=pytest.mark.weekly), "hpcelastic"]
"""torch itself is tried seldom: its results change only with its version."""


@pytest.fixture(params=BOTH)
def side(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Return a function that creates a launch, of torch's and of hpcelastic's."""
    return lambda **fields: SIDES[request.param](tmp_path, **fields)


@pytest.fixture
def ours(tmp_path: Path) -> Make:
    return lambda **fields: Ours(tmp_path, **fields)


# Functions


def test_the_results_of_each_rank_of_the_node(side: Make) -> None:
    assert side().launch(entries.echoes, "a", {"b": 1.5}) == {0: (0, "a", {"b": 1.5}), 1: (1, "a", {"b": 1.5})}


def test_a_macro_in_an_argument_becomes_the_local_rank(side: Make) -> None:
    assert side().launch(entries.echoes, "at ${local_rank}", 7) == {0: (0, "at 0", 7), 1: (1, "at 1", 7)}


def test_a_function_sees_the_arguments_of_its_caller(side: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.1"])
    assert side(nproc_per_node=1).launch(entries.arguments) == {0: 2 * ["train.py", "--lr", "0.1"]}


def test_a_function_that_cannot_be_imported_is_passed_by_value(ours: Make) -> None:
    factor = 3
    assert ours().launch(lambda x: factor * x, 2) == {0: 6, 1: 6}


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_any_start_method_is_accepted(ours: Make, method: str) -> None:
    assert ours(start_method=method, nproc_per_node=1).launch(entries.echoes) == {0: (0,)}


def test_workers_have_the_role_and_the_remaining_restarts(side: Make) -> None:
    names = ("ROLE_NAME", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_SIGNALS_TO_HANDLE")
    launch = side(role="trainer", max_restarts=2, nproc_per_node=1, run_id="mine", signals_to_handle="SIGTERM")
    assert launch.launch(entries.environment, *names) == {0: ["trainer", "2", "mine", "SIGTERM"]}


def test_a_virtual_local_rank_is_0_with_one_gpu(side: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    results = side(virtual_local_rank=True).launch(entries.environment, "LOCAL_RANK", "CUDA_VISIBLE_DEVICES")
    assert results == {0: ["0", "4"], 1: ["0", "6"]}


def test_a_launch_in_another_thread(ours: Make) -> None:
    found: list[dict[int, Any]] = []
    thread = threading.Thread(target=lambda: found.append(ours().launch(entries.echoes)))
    thread.start()
    thread.join(TIMEOUT)
    assert found == [{0: (0,), 1: (1,)}]


def test_the_calling_process_is_not_changed(ours: Make) -> None:
    def node_state() -> tuple[Any, ...]:
        signums = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
        environment = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
        return ([signal.getsignal(s) for s in signums], sys.stdout, sys.stderr, environment)

    def threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if not thread.name.startswith("output ")}

    before, before_threads = node_state(), threads()
    child = subprocess.Popen(["sh", "-c", "exit 7"], start_new_session=True)
    ours(signals_to_handle="SIGTERM,SIGQUIT").launch(entries.takes, 1.0)
    assert child.wait() == 7
    assert node_state() == before
    wait_until("the end of all new threads", threads, before_threads.issuperset, 10.0, lambda: "")


# Failures


def test_the_error_has_the_exception_of_the_rank_that_failed(side: Make) -> None:
    with pytest.raises(ChildFailedError) as caught:
        side().launch(entries.raises_on, 1)
    rank, failure = caught.value.get_first_failure()
    assert (caught.value.name, list(caught.value.failures), rank) == ("raises_on", [1], 1)
    assert (failure.local_rank, failure.exitcode, failure.pid > 0) == (1, 1, True)
    message: Any = failure.message
    assert message["message"] == "ArithmeticError: rank 1 has diverged"
    assert "in raises_on" in message["extraInfo"]["py_callstack"]
    assert json.loads(Path(failure.error_file).read_text()) == failure.error_file_data
    assert "ArithmeticError: rank 1 has diverged" in str(caught.value)


def test_the_error_names_the_signal_that_killed_a_rank(side: Make) -> None:
    with pytest.raises(ChildFailedError) as caught:
        side(nproc_per_node=1).launch(entries.is_killed, "")
    (failure,) = caught.value.failures.values()
    assert (failure.exitcode, failure.signal_name(), failure.error_file) == (-9, "SIGKILL", "<N/A>")
    assert failure.message == f"Signal 9 (SIGKILL) received by PID {failure.pid}"


def test_a_launcher_under_record_reports_the_root_cause(
    side: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    with pytest.raises(ChildFailedError):
        record(side().launch)(entries.raises_on, 0)
    report = json.loads((tmp_path / "error.json").read_text())["message"]
    assert (report["message"], report["errorCode"]) == ("ArithmeticError: rank 0 has diverged", 1)


def test_workers_are_started_again_as_often_as_allowed(side: Make, tmp_path: Path) -> None:
    with pytest.raises(ChildFailedError):
        side(max_restarts=1).launch(entries.raises_on, 0, str(tmp_path))
    assert {path.name.partition(".")[0] for path in tmp_path.glob("?.?")} == {"0", "1"}


def test_a_restart_that_works_is_a_success(side: Make) -> None:
    assert side(max_restarts=2).launch(entries.works_at_last, 3) == {0: 3, 1: 3}


# Commands


def test_a_program_is_run_on_each_rank(side: Make, tmp_path: Path) -> None:
    code = "import os, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(os.environ['RANK'])"
    assert side().launch("python", "-c", code, f"{tmp_path}/at.${{local_rank}}") == {0: None, 1: None}
    assert [(tmp_path / f"at.{rank}").read_text() for rank in range(2)] == ["0", "1"]


def test_a_script_is_run_by_python(side: Make, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, pathlib, sys; pathlib.Path(sys.argv[1] + os.environ['RANK']).touch()")
    assert side().launch(sys.executable, "-u", str(script), f"{tmp_path}/done.") == {0: None, 1: None}
    assert {path.name for path in tmp_path.glob("done.*")} == {"done.0", "done.1"}


def test_a_script_needs_no_python_before_it(ours: Make, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import pathlib, sys; pathlib.Path(sys.argv[1]).touch()")
    ours(nproc_per_node=1).launch(str(script), tmp_path / "done")
    assert (tmp_path / "done").exists()


def test_the_error_has_the_exit_status_of_a_program(side: Make) -> None:
    with pytest.raises(ChildFailedError) as caught:
        side(nproc_per_node=1).launch("sh", "-c", "exit 3")
    (failure,) = caught.value.failures.values()
    assert (caught.value.name, failure.exitcode, failure.error_file) == ("sh", 3, "<N/A>")


def test_a_script_under_record_reports_its_exception(side: Make, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\ndef main():\n    raise LookupError('no data')\nmain()\n"
    )
    with pytest.raises(ChildFailedError) as caught:
        side(nproc_per_node=1).launch(sys.executable, str(script))
    (failure,) = caught.value.failures.values()
    assert failure.message["message"] == "LookupError: no data"  # type: ignore[index]  # as recorded
    assert (caught.value.name, failure.exitcode) == (str(script), 1)


# Two nodes


def node(side: str, directory: Path, entry: str, args: list[Any], **fields: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.pytorch.node", side, str(directory), entry]
    return subprocess.Popen(
        [*command, json.dumps(fields), json.dumps(args)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def report(process: "subprocess.Popen[str]") -> Any:
    out, _ = process.communicate(timeout=TIMEOUT)
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize("name", BOTH)
def test_two_nodes_on_a_machine_have_different_ranks(name: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"min_nodes": 2, "max_nodes": 2}
    if name == "torch":
        fields["rdzv_endpoint"] = f"localhost:{free_port()}"
    nodes = [node(name, tmp_path, "echoes", [f"from {i}"], **fields) for i in range(2)]
    found = [report(each)["results"] for each in nodes]
    assert sorted(rank for part in found for rank in part) == ["0", "1", "2", "3"]
    for i, part in enumerate(found):  # each node calls the function that it was given itself
        assert part == {rank: [int(rank), f"from {i}"] for rank in part}
        assert len(part) == 2


def test_every_node_raises_the_root_cause(tmp_path: Path) -> None:
    nodes = [node("hpcelastic", tmp_path, "raises_on", [3], min_nodes=2, max_nodes=2) for _ in range(2)]
    assert [report(each) for each in nodes] == [{"root": 3, "message": "ArithmeticError: rank 3 has diverged"}] * 2


@pytest.mark.parametrize(
    ("name", "signum"),
    [
        pytest.param("torch", signal.SIGTERM, marks=pytest.mark.weekly),
        ("hpcelastic", signal.SIGTERM),
        ("hpcelastic", signal.SIGQUIT),
    ],
)
def test_a_signal_ends_the_workers_and_is_raised(name: str, signum: signal.Signals, tmp_path: Path) -> None:
    process = node(name, tmp_path, "waits", [str(tmp_path)], shutdown_timeout=5)
    deadline = time.monotonic() + TIMEOUT
    files = [tmp_path / str(rank) for rank in range(2)]
    while not all(file.exists() and file.read_text() for file in files):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signum)
    assert report(process) == {"signal": signum.name}
    assert [file.read_text() for file in files if Path("/proc", file.read_text()).exists()] == []


# The rendezvous


def test_no_node_joins_an_ended_run(ours: Make) -> None:
    ours(nproc_per_node=1).launch(entries.echoes)
    with pytest.raises(RendezvousClosedError, match="succeeded already"):
        ours(nproc_per_node=1).launch(entries.echoes)


def test_a_node_without_others_ends_in_time(side: Make) -> None:
    with pytest.raises(RendezvousTimeoutError):
        side(min_nodes=2, max_nodes=2, rdzv_configs={"timeout": 2, "join_timeout": 2}).launch(entries.echoes)


def test_without_a_directory_a_run_of_one_node_is_in_its_directory_of_logs(tmp_path: Path) -> None:
    logs = DefaultLogsSpecs(str(tmp_path / "logs"), redirects=Std.OUT)
    config = LaunchConfig(1, 1, 1, logs_specs=logs, run_id="a/b", rdzv_endpoint="localhost:0")
    for _ in range(2):  # each in a directory of its own, as torch's
        elastic_launch(config, entries.speaks)()
    kept = sorted((tmp_path / "logs").glob("a-b_*/logs/round-0001/rank-00000.*"))
    assert [path.suffix for path in kept] == [".out", ".out"]
    assert {path.read_text() for path in kept} == {"out of 0: loss\n"}


def test_logs_are_in_the_requested_directory(ours: Make, tmp_path: Path) -> None:
    logs = DefaultLogsSpecs(str(tmp_path / "logs"), redirects=Std.ERR)
    ours(logs_specs=logs, nproc_per_node=1).launch(entries.speaks)
    assert (tmp_path / "logs" / "run" / "round-0001" / "rank-00000.err").read_text() == "err of 0: acc\n"


# Output


@pytest.mark.parametrize(
    ("redirects", "tee", "only"),
    [
        (Std.NONE, Std.NONE, None),
        (Std.ALL, Std.NONE, None),
        (Std.NONE, Std.ALL, None),
        (Std.OUT, Std.ERR, {1}),
        (Std.NONE, Std.NONE, {0}),
        ({0: Std.OUT}, {1: Std.OUT}, None),
    ],
)
def test_the_console_output_is_that_of_torch(
    redirects: Any, tee: Any, only: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shown = []
    for name, make in SIDES.items():
        specs = DefaultLogsSpecs(str(tmp_path / name), redirects, tee, only)
        launch = make(tmp_path, logs_specs=specs, role="r", log_line_prefix_template="${role_name}/${rank}> ")
        launch.launch(entries.speaks)
        out, err = capfd.readouterr()
        shown.append((sorted(out.splitlines()), sorted(line for line in err.splitlines() if ": acc" in line)))
    assert shown[1] == shown[0]


def test_lines_begin_with_role_and_local_rank(side: Make, capfd: pytest.CaptureFixture[str]) -> None:
    side(logs_specs=DefaultLogsSpecs(tee=Std.OUT), role="r").launch(entries.speaks)
    assert sorted(capfd.readouterr().out.splitlines()) == ["[r0]:out of 0: loss", "[r1]:out of 1: loss"]


def test_selected_lines_are_copied_to_a_file(ours: Make, tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(str(tmp_path / "logs"), tee=Std.ALL)
    ours(logs_specs=specs, duplicate_stdout_filters=["of 1", "other"], role="r").launch(entries.speaks)
    logs = tmp_path / "runs" / "run" / "logs" / "round-0001"
    (kept,) = logs.glob("match-*")
    assert (kept.suffix, kept.read_text()) == (".out", "[r1]:out of 1: loss\n")


# Events and metrics


@pytest.mark.parametrize(
    ("entry", "args", "fields"),
    [
        ("echoes", (), {}),
        ("raises_on", (1,), {}),
        ("works_at_last", (2,), {"max_restarts": 3}),
        ("echoes", (), {"min_nodes": 2, "max_nodes": 2, "rdzv_configs": {"join_timeout": 2}}),
    ],
    ids=["succeeds", "fails", "is restarted", "stays alone"],
)
def test_a_handler_of_events_gets_the_events_of_torch(
    entry: str, args: tuple[Any, ...], fields: dict[str, Any], tmp_path: Path, registered: Register
) -> None:
    found = []
    for name, make in SIDES.items():
        kept = registered(name)
        try:
            make(tmp_path, event_log_handler=name, role="r", **fields).launch(getattr(entries, entry), *args)
        except (ChildFailedError, RendezvousTimeoutError):
            assert name
        found.append([summary(event) for event in kept.events])
    assert found[1] == found[0]
    assert len(found[0]) >= 1


def summary(event: dict[str, Any]) -> dict[str, Any]:
    """Return the part of an event that is the same in both implementations: all but times, processes, directories."""
    data = event["metadata"]
    error = json.loads(data["raw_error"])["message"] if data["raw_error"] and data["global_rank"] is not None else None
    return {
        "name": event["name"],
        "source": event["source"],
        "has": sorted(data),
        **{key: data[key] for key in ("run_id", "global_rank", "group_rank", "role", "hostname", "state")},
        "restarts": data["agent_restarts"],
        "timed": data["duration_ms"] is not None,
        "has a process": data["worker_id"] is not None,
        "error": error and error["message"],
        "metadata": {k: v for k, v in json.loads(data["metadata"]).items() if k != "worker_pid"},
    }


def test_the_events_of_the_rendezvous_are_like_torchs(ours: Make, registered: Register) -> None:
    kept = registered("dynamic_rendezvous")
    ours(nproc_per_node=1).launch(entries.echoes)
    assert {event["run_id"] for event in kept.events} == {"run"}
    assert kept.states[-2:] == ["RUNNING", "SUCCEEDED"]
    assert kept.events[-1]["message"] == "all workers of round 1 succeeded"


def test_a_timer_ends_a_worker_and_is_told(ours: Make, registered: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    monkeypatch.delenv("TORCHELASTIC_TIMER_FILE", raising=False)
    kept = registered("mine")
    with pytest.raises(ChildFailedError) as caught:  # torch's agent would kill this process too
        ours(nproc_per_node=1, event_log_handler="mine").launch(entries.hangs_under_a_timer)
    (failure,) = caught.value.failures.values()
    assert failure.exitcode == -signal.SIGKILL
    told = [event["metadata"] for event in kept.events if event["name"] in ("timer expired", "kill worker process")]
    assert [json.loads(data["metadata"])["watchdog_event"] for data in told] == ["timer expired", "kill worker process"]
    assert {json.loads(data["metadata"])["scope_id"] for data in told} == {"save"}


def test_a_rendezvous_that_takes_too_long_is_recorded_as_failed(ours: Make, registered: Register) -> None:
    kept = registered("dynamic_rendezvous")
    with pytest.raises(RendezvousTimeoutError):
        ours(min_nodes=2, max_nodes=2, rdzv_configs={"join_timeout": 1}).launch(entries.echoes)
    assert kept.states[-1] == "FAILED"
    assert kept.events[-1]["message"].startswith("RendezvousTimeoutError: ")


class Numbers(metrics.MetricHandler):
    """A handler of metrics, such as a dashboard configures. If ``broken``, it raises an error for each metric."""

    def __init__(self, broken: bool = False) -> None:
        self.all: list[metrics.MetricData] = []
        self._broken = broken

    def emit(self, metric_data: metrics.MetricData) -> None:
        self.all.append(metric_data)
        if self._broken:
            raise OSError("the dashboard is away")

    @property
    def last(self) -> dict[str, Any]:
        assert {data.group_name for data in self.all} == {"torchelastic"}
        return {data.name: data.value for data in self.all}


@pytest.fixture
def numbers() -> Iterator[Callable[..., Numbers]]:
    def configure(**how: Any) -> Numbers:
        kept = Numbers(**how)
        metrics.configure(kept)
        return kept

    yield configure
    metrics.configure(metrics.NullMetricHandler())


@pytest.mark.parametrize(
    ("entry", "args", "restarts"),
    [("takes", (2.0,), 1), ("raises_on", (0,), 0), ("works_at_last", (2,), 2)],
    ids=["succeeds", "fails", "is restarted"],
)
def test_a_handler_of_metrics_gets_the_metrics_of_torch(
    entry: str, args: tuple[Any, ...], restarts: int, tmp_path: Path, numbers: Callable[..., Numbers]
) -> None:
    found = []
    for make in SIDES.values():
        kept = numbers()
        try:
            make(tmp_path, role="r", max_restarts=restarts).launch(getattr(entries, entry), *args)
        except ChildFailedError:
            assert entry == "raises_on"
        found.append(kept.last)
    torchs, ours = ({k: v for k, v in side.items() if k.startswith("workers.")} for side in found)
    assert ours == torchs
    assert "workers.r.healthy" in ours
    timed = {name for name in found[1] if not name.startswith("workers.")}
    assert timed <= {*found[0]}
    assert {"SimpleElasticAgent.run.success", "SimpleElasticAgent._rendezvous.duration.ms"} <= timed


def test_a_failed_handler_has_no_effect(
    ours: Make, numbers: Callable[..., Numbers], caplog: pytest.LogCaptureFixture
) -> None:
    numbers(broken=True)
    assert ours(nproc_per_node=1).launch(entries.echoes) == {0: (0,)}
    assert "the dashboard is away" in caplog.text


# Invalid input


LOCK = threading.Lock()


@pytest.mark.parametrize(
    ("fields", "entrypoint", "message"),
    [
        ({}, None, "the entry point is None"),
        ({}, "no-such-program", "no-such-program: no such program"),
        ({}, "no-such-script.py", "no such script"),
        ({}, LOCK.acquire, "cannot be pickled"),
        (
            {"max_nodes": 2, "rdzv_endpoint": "runs"},
            entries.echoes,
            "'runs', but there is no such directory; write ./runs",
        ),
        ({"max_nodes": 2, "rdzv_endpoint": ""}, entries.echoes, "name a directory that all nodes share"),
        (
            {"max_nodes": 2, "rdzv_endpoint": "n1:1", "rdzv_backend": "mine"},
            entries.echoes,
            "LaunchConfig.rdzv_backend is 'mine'; use one of",
        ),
        ({"run_id": "a/b"}, entries.echoes, "LaunchConfig.run_id is 'a/b'"),
        ({"rdzv_endpoint": __file__}, entries.echoes, "which is a file"),
        ({"min_nodes": 2}, entries.echoes, "nodes.min is 2, more than nodes.max"),
        ({"nproc_per_node": 0}, entries.echoes, "LaunchConfig.nproc_per_node is 0"),
        ({"max_restarts": -1}, entries.echoes, "restarts.max is -1"),
        ({"monitor_interval": 0}, entries.echoes, "LaunchConfig.monitor_interval is 0"),
        ({"start_method": "thread"}, entries.echoes, "start_method is 'thread'"),
        ({"rdzv_configs": {"retries": 3}}, entries.echoes, "LaunchConfig.rdzv_configs: 'retries' is not a known key"),
        ({"rdzv_configs": {"timeout": "soon"}}, entries.echoes, "timeout is 'soon'; write seconds"),
        ({"rdzv_configs": {"rank": "first"}}, entries.echoes, "rank is the node's number"),
        ({"event_log_handler": "none"}, entries.echoes, "event_log_handler is 'none'"),
        ({"signals_to_handle": "SIGTERM,SIGUSR1"}, entries.echoes, "has 'SIGUSR1': hpcelastic handles it as a warning"),
        ({"signals_to_handle": "SIGKILL"}, entries.echoes, "has 'SIGKILL': no process can handle it"),
        ({"signals_to_handle": "SIGFOO"}, entries.echoes, "has 'SIGFOO': there is no such signal"),
    ],
)
def test_invalid_launches_are_refused_before_the_start(
    fields: dict[str, Any], entrypoint: Any, message: str, ours: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    with pytest.raises(ConfigError) as caught:
        ours(**fields).launch(entrypoint)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("backend", "endpoint", "expected"),
    [
        pytest.param("etcd", "DIR", ("file", ""), id="a directory"),
        pytest.param("c10d", "DIR", ("file", ""), id="a directory, and a backend that needs none"),
        pytest.param("c10d", "n1:29400", ("c10d", "n1:29400"), id="c10d"),
        pytest.param("static", "n1:29500", ("static", "n1:29500"), id="static"),
        pytest.param("etcd-v2", "n1:2379", ("etcd-v2", "n1:2379"), id="etcd"),
    ],
)
def test_the_backend_determines_the_place_of_a_run(
    backend: str, endpoint: str, expected: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    endpoint = endpoint.replace("DIR", str(tmp_path / "runs"))
    config = LaunchConfig(2, 2, 1, run_id="r", rdzv_backend=backend, rdzv_endpoint=endpoint, rdzv_configs={"rank": 1})
    task = launch_spec(config, entries.echoes, []).task
    assert (task.settings.rendezvous.backend, task.settings.rendezvous.endpoint) == expected
    assert task.paths.root == tmp_path / "runs" / "r"


@pytest.mark.parametrize(
    ("backend", "endpoint", "conf", "expected"),
    [
        ("etcd", "n1:2379", {"protocol": "https"}, {"endpoint": "https://n1:2379"}),
        ("etcd", "n1:2379", {"ca_cert": "/ca.pem", "cert": "/c.pem", "key": "/k.pem"}, {"cacert": "/ca.pem"}),
        ("etcd-v2", "n1:2379", {"cacert": "/ca.pem", "etcd_prefix": "/ours"}, {"cacert": "/ca.pem", "prefix": "/ours"}),
    ],
    ids=["https", "v3", "v2"],
)
def test_tls_and_the_prefix_of_a_server_are_honoured(
    backend: str, endpoint: str, conf: dict[str, str], expected: dict[str, str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    config = LaunchConfig(2, 2, 1, run_id="r", rdzv_backend=backend, rdzv_endpoint=endpoint, rdzv_configs=conf)
    rendezvous = launch_spec(config, entries.echoes, []).task.settings.rendezvous
    assert {name: getattr(rendezvous, name) for name in expected} == expected


def test_the_choice_of_the_store_server_is_honoured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"run_id": "r", "rdzv_backend": "c10d", "rdzv_endpoint": "n1:29400", "rdzv_configs": {"is_host": "0"}}
    assert launch_spec(LaunchConfig(2, 2, 1, **given), entries.echoes, []).task.is_host is False


@dataclass
class Newest(LaunchConfig):
    """The LaunchConfig of a newer torch."""

    teleport: bool = False
    speed: float | None = None
    exit_barrier_timeout: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.speed = 300.0 if self.speed is None else self.speed
        self.exit_barrier_timeout = self.exit_barrier_timeout or 300.0


@pytest.mark.parametrize(
    ("field", "value"), [("teleport", True), ("speed", 5.0)], ids=["set", "other than what it becomes by itself"]
)
def test_a_field_of_a_newer_torch_is_refused_if_it_is_set(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"Newest.{field} is not supported"):
        launch_spec(Newest(1, 1, 1, **{field: value}), entries.echoes, [])


@pytest.mark.parametrize("fields", [{}, {"exit_barrier_timeout": 5.0}], ids=["none is set", "its exit barrier"])
def test_a_launch_config_of_a_newer_torch_is_accepted(fields: dict[str, Any]) -> None:
    assert launch_spec(Newest(1, 1, 1, **fields), entries.echoes, []).event_context.entrypoint == "echoes"


def test_a_run_without_a_name_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    config = LaunchConfig(1, 2, 1, rdzv_endpoint=str(tmp_path))
    names = {launch_spec(config, entries.echoes, []).task.run_id for _ in range(2)}
    assert len(names) == 2 and all(re.fullmatch(r"[0-9]+", name) for name in names)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has GPUs, so its workers can be bound")
def test_workers_that_cannot_be_bound_start_only_if_that_is_optional(ours: Make) -> None:
    with pytest.raises(ConfigError, match=r"workers.numa is node"):
        ours(numa_options=NumaOptions(AffinityMode.NODE)).launch(entries.echoes)
    optional = NumaOptions(AffinityMode.NODE, should_fall_back_if_binding_fails=True)
    assert ours(numa_options=optional).launch(entries.echoes) == {0: (0,), 1: (1,)}
