"""SLURM's accounting for a cluster: a database and slurmdbd, both on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.cluster.availability import why_missing
from tests.cluster.waiting import wait_until
from tests.ports import free_port

_PROGRAMS = ("mariadb-install-db", "mariadbd", "slurmdbd")
_TIMEOUT = 60.0
"""Seconds for the start of each of the two."""

_USER = """\
CREATE USER slurm@localhost IDENTIFIED BY 'slurm';
GRANT ALL ON *.* TO slurm@localhost;
"""

_SLURMDBD = """\
AuthType=auth/none
DbdHost={host}
DbdPort={port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass=slurm
StorageLoc=accounting
LogFile={path}/slurmdbd.log
PidFile={path}/slurmdbd.pid
"""


def why_no_accounting() -> str | None:
    """Return None if accounting can start here, else the reason and the remedy."""
    return why_missing(*_PROGRAMS, weekly=True)


@contextmanager
def accounting() -> Iterator[str]:
    """Start a database and slurmdbd. Yield the lines of slurm.conf that use them. They end with the context."""
    with ExitStack() as running:
        path = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="accounting-")))
        database, port, host = free_port(), free_port(), socket.gethostname()
        (path / "user.sql").write_text(_USER)
        (path / "slurmdbd.conf").write_text(_SLURMDBD.format(host=host, port=port, database=database, path=path))
        (path / "slurmdbd.conf").chmod(0o600)
        own = ["--no-defaults", "--user=root", f"--datadir={path}/data"]
        create = ["mariadb-install-db", *own, "--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run(create, check=True, capture_output=True)
        address = [f"--socket={path}/socket", f"--port={database}", "--bind-address=127.0.0.1"]
        files = [f"--pid-file={path}/mariadbd.pid", f"--init-file={path}/user.sql"]
        _start(running, path, ["mariadbd", *own, *address, *files], database)
        _start(running, path, ["slurmdbd", "-D"], port)
        yield (
            "AccountingStorageType=accounting_storage/slurmdbd\n"
            f"AccountingStorageHost={host}\nAccountingStoragePort={port}\n"
        )


def _start(running: ExitStack, path: Path, command: Sequence[str], port: int) -> None:
    """Start a program, and wait until it listens."""
    log = path / f"{command[0]}.out"
    environ = {**os.environ, "SLURM_CONF": str(path / "slurm.conf")}  # slurmdbd.conf is beside it
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    running.callback(process.wait, _TIMEOUT)
    running.callback(process.terminate)
    wait_until(command[0], lambda: _listens(port), bool, _TIMEOUT, log.read_text)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
