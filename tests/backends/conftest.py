"""Every backend, with a real server if it has one."""

import secrets
from pathlib import Path

import pytest

from tests.ports import free_port

BACKENDS = ("file", "c10d", "c10d over a file", "static", "etcd", "etcd-v2")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """The name and the endpoint of a backend."""
    name, _, file = request.param.partition(" over a ")
    if name == "file":
        return name, ""
    if file:
        return name, f"file:{tmp_path / 'store'}"
    if name.startswith("etcd"):
        return name, request.getfixturevalue("etcd").endpoint
    return name, f"127.0.0.1:{free_port()}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of a run whose name no other run at the same server has."""
    return tmp_path / f"run-{secrets.token_hex(6)}"
