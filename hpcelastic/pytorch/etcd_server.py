"""A local etcd server: the counterpart of torch's ``rendezvous.etcd_server``, without python-etcd."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import TextIO

from hpcelastic.backends import etcd_server
from hpcelastic.errors import StoreError
from hpcelastic.pytorch.etcd_store import EtcdClient

_HOST = "localhost"


class EtcdServer:
    """An etcd server on this machine at a free port, for a launch on one node and for tests.

    The program is ``TORCHELASTIC_ETCD_BINARY_PATH``, else ``etcd`` in PATH. The data are in ``data_dir``, which stays,
    or else in a temporary directory, which `stop` removes. The server ends when this process ends, however it ends.
    """

    def __init__(self, data_dir: str | os.PathLike[str] | None = None) -> None:
        self._data_dir = data_dir
        self._temporary: str | None = None
        self._server: etcd_server.EtcdServer | None = None
        self._owner = 0

    def start(self, timeout: float = 60, num_retries: int = 3, stderr: int | TextIO | None = None) -> None:
        """Start the server and return when it answers. Each of ``num_retries`` attempts has ``timeout`` seconds.

        ``stderr`` receives the messages of the server, as for Popen; by default they go to a file in its directory.
        Raises RuntimeError if the server runs already or ends at once, TimeoutError if it does not answer, ConfigError
        if etcd is not installed.
        """
        if self._server is not None:
            raise RuntimeError(f"the etcd server runs already, at {self.get_endpoint()}")
        if self._data_dir is None:
            self._temporary = tempfile.mkdtemp(prefix="hpcelastic-etcd-")
        directory = Path(self._data_dir or self._temporary or "")
        self._owner = os.getpid()
        atexit.register(self.stop)
        try:
            self._server = _started(directory, timeout, num_retries, stderr)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server, if this process has started it, and remove its temporary directory."""
        if self._owner != os.getpid():  # a fork of the owner that ends
            return
        atexit.unregister(self.stop)
        if self._server is not None:
            self._server.stop()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
        self._server = self._temporary = None

    def get_client(self) -> EtcdClient:
        """Return a client of the server, for `EtcdStore`."""
        return EtcdClient(self.get_endpoint())

    def get_endpoint(self) -> str:
        """Return HOST:PORT of the server. Raises RuntimeError if it does not run."""
        return f"{self.get_host()}:{self.get_port()}"

    def get_host(self) -> str:
        """Return the host of the server."""
        return _HOST

    def get_port(self) -> int:
        """Return the port of the server. Raises RuntimeError if it does not run."""
        if self._server is None:
            raise RuntimeError("the etcd server does not run; call start() first")
        return int(self._server.endpoint.rpartition(":")[2])


def _started(directory: Path, timeout: float, attempts: int, stderr: int | TextIO | None) -> etcd_server.EtcdServer:
    """Return a server that answers, with its data in ``directory``. Each attempt has another port."""
    while True:
        attempts -= 1
        try:
            return etcd_server.EtcdServer(directory, timeout, stderr)
        except StoreError as error:
            if attempts > 0:
                continue
            kind = TimeoutError if isinstance(error, etcd_server.EtcdNotReady) else RuntimeError
            raise kind(str(error)) from error
