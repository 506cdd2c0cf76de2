"""The format of leases in the records of a server."""

import json
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from hpcelastic.backends.records import Records, RecordsBackend
from hpcelastic.backends.state_copies import StateCopies
from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.state import NodeState
from hpcelastic.storage.paths import RunPaths
from tests.protocol.builders import member

READY = member("a", NodeState.READY, 0)


@pytest.mark.parametrize(
    ("lease", "heartbeat"),
    [
        pytest.param({"heartbeat": 7, "member": encode(READY)}, 7, id="now"),
        pytest.param({"beat": 5, "member": encode(READY)}, 5, id="an older version"),
        pytest.param({"member": encode(READY)}, None, id="unknown"),
    ],
)
def test_a_lease_is_read(lease: dict[str, object], heartbeat: int | None, tmp_path: Path) -> None:
    records = create_autospec(Records, instance=True)
    records.all.return_value = {"nodes/a@0": json.dumps(lease)}
    leases = RecordsBackend("server", records, StateCopies(RunPaths(tmp_path))).leases()
    assert {node: (lease.heartbeat, lease.member) for node, lease in leases.items()} == (
        {} if heartbeat is None else {"a@0": (heartbeat, READY)}
    )
