"""Endpoints of torch's stores."""

from datetime import timedelta

import pytest
from torch.distributed import HashStore

from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.pytorch import c10d
from hpcelastic.pytorch.c10d import _is_here, _parsed, connect


@pytest.mark.parametrize(
    ("endpoint", "host", "port"),
    [("n1:29411", "n1", 29411), ("n1", "n1", 29400), ("[fd00::1]:7", "fd00::1", 7), ("[fd00::1]", "fd00::1", 29400)],
)
def test_an_endpoint(endpoint: str, host: str, port: int) -> None:
    assert _parsed(endpoint) == (host, port)


@pytest.mark.parametrize("endpoint", ["n1:", ":7", "n1:0", "n1:65536", "n1:x"])
def test_no_endpoint(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="write HOST:PORT"):
        connect(endpoint, "r", True)


def test_this_machine() -> None:
    assert _is_here("localhost") and _is_here("127.0.0.1")
    assert not _is_here("192.0.2.77") and not _is_here("no-such-host.invalid")


def test_who_only_looks_serves_nothing_and_does_not_wait() -> None:
    with pytest.raises(StoreError, match="no agent serves the store there"):
        connect("127.0.0.1:1", "r", False)


@pytest.mark.parametrize(
    ("host", "is_host", "served"),
    [("127.0.0.1", None, True), ("192.0.2.77", None, False), ("192.0.2.77", True, True), ("127.0.0.1", False, False)],
)
def test_the_agent_that_serves(host: str, is_host: bool | None, served: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def tcp_store(host: str, port: int, *, serves: bool, wait: timedelta) -> HashStore:
        asked.append(serves)
        return HashStore()

    monkeypatch.setattr(c10d, "_tcp_store", tcp_store)
    connect(f"{host}:29400", "r", True, is_host=is_host)
    assert asked == [served]
