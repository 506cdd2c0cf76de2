"""MooseFS, a distributed filesystem: a master, a chunk server and two clients, each on its own host."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.site import Site
from tests.cluster.waiting import wait_until
from tests.filesystems.fuse_hosts import START_TIMEOUT, FuseMountSet, servers_and_clients, start_clients

NAME = "MooseFS"
LOCAL_LOCKS = "mfsnobsdlocks,mfsnoposixlocks"
"""Mount options with which locks exclude on one client only."""

_MASTER, _CHUNKS = "mfsmaster", "mfschunks"
_PORT = 9421
_UNUSED = b"MFSM NEW"
"""The metadata of an unused filesystem. A master does not start without metadata."""


@contextmanager
def moosefs_mounts(options: str = "") -> Iterator[FuseMountSet]:
    """Start a filesystem with two clients. They end with the context."""
    with servers_and_clients(_MASTER, _CHUNKS) as here:
        _configure(here)
        master = here.addresses[_MASTER]
        here.start(_MASTER, _server(here, "mfsmaster"))
        wait_until("MooseFS's master", lambda: _answers(master), bool, START_TIMEOUT, here.logs)
        here.start(_CHUNKS, _server(here, "mfschunkserver"))
        chosen = ",".join(filter(None, ("mfsnice=0", options)))
        mount = ["mfsmount", "-f", "-H", master, "-o", chosen, f"{here.path}/mount"]
        yield start_clients(here, f"{NAME}, local locks" if options == LOCAL_LOCKS else NAME, mount)


def _configure(here: Site) -> None:
    path, own = here.path, "WORKING_USER = root\nWORKING_GROUP = root\nNICE_LEVEL = 0\nLOCK_MEMORY = 0\n"
    texts = {
        "exports": "* / rw,alldirs,admin,maproot=0:0\n* . rw\n",
        "topology": "",
        "disks": f"{path}/disk\n",
        "mfsmaster.cfg": f"{own}DATA_PATH = {path}/{_MASTER}\n"
        f"EXPORTS_FILENAME = {path}/exports\nTOPOLOGY_FILENAME = {path}/topology\n",
        "mfschunkserver.cfg": f"{own}DATA_PATH = {path}/{_CHUNKS}\nHDD_CONF_FILENAME = {path}/disks\n"
        f"MASTER_HOST = {here.addresses[_MASTER]}\nMASTER_RECONNECTION_DELAY = 1\n",
    }
    for name in (_MASTER, _CHUNKS, "disk"):
        (path / name).mkdir()
    for name, text in texts.items():
        (path / name).write_text(text)
    (path / _MASTER / "metadata.mfs").write_bytes(_UNUSED)


def _server(here: Site, program: str) -> list[str]:
    return [program, "-f", "-c", f"{here.path}/{program}.cfg", "start"]


def _answers(master: str) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((master, _PORT)) == 0
