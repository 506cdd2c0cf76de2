"""A local etcd server, for a run on one node and for a first test."""

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import IO, Any

from hpcelastic.backends.owned import spawn_owned
from hpcelastic.errors import ConfigError, StoreError

_PROGRAM = "TORCHELASTIC_ETCD_BINARY_PATH"
"""torch's environment variable with the path of etcd."""

_START_TIMEOUT = 30.0
"""Seconds within which the server must answer after its start."""


_STOP_TIMEOUT = 10.0
"""Seconds after which a server that does not end is killed."""


class EtcdNotReady(StoreError):
    """An etcd server runs, but has not answered within the time-out."""


class EtcdServer:
    """A running etcd server with its data in ``directory``, for clients on this machine, with API versions 2 and 3.

    It must answer within ``timeout`` seconds. Its output goes to ``etcd.log`` in the directory, unless ``stderr`` is
    another destination for its messages, as for Popen. It ends when this process ends. Raises ConfigError if etcd is
    not installed, StoreError if it does not start.
    """

    def __init__(self, directory: Path, timeout: float = _START_TIMEOUT, stderr: int | IO[Any] | None = None) -> None:
        self._program, self._directory = _find_program(), directory
        self._timeout, self._stderr = timeout, stderr
        self._client_url, self._peer_url = (f"http://127.0.0.1:{_free_port()}" for _ in range(2))
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def endpoint(self) -> str:
        """HOST:PORT for clients."""
        return self._client_url.removeprefix("http://")

    @property
    def pid(self) -> int | None:
        """The server's process; None while it is stopped."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the server on its existing data."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = self._directory / "etcd.log"
        command = [self._program, "--enable-v2=true", f"--data-dir={self._directory / 'data'}", "--name=here"]
        command += [f"--{what}-client-urls={self._client_url}" for what in ("listen", "advertise")]
        command += [f"--listen-peer-urls={self._peer_url}", f"--initial-advertise-peer-urls={self._peer_url}"]
        command += [f"--initial-cluster=here={self._peer_url}"]
        # Each renewal of a lease adds a version of its key, and the server refuses all writes at 2 GiB.
        command += ["--auto-compaction-mode=revision", "--auto-compaction-retention=1000"]
        # ETCD_* variables in the environment, such as ETCD_NAME, configure another server.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        # On ARM etcd 3.4 starts only with this variable.
        environ["ETCD_UNSUPPORTED_ARCH"] = "arm64"
        with log.open("ab") as output:
            stderr = output if self._stderr is None else self._stderr
            self._process = spawn_owned(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=stderr, start_new_session=True
            )
        try:
            self._await_ready(log)
        except BaseException:
            self.stop(signal.SIGKILL)
            raise

    def stop(self, signum: int = signal.SIGTERM) -> None:
        """Stop the server. Its data stay."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signum)
        try:
            process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the filesystem of its data may hang
                process.wait(_STOP_TIMEOUT)

    def _await_ready(self, log: Path) -> None:
        assert self._process is not None
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + self._timeout
        while time.monotonic() < deadline and self._process.poll() is None:
            with (
                contextlib.suppress(OSError, http.client.HTTPException),
                opener.open(f"{self._client_url}/health", timeout=1) as answer,
            ):
                if b"true" in answer.read():
                    return
            time.sleep(0.05)
        last = log.read_text(errors="replace").splitlines()[-3:]
        said = f"; {log} ends with: {' | '.join(last)}" if self._stderr is None else ""
        if self._process.returncode is None:
            raise EtcdNotReady(f"etcd did not answer within {self._timeout:g} s{said}")
        raise StoreError(f"etcd did not start: it ended with status {self._process.returncode}{said}")


def _find_program() -> str:
    named = os.environ.get(_PROGRAM)
    program = shutil.which(named or "etcd")
    if program is None and named:
        raise ConfigError(f"{_PROGRAM} is {named!r}, which is not a program; correct it, or unset it to search in PATH")
    if program is None:
        raise ConfigError(
            f"etcd is not in PATH: install it (on Debian: etcd-server), set {_PROGRAM}, or use the backend file"
        )
    return os.path.abspath(program)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
