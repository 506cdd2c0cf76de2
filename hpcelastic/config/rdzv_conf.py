"""Read the keys of ``--rdzv-conf`` and of ``LaunchConfig.rdzv_configs``.

Each key of torch's own backends is applied, reported as not needed, or refused. No key is ignored silently.
"""

import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from hpcelastic.protocol.settings import AUTO, EMBEDDED, FILE, STATIC, TIMINGS, RendezvousSettings

_AUTO_LEASE = ("lease", AUTO)

_TIMES = {"last_call_timeout": "last_call", "timeout": "join_timeout"}
"""Times that have another name in torch. If both names are given, the name of hpcelastic takes precedence."""

_FILES = {
    "cacert": "cacert",
    "ca_cert": "cacert",
    "cert": "cert",
    "ssl_cert": "cert",
    "key": "key",
    "ssl_cert_key": "key",
}
"""Files for TLS: the key in torch's two etcd backends, and the name of the setting."""

_PREFIX = {"etcd_prefix": "prefix", "prefix": "prefix"}

_ETCD = ("etcd", "etcd-v2")
_C10D = ("c10d", STATIC)

_SERVER = {*_FILES, *_PREFIX, "protocol", "is_host", "store_type"}
"""Keys of the connection to a server."""

_UNNEEDED = {
    "close_timeout": "closing a run is one write",
    "heartbeat_timeout": "leases tell which nodes are alive; see lease and margin",
    "keep_alive_interval": "leases tell which nodes are alive; see lease and margin",
    "keep_alive_max_attempt": "leases tell which nodes are alive; see lease and margin",
    "read_timeout": "every request to a server has a time-out of seconds, independent of the lease",
    "use_libuv": "torch selects it",
    "rank": "--node-rank or SLURM sets it",
}
"""Keys that have no effect, with the reason."""

_RENAMED = {"doorbell": "notifications"}
"""Old names of keys, which are still accepted, and the names that replace them."""


@dataclass(frozen=True)
class RdzvConf:
    """The content of ``--rdzv-conf``."""

    settings: RendezvousSettings

    is_host: bool | None = None
    """True if this agent serves torch's store; None if hpcelastic determines it."""

    warnings: tuple[str, ...] = ()
    """A line for each given key that has no effect or an old name."""


def read_conf(
    given: Mapping[str, Any], backend: str = FILE, endpoint: str = "", extra_keys: Collection[str] = ()
) -> RdzvConf:
    """Read ``given`` for a run of ``backend`` at ``endpoint``. The caller itself reads the keys in ``extra_keys``.

    Raises ValueError for an unknown key, for an invalid value, and for a key that is given under its old and its new
    name. Paths of files become absolute. Source: torch/distributed/elastic/rendezvous, the parameters that each backend
    reads.
    """
    renamed = {old: new for old, new in _RENAMED.items() if new in extra_keys}
    known = {*TIMINGS, *_TIMES, *_SERVER, *_UNNEEDED, *extra_keys, *renamed}
    if unknown := sorted(given.keys() - known):
        raise ValueError(f"{unknown[0]!r} is not a known key; the keys are {', '.join([*TIMINGS, *extra_keys])}")
    lines = [f"{key} is not needed: {_UNNEEDED[key]}" for key in given if key in _UNNEEDED and key not in extra_keys]
    for old in (old for old in renamed if old in given):
        if renamed[old] in given:
            raise ValueError(f"{old} is the old name of {renamed[old]}, which is given too; remove {old}")
        lines.append(f"{old} is the old name of {renamed[old]}; write {renamed[old]} instead")
    server = {key: str(value) for key, value in given.items() if key in _SERVER and key not in extra_keys}
    settings: dict[str, Any] = {"backend": backend, "endpoint": endpoint, **_times(given)}
    is_host = None
    if backend == FILE:
        lines += [f"{key} is not needed: the run uses files, not a server" for key in server]
    elif backend in _C10D:
        is_host = _parse_bool("is_host", server["is_host"]) if "is_host" in server else None
        settings["endpoint"], more = _torch_store_endpoint(server, backend, endpoint)
        lines += more
    else:
        settings.update(_files(server), endpoint=_endpoint_with_scheme(server, backend, endpoint))
        lines += [f"{key} is not needed: it is a key of c10d" for key in server if key in ("is_host", "store_type")]
    return RdzvConf(RendezvousSettings(**settings), is_host, tuple(lines))


def _times(given: Mapping[str, Any]) -> dict[str, Any]:
    torchs = {_TIMES[key]: _seconds(key, value) for key, value in given.items() if key in _TIMES}
    ours = {key: _seconds(key, value) for key, value in given.items() if key in TIMINGS and (key, value) != _AUTO_LEASE}
    return {**torchs, **ours}


def _files(server: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for the TLS files of a server and for the prefix of its keys."""
    files = {_FILES[key]: os.path.abspath(os.path.expanduser(path)) for key, path in server.items() if key in _FILES}
    return {**files, **{_PREFIX[key]: text for key, text in server.items() if key in _PREFIX}}


def _endpoint_with_scheme(server: Mapping[str, str], backend: str, endpoint: str) -> str:
    """Return ``endpoint`` with the scheme that ``protocol`` sets. Raises ValueError."""
    protocol = server.get("protocol", "").lower()
    if protocol not in ("", "http", "https"):
        raise ValueError(f"protocol is {protocol!r}; write http or https")
    tls_reason = "https://" if "https://" in endpoint else next((key for key in server if key in _FILES), "")
    if protocol == "http" and tls_reason:
        raise ValueError(f"protocol is http, but {tls_reason} requires TLS; remove one of them")
    if protocol != "https":
        return endpoint
    if backend not in _ETCD:
        raise ValueError(f"protocol is https, but hpcelastic cannot set it for the backend {backend}; remove it")
    if "http://" in endpoint or endpoint == EMBEDDED:
        raise ValueError(f"protocol is https, but the endpoint is {endpoint!r}; change one of them")
    return ",".join(part if "://" in part else f"https://{part}" for part in endpoint.split(","))


def _torch_store_endpoint(server: Mapping[str, str], backend: str, endpoint: str) -> tuple[str, list[str]]:
    """Return the endpoint of a torch store, and a line for each key that has no effect. Raises ValueError."""
    secure = next((key for key in server if key in _FILES), "")
    secure = secure or ("protocol=https" if server.get("protocol", "").lower() == "https" else "")
    if secure:
        raise ValueError(f"{secure} requires TLS, which the backend {backend} does not support; use etcd, or remove it")
    lines = [f"{key} is not needed: it is a key of etcd" for key in server if key in _PREFIX or key == "protocol"]
    kind = server.get("store_type", "").strip().lower()
    if kind not in ("", "tcp", "file"):
        raise ValueError(f"store_type is {kind!r}; write tcp or file")
    if kind == "file" and not endpoint.startswith("file:"):
        raise ValueError(f"store_type is file, but the endpoint is {endpoint!r}; write the endpoint as file:PATH")
    if kind == "tcp" and endpoint.startswith("file:"):
        raise ValueError(f"store_type is tcp, but the endpoint is {endpoint!r}; write the endpoint as HOST:PORT")
    return endpoint, lines


def _parse_bool(key: str, text: str) -> bool:
    """Parse a boolean as torch does. Source: RendezvousParameters.get_as_bool."""
    if text.lower() in ("1", "true", "t", "yes", "y"):
        return True
    if text.lower() in ("0", "false", "f", "no", "n"):
        return False
    raise ValueError(f"{key} is {text!r}; write 1 or 0")


def _seconds(key: str, value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise ValueError(f"{key} is {value!r}; write seconds, such as {key}=5")
    return seconds
