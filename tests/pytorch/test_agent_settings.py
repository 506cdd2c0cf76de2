"""The launch that an `ElasticAgent` makes of a WorkerSpec and its rendezvous handler."""

import os
import re
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.agent.server.api import WorkerSpec, WorkerState
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from hpcelastic.agent.settings import Entrypoint
from hpcelastic.errors import ConfigError
from hpcelastic.network.settings import NetworkSettings
from hpcelastic.protocol.settings import NodeRange, RestartSettings
from hpcelastic.pytorch import agent as module
from hpcelastic.pytorch.agent import ElasticAgent
from hpcelastic.pytorch.launch_config import LaunchSpec
from hpcelastic.pytorch.rendezvous_backend import create_dynamic_handler
from hpcelastic.pytorch.telemetry import LaunchOutcome
from hpcelastic.pytorch.torchrun import create_handler
from tests.pytorch import entries
from tests.pytorch.torch_agents import QUICK, handler_of


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[LaunchSpec]:
    """The launches of all agents, which start nothing."""
    found: list[LaunchSpec] = []

    def launch(spec: LaunchSpec, *_: object) -> LaunchOutcome:
        found.append(spec)
        return LaunchOutcome({0: "done"})

    monkeypatch.setattr(module, "run_launch", launch)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # torch creates a directory for logs and does not remove it
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    return found


def agent(handler: RendezvousHandler, directory: Path, entrypoint: Any = entries.passes, **given: Any) -> ElasticAgent:
    arguments = {name: given.pop(name) for name in ("start_method", "shutdown_timeout") if name in given}
    spec = WorkerSpec("trainer", 2, handler, entrypoint=entrypoint, **given)
    return ElasticAgent(spec, DefaultLogsSpecs(str(directory / "logs"), tee=Std.OUT), **arguments)


def test_the_handler_of_the_plug_in_tells_everything_about_the_run(launches: list[LaunchSpec], tmp_path: Path) -> None:
    conf = {**QUICK, "interface": "lo", "notifications": False}
    handler = create_handler(RendezvousParameters("hpcelastic", str(tmp_path), "r", 2, 3, "127.0.0.1", **conf))
    result = agent(handler, tmp_path, max_restarts=4).run()
    assert (result.state, result.return_values) == (WorkerState.SUCCEEDED, {0: "done"})
    (launch,) = launches
    task, nodes = launch.task, NodeRange(2, 3)
    assert (task.paths, task.run_id, task.settings.nodes) == (handler.spec.paths, "r", nodes)
    assert task.settings.rendezvous == handler.spec.settings.rendezvous
    assert task.settings.restarts == RestartSettings(4, refill_interval=0, refill_steps=0, identical=0)
    assert task.agent.network == NetworkSettings("lo", notifications=False)
    assert (launch.identity.address, launch.temporary) == ("127.0.0.1", False)


def test_the_spec_tells_everything_about_the_workers(
    launches: list[LaunchSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGQUIT")
    given = {"args": ("-c", "exit ${local_rank}"), "shutdown_timeout": 7, "duplicate_stdout_filters": ["loss"]}
    where = {"master_addr": "n1", "master_port": 29501, "local_addr": "127.0.0.2"}
    agent(handler_of(tmp_path), tmp_path, "sh", monitor_interval=0.5, virtual_local_rank=True, **given, **where).run()
    (launch,) = launches
    settings = launch.task.agent
    assert settings.entrypoint == Entrypoint(program="sh", args=("-c", "exit ${local_rank}"))
    workers = settings.workers
    assert (workers.per_node, workers.role, workers.stop_grace, workers.virtual_local_rank) == (2, "trainer", 7, True)
    assert (settings.logs.tee, settings.logs.match_out) == ("out", ("loss",))
    assert settings.environment["MASTER_ADDR"] == "n1"
    assert (settings.store_port, launch.identity.address, launch.monitor_interval) == (29501, "127.0.0.2", 0.5)
    assert signal.SIGQUIT in launch.extra_signals


def test_a_function_may_be_named_as_fn(launches: list[LaunchSpec], tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning):
        spec = WorkerSpec("trainer", 1, handler_of(tmp_path), fn=entries.echoes, args=("a",))
    ElasticAgent(spec, DefaultLogsSpecs(str(tmp_path / "logs"))).run()
    (launch,) = launches
    assert (launch.event_context.entrypoint, launch.task.agent.entrypoint.module) == ("echoes", "hpcelastic.worker")


@pytest.mark.parametrize("master", [{}, {"master_addr": "n1", "master_port": 29500}], ids=["alone", "as torch's"])
def test_the_static_rendezvous_of_torch_tells_the_address_and_the_rank(
    master: dict[str, Any], launches: list[LaunchSpec], tmp_path: Path
) -> None:
    agent(StaticTCPRendezvous("n1", 29500, 1, 2, "r", 60), tmp_path, **master).run()
    (launch,) = launches
    task, rendezvous = launch.task, launch.task.settings.rendezvous
    assert (rendezvous.backend, rendezvous.endpoint, rendezvous.join_timeout) == ("static", "n1:29500", 60)
    assert (task.settings.nodes, launch.identity.order) == (NodeRange(2, 2), 1)
    assert task.paths.root == tmp_path / "runs" / "r"
    assert (task.agent.store_port, "MASTER_ADDR" in task.agent.environment) == (0, False)


def test_the_address_of_the_static_rendezvous_may_be_that_of_ipv6(launches: list[LaunchSpec], tmp_path: Path) -> None:
    agent(StaticTCPRendezvous("fd00::1", 29500, 1, 2, "r", 60), tmp_path).run()
    (launch,) = launches
    assert launch.task.settings.rendezvous.endpoint == "[fd00::1]:29500"


def test_the_example_of_the_page_creates_an_agent(launches: list[LaunchSpec], tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "torchrun.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (example,) = (text for text in examples if "ElasticAgent(" in text)
    names: dict[str, Any] = {"train": entries.passes}
    exec(example.replace("/scratch/me/runs", str(tmp_path / "runs")), names)
    (launch,) = launches
    assert names["result"].return_values == {0: "done"}
    assert (launch.task.paths.root, launch.task.settings.nodes) == (tmp_path / "runs" / "mine", NodeRange(2, 4))


def dynamic_handler(directory: Path, nodes: int) -> RendezvousHandler:
    times = {"join_timeout": 70, "last_call_timeout": 3}
    return create_dynamic_handler(
        RendezvousParameters("hpcelastic-dynamic", str(directory), "r", nodes, nodes, **times)
    )


def test_a_run_of_one_node_needs_nothing_but_a_name(
    launches: list[LaunchSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "")  # set by the handler
    for _ in range(2):
        agent(dynamic_handler(tmp_path, nodes=1), tmp_path).run()
    first, second = (launch.task for launch in launches)
    rendezvous = first.settings.rendezvous
    assert (first.run_id, first.settings.nodes) == ("r", NodeRange(1, 1))
    assert (rendezvous.backend, rendezvous.join_timeout, rendezvous.last_call) == ("file", 70, 3)
    assert first.paths != second.paths
    assert first.paths.root.parent == tmp_path / "logs"


def test_a_handler_that_does_not_tell_where_other_nodes_are_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "")  # set by the handler
    with pytest.raises(
        ConfigError, match=r"'hpcelastic-dynamic' does not tell .*; create it with Rendez.*'hpcelastic'"
    ):
        agent(dynamic_handler(tmp_path, nodes=2), tmp_path)


def test_the_health_check_server_is_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found: list[object] = []
    monkeypatch.setattr(module, "run_launch", lambda *args: found.extend(args) or LaunchOutcome())
    server = object()
    spec = WorkerSpec("trainer", 1, handler_of(tmp_path), entrypoint=entries.passes)
    ElasticAgent(spec, DefaultLogsSpecs(os.devnull), health_check_server=server).run()
    assert found[-1] is server


def test_a_start_method_that_does_not_exist_is_refused(launches: list[LaunchSpec], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="start_method is 'thread'"):
        agent(handler_of(tmp_path), tmp_path, start_method="thread").run()
    assert launches == []


@dataclass
class Newest(WorkerSpec):
    """The WorkerSpec of a newer torch."""

    teleport: bool = False


@pytest.mark.parametrize("teleport", [False, True], ids=["not set", "set"])
def test_a_field_of_a_newer_torch_is_refused_if_it_is_set(teleport: bool, tmp_path: Path) -> None:
    spec = Newest("trainer", 1, handler_of(tmp_path), entrypoint=entries.passes, teleport=teleport)
    if not teleport:
        assert ElasticAgent(spec, DefaultLogsSpecs(os.devnull)).get_worker_group().state is WorkerState.INIT
        return
    with pytest.raises(ConfigError, match=r"Newest.teleport is not supported"):
        ElasticAgent(spec, DefaultLogsSpecs(os.devnull))
