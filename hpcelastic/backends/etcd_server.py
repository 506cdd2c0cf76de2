"""A local etcd server, for a run on one node and for a first test."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

from hpcelastic.errors import ConfigError, StoreError

_START_TIMEOUT = 30.0
"""Seconds within which the server must answer after its start."""


class EtcdServer:
    """A running etcd server with its data in ``directory``, for clients on this machine, with API versions 2 and 3.

    Raises ConfigError if etcd is not installed, StoreError if it does not start.
    """

    def __init__(self, directory: Path) -> None:
        program = shutil.which("etcd")
        if program is None:
            raise ConfigError("etcd is not in PATH: install it (on Debian: etcd-server), or use the backend file")
        self._program, self._directory = program, directory
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
        # ETCD_* variables in the environment, such as ETCD_NAME, configure another server.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        # On ARM etcd 3.4 starts only with this variable.
        environ["ETCD_UNSUPPORTED_ARCH"] = "arm64"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        try:
            self._await_ready(log)
        except BaseException:
            self.stop(signal.SIGKILL)
            raise

    def stop(self, signum: int = signal.SIGTERM) -> None:
        """Stop the server. Its data stay."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signum)
            process.wait()

    def _await_ready(self, log: Path) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_TIMEOUT
        while time.monotonic() < deadline and self._process.poll() is None:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{self._client_url}/health", timeout=1) as answer,
            ):
                if b"true" in answer.read():
                    return
            time.sleep(0.05)
        last = log.read_text(errors="replace").splitlines()[-3:]
        raise StoreError(f"etcd did not start; {log} ends with: {' | '.join(last)}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
