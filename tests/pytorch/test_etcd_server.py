"""`EtcdServer` of `hpcelastic.pytorch`: torch's cases, and the end of the server and of its data."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hpcelastic.errors import ConfigError
from hpcelastic.pytorch import EtcdServer, EtcdStore
from hpcelastic.pytorch.launch import LaunchConfig, elastic_launch
from tests.backends.test_etcd_server import VARIABLE, program
from tests.backends.test_owned import runs
from tests.pytorch import entries


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of temporary files."""
    found = tmp_path / "temporary"
    found.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(found))
    return found


def test_start_and_stop(temporary: Path) -> None:
    server = EtcdServer()
    server.start()
    try:
        host, port = server.get_host(), server.get_port()
        assert host == "localhost" and port > 0
        assert server.get_endpoint() == f"{host}:{port}"
        assert server.get_client().version.count(".") == 2
        store = EtcdStore(server.get_client(), "/torchelastic/p2p/run_1")
        store.set("a", "1")
        assert store.get("a") == b"1"
        assert len(os.listdir(temporary)) == 1
    finally:
        server.stop()
    assert os.listdir(temporary) == []


def test_it_can_be_started_again_and_stopped_twice(temporary: Path) -> None:
    server = EtcdServer()
    server.stop()
    for _ in range(2):
        server.start()
        with pytest.raises(RuntimeError, match=f"runs already, at localhost:{server.get_port()}"):
            server.start()
        server.stop()
        server.stop()
    assert os.listdir(temporary) == []


def test_one_that_does_not_run_has_no_address() -> None:
    for ask in (EtcdServer().get_port, EtcdServer().get_endpoint, EtcdServer().get_client):
        with pytest.raises(RuntimeError, match=r"does not run; call start\(\) first"):
            ask()


def test_a_directory_of_the_caller_stays(tmp_path: Path, temporary: Path) -> None:
    for expected in (None, b"1"):
        server = EtcdServer(str(tmp_path / "data"))
        server.start()
        try:
            store = EtcdStore(server.get_client(), "p")
            assert expected is None or store.get("a") == expected
            store.set("a", "1")
        finally:
            server.stop()
    assert os.listdir(temporary) == []


def test_it_is_tried_again(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f'[ -e {tmp_path}/tried ] && exec {shutil.which("etcd")} "$@"; touch {tmp_path}/tried; exit 7'
    monkeypatch.setenv(VARIABLE, str(program(tmp_path / "mine", script)))
    with pytest.raises(RuntimeError, match="ended with status 7"):
        EtcdServer().start(num_retries=1)
    assert os.listdir(temporary) == []
    (tmp_path / "tried").unlink()
    server = EtcdServer()
    server.start(num_retries=2)
    server.stop()


def test_one_that_does_not_answer_is_stopped(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(program(tmp_path / "mine", f"echo $$ >> {tmp_path}/pids; exec sleep 1000")))
    with pytest.raises(TimeoutError, match=r"did not answer within 0\.5 s"):
        EtcdServer().start(timeout=0.5, num_retries=2)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2 and not any(map(runs, pids))
    assert os.listdir(temporary) == []


def test_without_etcd_it_says_so(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="etcd is not in PATH"):
        EtcdServer().start()
    assert os.listdir(temporary) == []


def test_its_messages_go_where_the_caller_says(tmp_path: Path) -> None:
    server = EtcdServer()
    with (tmp_path / "messages").open("w") as messages:
        server.start(stderr=messages)
    server.stop()
    assert "etcd" in (tmp_path / "messages").read_text()


SCRIPT = """\
import os, sys, tempfile
from hpcelastic.pytorch import EtcdServer
server = EtcdServer()
server.start()
child = os.fork()
if child == 0:
    sys.exit()  # it calls what atexit has registered
os.waitpid(child, 0)
print(len(os.listdir(tempfile.gettempdir())), server._server.pid, server.get_client().version)
"""


@pytest.mark.slow
def test_it_ends_with_its_process_and_not_with_a_fork_of_it(temporary: Path) -> None:
    environ = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    directories, pid, _ = done.stdout.split()
    assert directories == "1"
    assert not runs(int(pid))
    assert os.listdir(temporary) == []


@pytest.mark.slow
def test_a_launch_meets_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    server = EtcdServer()
    server.start()
    try:
        place = {"rdzv_backend": "etcd", "rdzv_endpoint": server.get_endpoint()}
        times = {"timeout": 60, "last_call_timeout": 1}
        config = LaunchConfig(1, 2, nproc_per_node=2, run_id="run", max_restarts=0, rdzv_configs=times, **place)
        assert elastic_launch(config, entries.echoes)("a") == {0: (0, "a"), 1: (1, "a")}
    finally:
        server.stop()
