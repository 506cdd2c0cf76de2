"""Histories of concurrent clients of the store are linearizable, on every filesystem."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.backends.etcd_server import EtcdServer
from tests.filesystems.clients import local
from tests.filesystems.shared import Shared
from tests.linearizability.checker import UNKNOWN, Operation, by_key, check
from tests.linearizability.models import backward, key, late_register, register
from tests.linearizability.recorder import SERVERS
from tests.linearizability.recording import Recording, paired, record

pytestmark = pytest.mark.slow

SEED = 20240229


@pytest.mark.parametrize("killed", [pytest.param(False, id="all live"), pytest.param(True, id="one killed")])
def test_reads_and_commits_of_a_register(shared: Shared, killed: bool) -> None:
    history = record(shared.mounts, Recording("register", shared.folder, SEED, count=30, killed=killed))
    check_size(history)
    verdict = check(history, late_register if shared.source.late_listings else register, ())
    assert verdict, verdict
    assert not backward(history)


def test_operations_on_keys(shared: Shared) -> None:
    history = record(shared.mounts, Recording("keys", shared.folder, SEED, count=30))
    check_size(history)
    promised = [operation for operation in history if not shared.source.late_listings or changed(operation)]
    for name, part in by_key(promised, lambda operation: operation.call[0]).items():
        calls = [Operation(o.process, o.call[1:], o.result, o.invoked, o.returned) for o in part]
        verdict = check(calls, key, None)
        assert verdict, f"{name}: {verdict}"


@pytest.mark.parametrize("version", SERVERS)
def test_operations_on_keys_in_etcd(version: str, etcd: EtcdServer, tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "endpoint").write_text(etcd.endpoint)
    history = record(local("ext4", tmp_path), Recording(version, "keys", SEED, count=30))
    check_size(history)
    for name, part in by_key(history, lambda operation: operation.call[0]).items():
        calls = [Operation(o.process, o.call[1:], o.result, o.invoked, o.returned) for o in part]
        verdict = check(calls, key, None)
        assert verdict, f"{name}: {verdict}"


def changed(operation: Operation) -> bool:
    """Return whether an operation has, or may have, changed its key. Its process has then seen the newest version."""
    _, name, *arguments = operation.call
    if operation.result == UNKNOWN or name in ("set", "add"):
        return True
    return bool(operation.result) if name == "delete" else name == "compare_set" and operation.result == arguments[-1]


def check_size(history: Sequence[Operation]) -> None:
    """Fail if almost nothing was recorded."""
    answered = [operation for operation in history if operation.result != UNKNOWN]
    assert len(answered) > 60 and len({operation.process for operation in answered}) == 4


def test_the_wrong_register_is_found(tmp_path: Path) -> None:
    (tmp_path / "register").mkdir()
    history = record(local("ext4", tmp_path), Recording("renamed register", "register", SEED))
    assert not check(history, register, ())


def test_an_operation_of_a_killed_process_has_no_answer() -> None:
    lines: list[dict[str, Any]] = [
        {"at": 1},
        {"at": 2, "call": ["read"]},
        {"at": 3, "result": [0, None]},
        {"at": 4, "call": ["read"]},
    ]
    assert paired("a", lines) == [Operation("a", ("read",), [0, None], 2, 3), Operation("a", ("read",), UNKNOWN, 4)]
