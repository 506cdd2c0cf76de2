"""The owner of a node's lease and its observers: ``leases own|watch DIRECTORY NAME SECONDS``, started together."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path

from hpcelastic.errors import StoreError
from hpcelastic.protocol.settings import Expiry
from hpcelastic.protocol.state import Member, NodeState
from hpcelastic.storage import files
from hpcelastic.storage.leases import LeaseObserver, OwnLease
from tests.filesystems.contract import persistently
from tests.filesystems.hammer import meet

NODE = "n1@0-ab"
MEMBER = Member(NODE, NodeState.READY, 0, 1, "n1", 4000)
PACE = 0.1
TIMEOUT = 60.0
PROCESSES = 3


def own(directory: Path, seconds: float) -> None:
    """Renew the lease for ``seconds``, then stop."""
    lease, end = OwnLease(directory, NODE), time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(StoreError):
            lease.renew(MEMBER)
        time.sleep(PACE)


def watch(directory: Path, expiry: float) -> dict[str, float | bool]:
    """Observe the lease until the node is dead. Report the seconds until then, and whether the node was seen alive."""
    observer, begin, proved = LeaseObserver(directory, Expiry(expiry, 0.0), time.monotonic), time.monotonic(), False
    while time.monotonic() < begin + TIMEOUT:
        with suppress(StoreError):
            seen = observer.observe([]).get(NODE)
            proved = proved or (seen is not None and seen.proved)
            if seen is not None and not seen.alive:
                break
        time.sleep(PACE)
    return {"lived": time.monotonic() - begin, "proved": proved}


def main(role: str, directory: str, who: str, seconds: str) -> None:
    meet(Path(directory), who, PROCESSES)
    nodes = Path(directory) / "nodes"
    persistently(lambda: files.make_directory(nodes))
    if role == "own":
        own(nodes, float(seconds))
        print("null")
    else:
        print(json.dumps(watch(nodes, float(seconds))))


if __name__ == "__main__":
    main(*sys.argv[1:])
