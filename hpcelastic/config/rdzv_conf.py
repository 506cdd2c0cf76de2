"""What ``--rdzv-conf``, or ``LaunchConfig.rdzv_configs``, says in torch's words. Pure."""

import math
from collections.abc import Collection, Mapping
from typing import Any

from hpcelastic.protocol.settings import TIMINGS, RendezvousSettings, timed

_TORCHS = {"last_call_timeout": "last_call"}
"""Times that torch has another name for."""

_UNNEEDED = {
    *("close_timeout", "heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt", "read_timeout"),
    *("is_host", "store_type", "use_libuv", "protocol", "cert", "key", "cacert", "ssl_cert", "ssl_cert_key"),
    *("ca_cert", "etcd_prefix", "rank", "timeout"),
}
"""Keys that are about the servers of torch's own backends, or are in every LaunchConfig: leases say here who lives."""


def timings(given: Mapping[str, Any], beside: Collection[str] = ()) -> RendezvousSettings:
    """The times in ``given``, in seconds. ValueError names a key that is not torch's, nor ours, nor in ``beside``.

    Source: torch/distributed/elastic/rendezvous, what each backend reads of its parameters.
    """
    named = {_TORCHS.get(key, key): value for key, value in given.items() if key not in _UNNEEDED}
    unknown = sorted(named.keys() - {*TIMINGS, *beside})
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not known; it takes {', '.join([*TIMINGS, *beside])}")
    return timed({key: _seconds(key, value) for key, value in named.items() if key in TIMINGS})


def _seconds(key: str, value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise ValueError(f"{key} is {value!r}; write seconds, such as {key}=5")
    return seconds
