"""The etcd server that this package starts: its program, its messages, its end."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcelastic.backends import etcd_server
from hpcelastic.backends.etcd import connect
from hpcelastic.backends.etcd_server import EtcdNotReady, EtcdServer
from hpcelastic.errors import ConfigError, StoreError
from tests.backends.test_owned import runs
from tests.cli.shell import eventually

VARIABLE = "TORCHELASTIC_ETCD_BINARY_PATH"

OWNER = """\
import pathlib, signal, sys
from hpcelastic.backends.etcd_server import EtcdServer
print(EtcdServer(pathlib.Path(sys.argv[1])).pid, flush=True)
signal.pause()
"""


STUBBORN = """\
import http.server, signal, sys
class Member(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"true"[:replies.pop()])
replies = [4, 1]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
(url,) = [argument for argument in sys.argv if argument.startswith("--listen-client-urls=")]
http.server.HTTPServer(("127.0.0.1", int(url.rpartition(":")[2])), Member).serve_forever()
"""
"""A server that does not end by SIGTERM. Its first reply is cut off."""


def program(path: Path, script: str) -> Path:
    """An executable that stands for etcd."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_it_ends_when_its_owner_is_killed_and_its_data_can_be_used_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert "etcd" in Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0]
        os.kill(owner.pid, signal.SIGKILL)
    eventually(lambda: not runs(pid))
    EtcdServer(tmp_path).stop()


def test_the_environment_names_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        VARIABLE, str(program(tmp_path / "mine", f'touch {tmp_path}/used; exec {shutil.which("etcd")} "$@"'))
    )
    EtcdServer(tmp_path / "data").stop()
    assert (tmp_path / "used").exists()


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=f"{VARIABLE} is '{tmp_path}/none', which is not a program"):
        EtcdServer(tmp_path / "data")
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=f"etcd is not in PATH.*{VARIABLE}"):
        EtcdServer(tmp_path / "data")


def test_one_that_ends_at_once_is_reported_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(program(tmp_path / "mine", "echo no such option >&2; exit 7")))
    with pytest.raises(StoreError, match=r"ended with status 7; .*etcd\.log ends with: no such option"):
        EtcdServer(tmp_path / "data")


def test_one_that_does_not_answer_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(program(tmp_path / "mine", f"echo $$ > {tmp_path}/pid; exec sleep 1000")))
    with pytest.raises(EtcdNotReady, match="did not answer within 1 s"):
        EtcdServer(tmp_path / "data", timeout=1)
    assert not runs(int((tmp_path / "pid").read_text()))


def test_one_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    script = f'exec {sys.executable} {tmp_path}/stubborn.py "$@"'
    monkeypatch.setenv(VARIABLE, str(program(tmp_path / "mine", script)))
    monkeypatch.setattr(etcd_server, "_STOP_TIMEOUT", 0.1)
    server = EtcdServer(tmp_path / "data")
    pid = server.pid
    assert pid is not None and runs(pid)
    server.stop()
    eventually(lambda: not runs(pid))


def test_proxies_in_the_environment_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    EtcdServer(tmp_path / "data", timeout=10).stop()


def test_old_versions_of_keys_are_removed(tmp_path: Path) -> None:
    server = EtcdServer(tmp_path / "data")
    try:
        options = Path(f"/proc/{server.pid}/cmdline").read_text().split("\0")
    finally:
        server.stop()
    assert {"--auto-compaction-mode=revision", "--auto-compaction-retention=1000"} <= {*options}


def test_its_messages_go_where_the_caller_says(tmp_path: Path) -> None:
    with (tmp_path / "messages").open("w") as messages:
        server = EtcdServer(tmp_path / "data", stderr=messages)
    try:
        connect(server.endpoint, "run", True).set("a", "1")
    finally:
        server.stop()
    assert "etcd" in (tmp_path / "messages").read_text()
    assert (tmp_path / "data" / "etcd.log").read_text() == ""
