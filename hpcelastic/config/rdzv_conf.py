"""What ``--rdzv-conf``, or ``LaunchConfig.rdzv_configs``, says in torch's words.

Every key of torch's own backends is honoured, or named as not needed, or refused; none is passed over in silence.
"""

import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from hpcelastic.protocol.settings import EMBEDDED, FILE, STATIC, TIMINGS, RendezvousSettings

_TIMES = {"last_call_timeout": "last_call", "timeout": "join_timeout"}
"""Times that torch has another name for; a time under our name goes before."""

_FILES = {
    "cacert": "cacert",
    "ca_cert": "cacert",
    "cert": "cert",
    "ssl_cert": "cert",
    "key": "key",
    "ssl_cert_key": "key",
}
"""Files for TLS, as torch's two backends for etcd call them, and as the settings do."""

_PREFIX = {"etcd_prefix": "prefix", "prefix": "prefix"}

_ETCD = ("etcd", "etcd-v2")
_C10D = ("c10d", STATIC)

_SERVER = {*_FILES, *_PREFIX, "protocol", "is_host", "store_type"}
"""Keys that say how a server is found and asked."""

_UNNEEDED = {
    "close_timeout": "to close a run is one write",
    "heartbeat_timeout": "leases tell which nodes are alive; see lease and margin",
    "keep_alive_interval": "leases tell which nodes are alive; see lease and margin",
    "keep_alive_max_attempt": "leases tell which nodes are alive; see lease and margin",
    "read_timeout": "every request to a server ends within seconds, whatever the lease",
    "use_libuv": "torch chooses it",
    "rank": "--node-rank says it, or SLURM",
}
"""Keys that have no effect, with the reason."""


@dataclass(frozen=True)
class RdzvConf:
    """What was given."""

    settings: RendezvousSettings

    is_host: bool | None = None
    """Whether this agent serves the store of torch; None if that is to be found out."""

    unneeded: tuple[str, ...] = ()
    """A line for each key that was given and has no effect."""


def read_conf(
    given: Mapping[str, Any], backend: str = FILE, endpoint: str = "", beside: Collection[str] = ()
) -> RdzvConf:
    """Read ``given`` for a run that is kept in ``backend`` at ``endpoint``; keys in ``beside`` are the caller's.

    ValueError names a key that is not torch's, nor ours, nor in ``beside``, and a value that can't be heeded. The paths
    of files are made absolute. Source: torch/distributed/elastic/rendezvous, what each backend reads of its parameters.
    """
    known = {*TIMINGS, *_TIMES, *_SERVER, *_UNNEEDED, *beside}
    if unknown := sorted(given.keys() - known):
        raise ValueError(f"{unknown[0]!r} is not known; it takes {', '.join([*TIMINGS, *beside])}")
    lines = [f"{key} is not needed: {_UNNEEDED[key]}" for key in given if key in _UNNEEDED and key not in beside]
    server = {key: str(value) for key, value in given.items() if key in _SERVER and key not in beside}
    settings: dict[str, Any] = {"backend": backend, "endpoint": endpoint, **_times(given)}
    is_host = None
    if backend == FILE:
        lines += [f"{key} is not needed: this run is kept in files, and no server is asked" for key in server]
    elif backend in _C10D:
        is_host = _truth("is_host", server["is_host"]) if "is_host" in server else None
        settings["endpoint"], more = _of_torchs_store(server, backend, endpoint)
        lines += more
    else:
        settings.update(_files(server), endpoint=_secured(server, backend, endpoint))
        lines += [f"{key} is not needed: it is for c10d" for key in server if key in ("is_host", "store_type")]
    return RdzvConf(RendezvousSettings(**settings), is_host, tuple(lines))


def _times(given: Mapping[str, Any]) -> dict[str, float]:
    torchs = {_TIMES[key]: _seconds(key, value) for key, value in given.items() if key in _TIMES}
    return {**torchs, **{key: _seconds(key, value) for key, value in given.items() if key in TIMINGS}}


def _files(server: Mapping[str, str]) -> dict[str, str]:
    """The settings of a server that are files for TLS, and the prefix of its keys."""
    files = {_FILES[key]: os.path.abspath(os.path.expanduser(path)) for key, path in server.items() if key in _FILES}
    return {**files, **{_PREFIX[key]: text for key, text in server.items() if key in _PREFIX}}


def _secured(server: Mapping[str, str], backend: str, endpoint: str) -> str:
    """``endpoint`` with the scheme that ``protocol`` asks for."""
    protocol = server.get("protocol", "").lower()
    if protocol not in ("", "http", "https"):
        raise ValueError(f"protocol is {protocol!r}; write http or https")
    asking = "https://" if "https://" in endpoint else next((key for key in server if key in _FILES), "")
    if protocol == "http" and asking:
        raise ValueError(f"protocol is http, and {asking} asks for TLS; leave one of them out")
    if protocol != "https":
        return endpoint
    if backend not in _ETCD:
        raise ValueError(f"protocol is https, and whether the backend {backend} can speak it is not known")
    if "http://" in endpoint or endpoint == EMBEDDED:
        raise ValueError(f"protocol is https, and the endpoint is {endpoint!r}; leave one of them out")
    return ",".join(part if "://" in part else f"https://{part}" for part in endpoint.split(","))


def _of_torchs_store(server: Mapping[str, str], backend: str, endpoint: str) -> tuple[str, list[str]]:
    """The endpoint of a store of torch, and a line for each key that has no effect."""
    secure = next((key for key in server if key in _FILES), "")
    secure = secure or ("protocol=https" if server.get("protocol", "").lower() == "https" else "")
    if secure:
        raise ValueError(f"{secure} asks for TLS, which the backend {backend} has not; use etcd, or leave it out")
    lines = [f"{key} is not needed: it is for etcd" for key in server if key in _PREFIX or key == "protocol"]
    kind = server.get("store_type", "").strip().lower()
    if kind not in ("", "tcp", "file"):
        raise ValueError(f"store_type is {kind!r}; write tcp or file")
    if kind == "file" and not endpoint.startswith("file:"):
        raise ValueError(f"store_type is file, and the endpoint is {endpoint!r}; write file:PATH")
    if kind == "tcp" and endpoint.startswith("file:"):
        raise ValueError(f"store_type is tcp, and the endpoint is {endpoint!r}; write HOST:PORT")
    return endpoint, lines


def _truth(key: str, text: str) -> bool:
    """Source: RendezvousParameters.get_as_bool."""
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
