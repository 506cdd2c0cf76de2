"""The server of a run whose settings name no server."""

from pathlib import Path

import pytest

from hpcelastic.agent.member import NodeIdentity
from hpcelastic.entry import Entry, enter_run
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, Settings
from hpcelastic.slurm import server
from hpcelastic.slurm.server import server_of
from hpcelastic.storage.paths import RunPaths

STATIC = Settings(NodeRange(1, 2), RendezvousSettings(backend="static"))
LOGIN = "192.0.2.9"
"""Address of a login node on which srun runs."""


def place(order: int, job: str = "7", restart: int = 0) -> NodeIdentity:
    return NodeIdentity(
        f"n{order}", job=job, job_nodes=2, restart=restart, order=order, address=f"127.0.0.{order + 1}", launcher=LOGIN
    )


def address(paths: RunPaths, at: NodeIdentity) -> str:
    with server_of(paths, STATIC, at, lambda line: None) as found:
        return found


def test_the_first_node_serves_instead_of_the_node_of_srun(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run")
    with enter_run(Entry(paths, "run", STATIC, place(0))) as entered:
        assert entered.found.state.run_id == "run"
        assert entered.backend.register("").where == "static at 127.0.0.1:20007"


def test_the_other_nodes_find_the_first_one(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    assert address(paths, place(0)) == "127.0.0.1:20007"
    assert address(paths, place(1)) == "127.0.0.1:20007"
    assert address(paths, place(0, job="8")) == "127.0.0.1:20007", "a job of one node that replaces a lost one"


def test_a_requeued_job_does_not_use_the_previous_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_TIMEOUT", 0.2)
    paths = RunPaths(tmp_path)
    address(paths, place(0))
    with pytest.raises(StoreError, match="the first node of the job did not write"):
        address(paths, place(1, restart=1))
    paths.server.write_text(paths.server.read_text().replace("127.0.0.1", "127.0.0.9"))
    assert address(paths, place(0, restart=1)) == "127.0.0.1:20007"
    assert address(paths, place(1, restart=1)) == "127.0.0.1:20007"


def test_outside_of_slurm_static_needs_an_endpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a HOST:PORT"):
        address(RunPaths(tmp_path), place(0, job="local-3f"))
