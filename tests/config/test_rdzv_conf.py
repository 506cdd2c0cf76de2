"""Each key of ``--rdzv-conf`` that torch's backends read is honoured, reported as not needed, or refused."""

import re
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.config.rdzv_conf import read_conf
from hpcelastic.protocol.settings import RendezvousSettings

ETCD, C10D, FILES = ("etcd", "n1:2379"), ("c10d", "n1:29400"), ("file", "")

HONOURED: dict[str, tuple[tuple[str, str], dict[str, Any], dict[str, Any]]] = {
    "timeout": (ETCD, {"timeout": "5"}, {"join_timeout": 5.0}),
    "our name precedes torch's": (FILES, {"join_timeout": "7", "timeout": "5"}, {"join_timeout": 7.0}),
    "last_call_timeout": (FILES, {"last_call_timeout": 3}, {"last_call": 3.0}),
    "protocol https": (ETCD, {"protocol": "https"}, {"endpoint": "https://n1:2379"}),
    "of each member": (
        ("etcd-v2", "n1,https://n2:2379"),
        {"protocol": "HTTPS"},
        {"endpoint": "https://n1,https://n2:2379"},
    ),
    "protocol http": (ETCD, {"protocol": "http"}, {"endpoint": "n1:2379"}),
    "cacert": (ETCD, {"cacert": "/c/ca.pem"}, {"cacert": "/c/ca.pem"}),
    "ca_cert": (ETCD, {"ca_cert": "/c/ca.pem"}, {"cacert": "/c/ca.pem"}),
    "cert and key": (ETCD, {"cert": "/c/c", "key": "/c/k"}, {"cert": "/c/c", "key": "/c/k"}),
    "ssl_cert and its key": (ETCD, {"ssl_cert": "/c/c", "ssl_cert_key": "/c/k"}, {"cert": "/c/c", "key": "/c/k"}),
    "etcd_prefix": (ETCD, {"etcd_prefix": "/torchelastic/p2p"}, {"prefix": "/torchelastic/p2p"}),
    "store_type tcp": (C10D, {"store_type": "tcp"}, {"endpoint": "n1:29400"}),
    "store_type file": (("c10d", "file:/shared/store"), {"store_type": "file"}, {"endpoint": "file:/shared/store"}),
}

UNNEEDED = {
    "close_timeout": C10D,
    "heartbeat_timeout": C10D,
    "keep_alive_interval": FILES,
    "keep_alive_max_attempt": C10D,
    "read_timeout": ETCD,
    "use_libuv": C10D,
    "rank": C10D,
    "is_host": ETCD,
    "store_type": FILES,
    "protocol": FILES,
    "cacert": FILES,
    "etcd_prefix": C10D,
}

REFUSED: dict[str, tuple[tuple[str, str], dict[str, Any], str]] = {
    "unknown": (FILES, {"wait": "3"}, "'wait' is not a known key; the keys are join_timeout"),
    "no time": (FILES, {"timeout": "soon"}, "timeout is 'soon'; write seconds"),
    "TLS without TLS": (ETCD, {"protocol": "http", "cert": "/c"}, "protocol is http, but cert requires TLS"),
    "TLS and http": (("etcd", "http://n1"), {"cacert": "/c"}, "'http://n1', but rendezvous.cacert requires TLS"),
    "https and http": (
        ("etcd", "http://n1"),
        {"protocol": "https"},
        "protocol is https, but the endpoint is 'http://n1'",
    ),
    "https and embedded": (
        ("etcd", "embedded"),
        {"protocol": "https"},
        "protocol is https, but the endpoint is 'embed",
    ),
    "CA and embedded": (("etcd", "embedded"), {"cacert": "/c"}, "an embedded server does not support"),
    "mixed members": (("etcd", "https://n1,http://n2"), {}, "another member of it requires TLS"),
    "no protocol": (ETCD, {"protocol": "ftp"}, "protocol is 'ftp'; write http or https"),
    "key alone": (ETCD, {"key": "/c/k"}, "set rendezvous.cert to the certificate"),
    "TLS for c10d": (
        C10D,
        {"protocol": "https"},
        "protocol=https requires TLS, which the backend c10d does not support",
    ),
    "CA for static": (
        ("static", "n1:1"),
        {"cacert": "/c"},
        "cacert requires TLS, which the backend static does not support",
    ),
    "https elsewhere": (("theirs", "n1:1"), {"protocol": "https"}, "hpcelastic cannot set it for the backend theirs"),
    "no truth": (C10D, {"is_host": "perhaps"}, "is_host is 'perhaps'; write 1 or 0"),
    "no store": (C10D, {"store_type": "hash"}, "store_type is 'hash'; write tcp or file"),
    "file at a host": (C10D, {"store_type": "file"}, "store_type is file, but the endpoint is 'n1:29400'"),
    "tcp in a file": (("c10d", "file:/s"), {"store_type": "tcp"}, "store_type is tcp, but the endpoint is 'file:/s'"),
}


@pytest.mark.parametrize(("server", "given", "settings"), HONOURED.values(), ids=HONOURED)
def test_supported_keys_are_honoured(server: tuple[str, str], given: dict[str, Any], settings: dict[str, Any]) -> None:
    backend, endpoint = server
    found = read_conf(given, backend, endpoint)
    assert found.settings == RendezvousSettings(**{"backend": backend, "endpoint": endpoint, **settings})
    assert found.warnings == ()


def test_a_relative_path_begins_at_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_conf({"cacert": "ca.pem"}, *ETCD).settings.cacert == str(tmp_path / "ca.pem")


@pytest.mark.parametrize(("text", "host"), [("1", True), ("False", False)])
def test_the_user_selects_the_agent_that_serves(text: str, host: bool) -> None:
    assert read_conf({"is_host": text}, *C10D).is_host is host


@pytest.mark.parametrize(("key", "server"), UNNEEDED.items(), ids=UNNEEDED)
def test_unnecessary_keys_are_reported(key: str, server: tuple[str, str]) -> None:
    (line,) = read_conf({key: "5"}, *server).warnings
    assert line.startswith(f"{key} is not needed: ")


@pytest.mark.parametrize(("server", "given", "words"), REFUSED.values(), ids=REFUSED)
def test_invalid_keys_are_refused(server: tuple[str, str], given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        read_conf(given, *server)


def test_keys_of_the_caller_are_passed_on() -> None:
    assert read_conf({"rank": 3}, extra_keys=("rank",)).warnings == ()


def test_an_old_name_of_a_key_is_accepted_with_a_warning() -> None:
    extra_keys = ("interface", "notifications")
    assert read_conf({"notifications": "false"}, extra_keys=extra_keys).warnings == ()
    warnings = read_conf({"doorbell": "false"}, extra_keys=extra_keys).warnings
    assert warnings == ("doorbell is the old name of notifications; write notifications instead",)
    with pytest.raises(ValueError, match=r"^doorbell is the old name of notifications, which is given too; remove"):
        read_conf({"doorbell": "false", "notifications": "false"}, extra_keys=extra_keys)
    with pytest.raises(ValueError, match=r"^'doorbell' is not a known key"):
        read_conf({"doorbell": "false"})
