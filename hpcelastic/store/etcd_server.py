"""An etcd server of one's own, on this machine: for a run on one node, and for a first try."""

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

_PATIENCE = 30.0
"""Seconds within which it answers."""


class EtcdServer:
    """A running etcd that keeps its data in ``directory``, for clients of this machine; speaks versions 2 and 3.

    Raises ConfigError where etcd is not installed, StoreError where it does not start.
    """

    def __init__(self, directory: Path) -> None:
        program = shutil.which("etcd")
        if program is None:
            raise ConfigError("etcd is not in PATH: install it (on Debian: etcd-server), or use the backend file")
        self._program, self._directory = program, directory
        self._clients, self._peers = (f"http://127.0.0.1:{_free_port()}" for _ in range(2))
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def endpoint(self) -> str:
        """HOST:PORT for clients."""
        return self._clients.removeprefix("http://")

    @property
    def pid(self) -> int | None:
        """Its process; None while it is stopped."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start it on the data that it had."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = self._directory / "etcd.log"
        command = [self._program, "--enable-v2=true", f"--data-dir={self._directory / 'data'}", "--name=here"]
        command += [f"--{what}-client-urls={self._clients}" for what in ("listen", "advertise")]
        command += [f"--listen-peer-urls={self._peers}", f"--initial-advertise-peer-urls={self._peers}"]
        command += [f"--initial-cluster=here={self._peers}"]
        # Its own configuration by the environment, such as ETCD_NAME, is another server's.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        # On ARM etcd 3.4 starts only where that is said.
        environ["ETCD_UNSUPPORTED_ARCH"] = "arm64"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        try:
            self._await_answer(log)
        except BaseException:
            self.stop(signal.SIGKILL)
            raise

    def stop(self, signum: int = signal.SIGTERM) -> None:
        """End it; its data stay."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signum)
            process.wait()

    def _await_answer(self, log: Path) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self._clients}/health", timeout=1) as answer:
                if b"true" in answer.read():
                    return
            time.sleep(0.05)
        last = log.read_text(errors="replace").splitlines()[-3:]
        raise StoreError(f"etcd did not start; {log} ends with: {' | '.join(last)}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
