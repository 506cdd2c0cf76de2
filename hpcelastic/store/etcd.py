"""Records of a run in an etcd server, by its HTTP interfaces: those of version 2, and version 3's JSON gateway.

Sources: etcd's documentation, "Client API v2" and "gRPC gateway". The clients for Python are no longer kept up; what is
needed of the interfaces is four requests, for which the standard library does.
"""

import base64
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.protocol.settings import PREFIX
from hpcelastic.store.records import Record

T = TypeVar("T")

_TIMEOUT = 5.0
"""Seconds that a request may take."""

_PORT = 2379

_OPERATIONS = 100
"""Operations in one transaction; a server takes 128 if it is not told otherwise."""

_ABSENT, _EXISTS, _CHANGED = 100, 105, 101
"""Error codes of version 2: key not found, key already exists, compare failed."""


@dataclass(frozen=True)
class Tls:
    """How TLS is spoken with a server: paths of files, each empty where not given."""

    cacert: str = ""
    cert: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        """The server must prove its name by the authorities in ``cacert``, or by the system's. Raises ConfigError."""
        context = self._loaded("cacert", lambda: ssl.create_default_context(cafile=self.cacert or None))
        if self.cert:
            load = partial(context.load_cert_chain, self.cert, self.key or None, _no_password)
            self._loaded("cert", load)
        return context

    def _loaded(self, name: str, load: Callable[[], T]) -> T:
        try:
            return load()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            what = "; ".join(f"rendezvous.{one} {getattr(self, one)}" for one in (name, "key") if getattr(self, one))
            raise ConfigError(f"{what}: can't be used for TLS: {error}; name files that this node can read") from error


def _no_password() -> str:
    """Else the user would be asked for one, at a terminal."""
    raise ValueError("the key is encrypted")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An answer that names another server is no answer: it could name one without TLS."""

    def redirect_request(self, *_: object) -> None:
        return None


class _Server:
    """Where requests go: the members of ``endpoint``, HOST[:PORT][,HOST[:PORT]...] with or without a scheme."""

    def __init__(self, endpoint: str, tls: Tls) -> None:
        self._bases = _bases(endpoint, asked=tls != Tls())
        self.where = endpoint
        # Not by way of a proxy that the environment names: the server stands in the same cluster.
        handlers = [urllib.request.ProxyHandler({}), _NoRedirect()]
        if self._bases[0].startswith("https:"):
            handlers.append(urllib.request.HTTPSHandler(context=tls.context()))
        self._opener = urllib.request.build_opener(*handlers)

    def ask(self, method: str, path: str, data: bytes | None, kind: str) -> tuple[int, Any]:
        """The answer of the first member that gives one: its status, and what it says."""
        trouble: Exception | None = None
        for base in list(self._bases):
            request = urllib.request.Request(f"{base}{path}", data, {"Content-Type": kind}, method=method)
            try:
                with self._opener.open(request, timeout=_TIMEOUT) as answer:
                    return answer.status, json.loads(answer.read())
            except urllib.error.HTTPError as error:
                with error:
                    body = error.read()
                if error.code < 500:
                    return error.code, _loads(body)
                trouble = error
            except (OSError, ValueError) as error:
                trouble = error
            self._bases.append(self._bases.pop(0))  # the next one is asked first from now on
        reason = getattr(trouble, "reason", trouble)
        remedy = "is it running, and reached from this node?"
        # A server without TLS answers the handshake with an error, or resets the connection before that is read.
        if isinstance(reason, (ssl.SSLError, ConnectionResetError)) and base.startswith("https:"):
            remedy = "does it speak TLS, and do rendezvous.cacert, rendezvous.cert and rendezvous.key fit?"
        raise StoreError(f"etcd at {self.where} does not answer: {trouble}; {remedy}")


class EtcdV2:
    """Records under ``/v2/keys/PREFIX/RUN_ID``."""

    def __init__(self, endpoint: str, run_id: str, prefix: str = PREFIX, tls: Tls = Tls()) -> None:
        self._server = _Server(endpoint, tls)
        above = urllib.parse.quote(prefix.strip("/"))
        self._root = f"/v2/keys/{above}/{urllib.parse.quote(run_id, safe='')}"

    def get(self, key: str) -> Record | None:
        node = self._node(key)
        return None if node is None else Record(node["value"], node["modifiedIndex"])

    def compare_set(self, key: str, token: Any, text: str) -> bool:
        condition = {"prevExist": "false"} if token is None else {"prevIndex": str(token)}
        status, said = self._put(key, {"value": text, **condition})
        if status in (200, 201):
            return True
        if isinstance(said, Mapping) and said.get("errorCode") in (_EXISTS, _CHANGED, _ABSENT):
            return False
        raise self._refused(status, said)

    def set(self, key: str, text: str) -> None:
        status, said = self._put(key, {"value": text})
        if status not in (200, 201):
            raise self._refused(status, said)

    def all(self, prefix: str) -> dict[str, str]:
        node = self._node(prefix.rstrip("/"), recursive="true")
        found = {} if node is None else node.get("nodes", ())
        return {prefix + urllib.parse.unquote(one["key"].rpartition("/")[2]): one["value"] for one in found}

    def expire(self, keys: Mapping[str, Any], seconds: float) -> None:
        for key, token in keys.items():
            condition = {} if token is None else {"prevIndex": str(token)}
            form = {"ttl": str(int(seconds)), "refresh": "true", "prevExist": "true", **condition}
            status, said = self._put(key, form)
            if status != 200 and not (isinstance(said, Mapping) and said.get("errorCode") in (_CHANGED, _ABSENT)):
                raise self._refused(status, said)

    def close(self) -> None: ...

    def _node(self, key: str, **options: str) -> Any:
        query = urllib.parse.urlencode({"quorum": "true", **options})
        status, said = self._server.ask("GET", f"{self._path(key)}?{query}", None, "text/plain")
        if status == 404 and isinstance(said, Mapping) and said.get("errorCode") == _ABSENT:
            return None
        if status != 200:
            raise self._refused(status, said)
        return said["node"]

    def _put(self, key: str, form: Mapping[str, str]) -> tuple[int, Any]:
        data = urllib.parse.urlencode(form).encode()
        return self._server.ask("PUT", self._path(key), data, "application/x-www-form-urlencoded")

    def _path(self, key: str) -> str:
        # Quoted twice: the server unquotes once, and what it lists must be one name for each node.
        return f"{self._root}/{urllib.parse.quote(urllib.parse.quote(key, safe='/'), safe='/')}"

    def _refused(self, status: int, said: Any) -> StoreError:
        remedy = "start it with --enable-v2, or use the backend etcd" if status == 404 else ""
        return StoreError(f"etcd at {self._server.where} answered {status}: {said}; {remedy}".rstrip("; "))


class EtcdV3:
    """Records under the keys ``PREFIX/RUN_ID/``."""

    def __init__(self, endpoint: str, run_id: str, prefix: str = PREFIX, tls: Tls = Tls()) -> None:
        self._server = _Server(endpoint, tls)
        self._root = f"{prefix.rstrip('/')}/{run_id}/"

    def get(self, key: str) -> Record | None:
        found = self._ask("kv/range", {"key": self._key(key)}).get("kvs", [])
        return Record(_text(found[0]["value"]), found[0]["mod_revision"]) if found else None

    def compare_set(self, key: str, token: Any, text: str) -> bool:
        put = {"requestPut": {"key": self._key(key), "value": _base64(text)}}
        return self._txn([self._unchanged(key, token)], [put])

    def set(self, key: str, text: str) -> None:
        self._ask("kv/put", {"key": self._key(key), "value": _base64(text)})

    def all(self, prefix: str) -> dict[str, str]:
        start = f"{self._root}{prefix}"
        end = start[:-1] + chr(ord(start[-1]) + 1)
        answer = self._ask("kv/range", {"key": _base64(start), "range_end": _base64(end)})
        return {_text(one["key"]).removeprefix(self._root): _text(one["value"]) for one in answer.get("kvs", [])}

    def expire(self, keys: Mapping[str, Any], seconds: float) -> None:
        lease = self._ask("lease/grant", {"TTL": str(int(seconds))})["ID"]
        fixed = {key: token for key, token in keys.items() if token is not None}
        for key, token in fixed.items():
            self._txn([self._unchanged(key, token)], [self._kept(key, lease)])
        loose = [key for key in keys if key not in fixed]
        for start in range(0, len(loose), _OPERATIONS):
            self._txn([], [self._kept(key, lease) for key in loose[start : start + _OPERATIONS]])

    def close(self) -> None: ...

    def _txn(self, compare: list[dict[str, Any]], success: list[dict[str, Any]]) -> bool:
        return bool(self._ask("kv/txn", {"compare": compare, "success": success}).get("succeeded", False))

    def _unchanged(self, key: str, token: Any) -> dict[str, Any]:
        # A key that was never written has revision 0.
        return {"key": self._key(key), "target": "MOD", "result": "EQUAL", "mod_revision": token or "0"}

    def _kept(self, key: str, lease: str) -> dict[str, Any]:
        """The key goes on to hold what it holds, for as long as the server's ``lease``."""
        return {"requestPut": {"key": self._key(key), "ignore_value": True, "lease": lease}}

    def _key(self, key: str) -> str:
        return _base64(f"{self._root}{key}")

    def _ask(self, what: str, request: Mapping[str, Any]) -> dict[str, Any]:
        path, body = f"/v3/{what}", json.dumps(request).encode()
        status, said = self._server.ask("POST", path, body, "application/json")
        if status != 200 or not isinstance(said, dict):
            remedy = "; etcd before 3.4 has no such interface: use the backend etcd-v2" if status == 404 else ""
            raise StoreError(f"etcd at {self._server.where} answered {status}: {said}{remedy}")
        return said


def connect(
    endpoint: str,
    run_id: str,
    agent: bool,
    *,
    prefix: str = PREFIX,
    cacert: str = "",
    cert: str = "",
    key: str = "",
) -> EtcdV3:
    """The records of a run in the etcd at ``endpoint``, by the interface of version 3."""
    return EtcdV3(endpoint, run_id, prefix, Tls(cacert, cert, key))


def connect_v2(
    endpoint: str,
    run_id: str,
    agent: bool,
    *,
    prefix: str = PREFIX,
    cacert: str = "",
    cert: str = "",
    key: str = "",
) -> EtcdV2:
    """The records of a run in the etcd at ``endpoint``, by the interface of version 2."""
    return EtcdV2(endpoint, run_id, prefix, Tls(cacert, cert, key))


def _bases(endpoint: str, *, asked: bool) -> list[str]:
    """The members' addresses. All are asked by TLS if one of them is to be, or if it is ``asked`` for."""
    scheme = "https" if asked or "https://" in endpoint else "http"
    found = [_base(part if "//" in part else f"{scheme}://{part}") for part in endpoint.split(",")]
    if len({base.partition(":")[0] for base in found}) > 1 or not found[0].startswith(f"{scheme}:"):
        raise ConfigError(f"rendezvous.endpoint is {endpoint!r}, where TLS is asked for; write https:// throughout")
    return found


def _base(text: str) -> str:
    parsed = urllib.parse.urlsplit(text)
    try:
        port = parsed.port or _PORT
    except ValueError:
        port = 0
    if parsed.scheme not in ("http", "https") or not parsed.hostname or not port:
        raise ConfigError(f"rendezvous.endpoint has {text!r}; write HOST:PORT of an etcd server, such as n1:{_PORT}")
    host = f"[{parsed.hostname}]" if ":" in parsed.hostname else parsed.hostname
    return f"{parsed.scheme}://{host}:{port}"


def _loads(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace").strip()


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()
