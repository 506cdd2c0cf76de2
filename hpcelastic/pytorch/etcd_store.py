"""`torch.distributed.Store` in an etcd server, like torch's ``rendezvous.etcd_store``, without python-etcd.

All keys of a store end together: the server removes them when no process has had the store open for some time. In
version 3 of etcd they share a lease, in version 2 a directory with a time to live.
"""

import contextlib
import threading
from dataclasses import dataclass
from datetime import timedelta

from hpcelastic.backends.etcd import EtcdV2, EtcdV3, server_version
from hpcelastic.backends.etcd_requests import Tls
from hpcelastic.backends.record_values import RecordValues
from hpcelastic.backends.records import KeptRecords
from hpcelastic.errors import StoreError
from hpcelastic.protocol.settings import RENEWALS
from hpcelastic.pytorch.store import DEFAULT_TIMEOUT, TorchStore

DEFAULT_TTL = timedelta(hours=2)
"""Time for which the keys outlive the last process that had the store open, the same as for runs of torch in etcd."""

_MIN_TTL = timedelta(seconds=1)


@dataclass(frozen=True)
class EtcdClient:
    """The address of an etcd server and how to connect to it. It can be pickled, and used by any number of stores."""

    endpoint: str
    """HOST[:PORT] of each member, separated by commas. ``https://`` before one of them enables TLS."""

    api: int = 3
    """The version of etcd's interface: 3, or 2 for a server with --enable-v2."""

    cacert: str = ""
    """Path of the CA certificates. Default: those of the system. Setting it enables TLS."""

    cert: str = ""
    """Path of the client certificate."""

    key: str = ""
    """Path of the unencrypted key of ``cert``, if that file does not contain it."""

    def __post_init__(self) -> None:
        if self.api not in (2, 3):
            raise ValueError(f"EtcdClient.api is {self.api!r}; the versions of etcd's interface are 2 and 3")

    @property
    def version(self) -> str:
        """The version of the server, such as 3.4.23. Raises StoreError if it does not answer."""
        return server_version(self.endpoint, self._tls())

    def records(self, prefix: str, ttl: float) -> KeptRecords:
        """Return the records under ``prefix``. The server removes them ``ttl`` seconds after the last call of `keep`.

        If ``ttl`` is 0, they stay, and `keep` must not be called. Raises ConfigError.
        """
        return (EtcdV3 if self.api == 3 else EtcdV2)(self.endpoint, "store", prefix, self._tls(), ttl)

    def _tls(self) -> Tls:
        return Tls(self.cacert, self.cert, self.key, owner="EtcdClient")


class EtcdStore(TorchStore):
    """A store under ``etcd_store_prefix`` in an etcd server, shared by all processes that use the same prefix.

    ``etcd_client`` is an `EtcdClient`, or the endpoint of a server without TLS. The keys survive each process. They end
    ``ttl`` after the last process that had the store open, all together; None keeps them until they are deleted. All
    processes of a store must use the same ``ttl``. Raises StoreError if the server does not answer, ConfigError if
    the address or a certificate cannot be used.
    """

    def __init__(
        self,
        etcd_client: EtcdClient | str,
        etcd_store_prefix: str,
        timeout: timedelta | None = None,
        ttl: timedelta | None = DEFAULT_TTL,
    ) -> None:
        if not etcd_store_prefix.strip("/"):
            raise ValueError("etcd_store_prefix is empty; write a prefix that no other run uses, such as my-run")
        if ttl is not None and ttl < _MIN_TTL:
            raise ValueError(f"ttl is {ttl}; it must be at least {_MIN_TTL}, or None")
        client = EtcdClient(etcd_client) if isinstance(etcd_client, str) else etcd_client
        records = client.records(etcd_store_prefix, ttl.total_seconds() if ttl else 0)
        if ttl is not None:
            records.keep()
            _keep_in_thread(records, ttl / RENEWALS)
        values, queues = (RecordValues(records, name) for name in ("values", "queues"))
        super().__init__(values, queues, DEFAULT_TIMEOUT if timeout is None else timeout)


def _keep_in_thread(records: KeptRecords, interval: timedelta) -> None:
    """Keep ``records`` until this process ends: a store lives as long as its process, like all stores of torch."""
    never = threading.Event()

    def keep() -> None:
        while not never.wait(interval.total_seconds()):
            with contextlib.suppress(StoreError):
                records.keep()

    threading.Thread(target=keep, name="keeper of an etcd store", daemon=True).start()
