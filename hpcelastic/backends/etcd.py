"""Records of a run in an etcd server, through its HTTP interfaces: API version 2, and the JSON gateway of version 3.

Sources: etcd's documentation, "Client API v2" and "gRPC gateway". The Python clients are no longer maintained. A few
requests are needed, for which the standard library suffices.
"""

import base64
import hashlib
import http.client
import json
import secrets
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from hpcelastic.backends.records import Record
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.protocol.settings import PREFIX

T = TypeVar("T")

_REQUEST_TIMEOUT = 5.0
"""The time-out of a request in seconds."""

_DEFAULT_PORT = 2379

_MAX_OPERATIONS = 100
"""Operations in one transaction. The default limit of a server is 128."""

_KEY_NOT_FOUND, _KEY_EXISTS, _COMPARE_FAILED = 100, 105, 101
"""Error codes of version 2: key not found, key already exists, compare failed."""

_NOT_A_FILE = b"Not a file"
"""In the answer of etcd 3.5, with status 500, to a request of version 2 that renews the lifetime of a directory."""
_FORM = "application/x-www-form-urlencoded"

_NO_LEASE, _LEASE_EXISTS = 5, 9
"""Error codes of version 3, those of gRPC: the server has no lease of this id (NOT_FOUND); it has one already
(FAILED_PRECONDITION)."""


@dataclass(frozen=True)
class Tls:
    """The TLS settings of a connection: paths of files, empty if not set."""

    cacert: str = ""
    cert: str = ""
    key: str = ""

    owner: str = field(default="rendezvous", compare=False)
    """The name of the object with these settings and the endpoint, for messages."""

    def context(self) -> ssl.SSLContext:
        """Return a context that verifies the server's name by the authorities in ``cacert``, or by those of the system.

        Raises ConfigError if a file can't be used.
        """
        context = self._load("cacert", lambda: ssl.create_default_context(cafile=self.cacert or None))
        if self.cert:
            load = partial(context.load_cert_chain, self.cert, self.key or None, _no_password)
            self._load("cert", load)
        return context

    def _load(self, name: str, load: Callable[[], T]) -> T:
        try:
            return load()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            paths = {option: getattr(self, option) for option in (name, "key")}
            what = "; ".join(f"{self.owner}.{option} {path}" for option, path in paths.items() if path)
            raise ConfigError(f"{what}: can't be used for TLS: {error}; name files that this node can read") from error


def _no_password() -> str:
    """Raise an error, because ssl would otherwise ask the user at the terminal."""
    raise ValueError("the key is encrypted")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A handler that refuses redirects, because they could lead to a server without TLS."""

    def redirect_request(self, *_: object) -> None:
        return None


class _Server:
    """The members of an etcd cluster at ``endpoint``, HOST[:PORT][,HOST[:PORT]...] with or without a scheme."""

    def __init__(self, endpoint: str, tls: Tls) -> None:
        self._base_urls = _base_urls(endpoint, tls)
        self._owner = tls.owner
        self.where = endpoint
        # Proxies in the environment are not used, because the server is in the same cluster.
        handlers = [urllib.request.ProxyHandler({}), _NoRedirect()]
        if self._base_urls[0].startswith("https:"):
            handlers.append(urllib.request.HTTPSHandler(context=tls.context()))
        self._opener = urllib.request.build_opener(*handlers)

    def send(
        self, method: str, path: str, data: bytes | None = None, kind: str = "text/plain", *, once: bool = False
    ) -> tuple[int, Any]:
        """Return the status and the body of the first member that answers.

        A request that is executed at most ``once`` is not sent to another member if one may have received it.
        """
        failure: Exception | None = None
        for base in list(self._base_urls):
            request = urllib.request.Request(f"{base}{path}", data, {"Content-Type": kind}, method=method)
            try:
                with self._opener.open(request, timeout=_REQUEST_TIMEOUT) as answer:
                    return answer.status, json.loads(answer.read())
            except urllib.error.HTTPError as error:
                with error:
                    body = error.read()
                if error.code < 500 or _NOT_A_FILE in body:
                    return error.code, _decode_body(body)
                failure, received = error, True
            except (OSError, ValueError, http.client.HTTPException) as error:
                # URLError is an error before the whole request was sent. An error after that is raised as it is.
                failure, received = error, not isinstance(error, urllib.error.URLError)
            self._base_urls.append(self._base_urls.pop(0))  # the next requests go to the next member first
            if once and received:
                break
        reason = getattr(failure, "reason", failure)
        remedy = "check that it runs and that this node can reach it"
        # A server without TLS answers the handshake with an error, or resets the connection before the error is read.
        if isinstance(reason, (ssl.SSLError, ConnectionResetError)) and base.startswith("https:"):
            names = f"{self._owner}.cacert, {self._owner}.cert and {self._owner}.key"
            remedy = f"check that it uses TLS, and that {names} are right"
        raise StoreError(f"etcd at {self.where} does not answer: {failure}; {remedy}")


class EtcdV2:
    """Records under ``/v2/keys/PREFIX/RUN_ID``. The server removes them ``ttl`` seconds after the last `keep`.

    With etcd 3.5 they stay until they are deleted: this version cannot renew the lifetime of a directory.
    """

    def __init__(self, endpoint: str, run_id: str, prefix: str = PREFIX, tls: Tls = Tls(), ttl: float = 0) -> None:
        self._server = _Server(endpoint, tls)
        self._ttl = ttl
        self._renews: bool | None = None  # whether the server can renew the lifetime of a directory
        above = urllib.parse.quote(prefix.strip("/"))
        self._root = f"/v2/keys/{above}/{urllib.parse.quote(run_id, safe='')}"

    def get(self, key: str) -> Record | None:
        node = self._node(key)
        return None if node is None else Record(node["value"], node["modifiedIndex"])

    def compare_set(self, key: str, token: Any, text: str) -> bool:
        condition = {"prevExist": "false"} if token is None else {"prevIndex": str(token)}
        status, answer = self._put(key, {"value": text, **condition}, once=True)
        if status in (200, 201):
            return True
        if _error_code(answer) in (_KEY_EXISTS, _COMPARE_FAILED, _KEY_NOT_FOUND):
            return False
        raise self._error(status, answer)

    def set(self, key: str, text: str) -> None:
        status, answer = self._put(key, {"value": text})
        if status not in (200, 201):
            raise self._error(status, answer)

    def all(self, prefix: str) -> dict[str, str]:
        node = self._node(prefix.rstrip("/"), recursive="true")
        found = {} if node is None else node.get("nodes", ())
        return {prefix + urllib.parse.unquote(entry["key"].rpartition("/")[2]): entry["value"] for entry in found}

    def expire(self, keys: Mapping[str, Any], seconds: float) -> None:
        for key, token in keys.items():
            condition = {} if token is None else {"prevIndex": str(token)}
            form = {"ttl": str(int(seconds)), "refresh": "true", "prevExist": "true", **condition}
            status, answer = self._put(key, form)
            if status != 200 and _error_code(answer) not in (_COMPARE_FAILED, _KEY_NOT_FOUND):
                raise self._error(status, answer)

    def delete(self, key: str) -> bool:
        status, answer = self._server.send("DELETE", self._path(key), once=True)
        if status not in (200, 404) or (status == 404 and _error_code(answer) != _KEY_NOT_FOUND):
            raise self._error(status, answer)
        return status == 200

    def keep(self) -> None:
        ttl = {"dir": "true", "ttl": str(int(self._ttl))}
        self._renews = self._can_renew() if self._renews is None else self._renews
        if not self._renews:
            return
        status, answer = self._put("", {**ttl, "prevExist": "true"})
        if _error_code(answer) == _KEY_NOT_FOUND:
            status, answer = self._put("", {**ttl, "prevExist": "false"})
        if status not in (200, 201) and _error_code(answer) != _KEY_EXISTS:
            raise self._error(status, answer)

    def close(self) -> None: ...

    def _can_renew(self) -> bool:
        """Return whether the server can renew the lifetime of a directory. Tries it with one that nobody uses."""
        path, form = f"{self._root}.{secrets.token_hex(4)}", b"dir=true&ttl=10&prevExist="
        for exists in (b"false", b"true"):
            status, answer = self._server.send("PUT", path, form + exists, _FORM)
            if status not in (200, 201):
                if _NOT_A_FILE.decode() not in str(answer):
                    raise self._error(status, answer)
                return False
        return True

    def _node(self, key: str, **options: str) -> Any:
        query = urllib.parse.urlencode({"quorum": "true", **options})
        status, answer = self._server.send("GET", f"{self._path(key)}?{query}")
        if status == 404 and _error_code(answer) == _KEY_NOT_FOUND:
            return None
        if status != 200:
            raise self._error(status, answer)
        return answer["node"]

    def _put(self, key: str, form: Mapping[str, str], *, once: bool = False) -> tuple[int, Any]:
        data = urllib.parse.urlencode(form).encode()
        return self._server.send("PUT", self._path(key), data, _FORM, once=once)

    def _path(self, key: str) -> str:
        # Quoted twice: the server unquotes once, and its listing must contain exactly one name for each node.
        return f"{self._root}/{urllib.parse.quote(urllib.parse.quote(key, safe='/'), safe='/')}"

    def _error(self, status: int, answer: Any) -> StoreError:
        remedy = "start it with --enable-v2, or use the backend etcd" if status == 404 else ""
        return StoreError(f"etcd at {self._server.where} answered {status}: {answer}; {remedy}".rstrip("; "))


class EtcdV3:
    """Records under the keys ``PREFIX/RUN_ID/``. The server removes them ``ttl`` seconds after the last `keep`."""

    def __init__(self, endpoint: str, run_id: str, prefix: str = PREFIX, tls: Tls = Tls(), ttl: float = 0) -> None:
        self._server = _Server(endpoint, tls)
        self._root = f"{prefix.rstrip('/')}/{run_id}/"
        self._ttl = ttl
        self._lease = {"lease": _lease_id(self._root)} if ttl else {}

    def get(self, key: str) -> Record | None:
        found = self._request("kv/range", {"key": self._key(key)}).get("kvs", [])
        return Record(_value(found[0]), found[0]["mod_revision"]) if found else None

    def compare_set(self, key: str, token: Any, text: str) -> bool:
        put = {"requestPut": {"key": self._key(key), "value": _base64(text), **self._lease}}
        return self._txn([self._compare_revision(key, token)], [put])

    def set(self, key: str, text: str) -> None:
        self._request("kv/put", {"key": self._key(key), "value": _base64(text), **self._lease})

    def all(self, prefix: str) -> dict[str, str]:
        start = f"{self._root}{prefix}"
        end = start[:-1] + chr(ord(start[-1]) + 1)
        answer = self._request("kv/range", {"key": _base64(start), "range_end": _base64(end)})
        return {_text(entry["key"]).removeprefix(self._root): _value(entry) for entry in answer.get("kvs", [])}

    def expire(self, keys: Mapping[str, Any], seconds: float) -> None:
        lease = self._request("lease/grant", {"TTL": str(int(seconds))})["ID"]
        conditional = {key: token for key, token in keys.items() if token is not None}
        for key, token in conditional.items():
            self._txn([self._compare_revision(key, token)], [self._put_with_lease(key, lease)])
        unconditional = [key for key in keys if key not in conditional]
        for start in range(0, len(unconditional), _MAX_OPERATIONS):
            self._txn([], [self._put_with_lease(key, lease) for key in unconditional[start : start + _MAX_OPERATIONS]])

    def delete(self, key: str) -> bool:
        return "deleted" in self._request("kv/deleterange", {"key": self._key(key)}, once=True)

    def keep(self) -> None:
        lease = self._lease["lease"]
        kept = self._request("lease/keepalive", {"ID": lease})
        if int(kept.get("result", {}).get("TTL", 0)) > 0:
            return
        status, answer = self._send("lease/grant", {"ID": lease, "TTL": str(int(self._ttl))})
        if status != 200 and _error_code(answer) != _LEASE_EXISTS:  # another process was first
            raise self._error(status, answer)

    def close(self) -> None: ...

    def _txn(self, compare: list[dict[str, Any]], success: list[dict[str, Any]]) -> bool:
        request = {"compare": compare, "success": success}
        return bool(self._request("kv/txn", request, once=bool(compare)).get("succeeded", False))

    def _compare_revision(self, key: str, token: Any) -> dict[str, Any]:
        # A key that was never written has mod_revision 0.
        return {"key": self._key(key), "target": "MOD", "result": "EQUAL", "mod_revision": token or "0"}

    def _put_with_lease(self, key: str, lease: str) -> dict[str, Any]:
        """Return a request to keep the key's value for the duration of the server's ``lease``."""
        return {"requestPut": {"key": self._key(key), "ignore_value": True, "lease": lease}}

    def _key(self, key: str) -> str:
        return _base64(f"{self._root}{key}")

    def _request(self, what: str, request: Mapping[str, Any], *, once: bool = False) -> dict[str, Any]:
        status, answer = self._send(what, request, once=once)
        if self._lease and _error_code(answer) == _NO_LEASE:  # it has expired, and all records with it
            self.keep()
            status, answer = self._send(what, request, once=once)
        if status != 200 or not isinstance(answer, dict):
            raise self._error(status, answer)
        return answer

    def _send(self, what: str, request: Mapping[str, Any], *, once: bool = False) -> tuple[int, Any]:
        return self._server.send("POST", f"/v3/{what}", json.dumps(request).encode(), "application/json", once=once)

    def _error(self, status: int, answer: Any) -> StoreError:
        remedy = "; etcd before 3.4 has no such interface: use the backend etcd-v2" if status == 404 else ""
        return StoreError(f"etcd at {self._server.where} answered {status}: {answer}{remedy}")


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
    """Return the records of a run in the etcd server at ``endpoint``, through API version 3."""
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
    """Return the records of a run in the etcd server at ``endpoint``, through API version 2."""
    return EtcdV2(endpoint, run_id, prefix, Tls(cacert, cert, key))


def server_version(endpoint: str, tls: Tls = Tls()) -> str:
    """Return the version of the server, such as 3.4.23. Raises StoreError if it does not answer."""
    status, answer = _Server(endpoint, tls).send("GET", "/version")
    if status != 200 or not isinstance(answer, Mapping) or "etcdserver" not in answer:
        raise StoreError(f"{endpoint} answered {status}: {answer!r:.60}; it is no etcd server")
    return str(answer["etcdserver"])


def _base_urls(endpoint: str, tls: Tls) -> list[str]:
    """Return the URLs of the members. All use TLS if one of them does, or if a setting of ``tls`` is given."""
    scheme = "https" if tls != Tls() or "https://" in endpoint else "http"
    found = [_base_url(part if "//" in part else f"{scheme}://{part}", tls.owner) for part in endpoint.split(",")]
    if len({base.partition(":")[0] for base in found}) > 1 or not found[0].startswith(f"{scheme}:"):
        raise ConfigError(f"{tls.owner}.endpoint is {endpoint!r}, but TLS is required; write https:// for every member")
    return found


def _base_url(text: str, owner: str) -> str:
    parsed = urllib.parse.urlsplit(text)
    try:
        port = parsed.port or _DEFAULT_PORT
    except ValueError:
        port = 0
    if parsed.scheme not in ("http", "https") or not parsed.hostname or not port:
        raise ConfigError(
            f"{owner}.endpoint has {text!r}; write HOST:PORT of an etcd server, such as n1:{_DEFAULT_PORT}"
        )
    host = f"[{parsed.hostname}]" if ":" in parsed.hostname else parsed.hostname
    return f"{parsed.scheme}://{host}:{port}"


def _decode_body(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace").strip()


def _error_code(answer: Any) -> int | None:
    """Return the error code in an answer; None if there is none. Version 3 names it ``code``."""
    return answer.get("errorCode", answer.get("code")) if isinstance(answer, Mapping) else None


def _lease_id(root: str) -> str:
    """Return the id of the lease that all processes with records under ``root`` share: a positive 63-bit number."""
    return str(int.from_bytes(hashlib.sha256(root.encode()).digest()[:8], "big") >> 1 or 1)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _value(entry: Mapping[str, str]) -> str:
    """Return the value in an answer of version 3, which omits an empty value."""
    return _text(entry.get("value", ""))


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()
