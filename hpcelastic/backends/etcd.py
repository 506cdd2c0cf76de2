"""Records of a run in an etcd server, through its HTTP interfaces: API version 2, and the JSON gateway of version 3.

Sources: etcd's documentation, "Client API v2" and "gRPC gateway". The Python clients are no longer maintained. A few
requests are needed, for which the standard library suffices.
"""

import base64
import hashlib
import json
import secrets
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from hpcelastic.backends.etcd_requests import NO_TLS, NOT_A_FILE, Server, Tls
from hpcelastic.backends.records import Record
from hpcelastic.errors import StoreError
from hpcelastic.protocol.settings import PREFIX

_MAX_OPERATIONS = 100
"""Operations in one transaction. The default limit of a server is 128."""

_MAX_SETS = 5
"""How often a record is set that is not as expected. It changes when the server is told to remove it later."""

_KEY_NOT_FOUND, _KEY_EXISTS, _COMPARE_FAILED = 100, 105, 101
"""Error codes of version 2: key not found, key already exists, compare failed."""

_FORM = "application/x-www-form-urlencoded"

_NO_LEASE, _LEASE_EXISTS = 5, 9
"""Error codes of version 3, those of gRPC: the server has no lease of this id (NOT_FOUND); it has one already
(FAILED_PRECONDITION)."""


class EtcdV2:
    """Records under ``/v2/keys/PREFIX/RUN_ID``. The server removes them ``ttl`` seconds after the last `keep`.

    With etcd 3.5 they stay until they are deleted: this version cannot renew the lifetime of a directory.
    """

    def __init__(self, endpoint: str, run_id: str, prefix: str = PREFIX, tls: Tls = NO_TLS, ttl: float = 0) -> None:
        self._server = Server(endpoint, tls)
        self._ttl = ttl
        self._renews: bool | None = None  # whether the server can renew the lifetime of a directory
        self._tokens: dict[str, Any] = {}
        """The tokens of the records that `set` has written."""

        above = urllib.parse.quote(prefix.strip("/"))
        self._root = f"/v2/keys/{above}/{urllib.parse.quote(run_id, safe='')}"

    def get(self, key: str) -> Record | None:
        node = self._node(key)
        return None if node is None else Record(node["value"], node["modifiedIndex"])

    def compare_set(self, key: str, token: Any, text: str) -> bool:
        return self._put_if(key, token, text, once=True) is not None

    def set(self, key: str, text: str) -> None:
        self._tokens[key] = _written(text, self._tokens.get(key), lambda token: self._replace(key, token, text))

    def _replace(self, key: str, token: Any, text: str) -> tuple[bool, Record | None]:
        """Set ``key`` as `compare_set` does. Return whether that was done, and the record then."""
        token = self._put_if(key, token, text)
        return (False, self.get(key)) if token is None else (True, Record(text, token))

    def _put_if(self, key: str, token: Any, text: str, *, once: bool = False) -> Any:
        """Set ``key`` if its record has ``token``, or if there is none and ``token`` is None.

        Return the token of the new record; None if the record is another one.
        """
        condition = {"prevExist": "false"} if token is None else {"prevIndex": str(token)}
        status, answer = self._put(key, {"value": text, **condition}, once=once)
        if status in (200, 201):
            return answer["node"]["modifiedIndex"]
        if _error_code(answer) in (_KEY_EXISTS, _COMPARE_FAILED, _KEY_NOT_FOUND):
            return None
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
                if NOT_A_FILE.decode() not in str(answer):
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

    def __init__(self, endpoint: str, run_id: str, prefix: str = PREFIX, tls: Tls = NO_TLS, ttl: float = 0) -> None:
        self._server = Server(endpoint, tls)
        self._root = f"{prefix.rstrip('/')}/{run_id}/"
        self._ttl = ttl
        self._lease = {"lease": _lease_id(self._root)} if ttl else {}
        self._tokens: dict[str, Any] = {}
        """The tokens of the records that `set` has written."""

    def get(self, key: str) -> Record | None:
        found = self._request("kv/range", {"key": self._key(key)}).get("kvs", [])
        return Record(_value(found[0]), found[0]["mod_revision"]) if found else None

    def compare_set(self, key: str, token: Any, text: str) -> bool:
        request = {"compare": [self._compare_revision(key, token)], "success": [self._put(key, text)]}
        return bool(self._request("kv/txn", request, once=True).get("succeeded", False))

    def set(self, key: str, text: str) -> None:
        self._tokens[key] = _written(text, self._tokens.get(key), lambda token: self._replace(key, token, text))

    def _replace(self, key: str, token: Any, text: str) -> tuple[bool, Record | None]:
        """Set ``key`` as `compare_set` does. Return whether that was done, and the record then."""
        compare, put, get = self._compare_revision(key, token), self._put(key, text), {"key": self._key(key)}
        request = {"compare": [compare], "success": [put], "failure": [{"requestRange": get}]}
        answer = self._request("kv/txn", request)
        if answer.get("succeeded"):
            return True, Record(text, answer["header"]["revision"])
        found = answer["responses"][0]["response_range"].get("kvs", [])
        return False, Record(_value(found[0]), found[0]["mod_revision"]) if found else None

    def all(self, prefix: str) -> dict[str, str]:
        start = f"{self._root}{prefix}"
        end = start[:-1] + chr(ord(start[-1]) + 1)
        answer = self._request("kv/range", {"key": _base64(start), "range_end": _base64(end)})
        return {_text(entry["key"]).removeprefix(self._root): _value(entry) for entry in answer.get("kvs", [])}

    def expire(self, keys: Mapping[str, Any], seconds: float) -> None:
        lease = self._request("lease/grant", {"TTL": str(int(seconds))})["ID"]
        changes = [self._put_with_lease(key, token, lease) for key, token in keys.items()]
        for start in range(0, len(changes), _MAX_OPERATIONS):
            self._request("kv/txn", {"success": changes[start : start + _MAX_OPERATIONS]})

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

    def _compare_revision(self, key: str, token: Any) -> dict[str, Any]:
        # A key that was never written has mod_revision 0.
        return {"key": self._key(key), "target": "MOD", "result": "EQUAL", "mod_revision": token or "0"}

    def _put(self, key: str, text: str) -> dict[str, Any]:
        """Return a request to set the key's value."""
        return {"requestPut": {"key": self._key(key), "value": _base64(text), **self._lease}}

    def _put_with_lease(self, key: str, token: Any, lease: str) -> dict[str, Any]:
        """Return a request to keep the key's value for the duration of the server's ``lease``.

        It changes nothing if there is no record, or if ``token`` is not None and the record has another one.
        """
        exists = {"key": self._key(key), "target": "VERSION", "result": "GREATER", "version": "0"}
        compare = exists if token is None else self._compare_revision(key, token)
        put = {"requestPut": {"key": self._key(key), "ignore_value": True, "lease": lease}}
        return {"requestTxn": {"compare": [compare], "success": [put]}}

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


def server_version(endpoint: str, tls: Tls = NO_TLS) -> str:
    """Return the version of the server, such as 3.4.23. Raises StoreError if it does not answer."""
    status, answer = Server(endpoint, tls).send("GET", "/version")
    if status != 200 or not isinstance(answer, Mapping) or "etcdserver" not in answer:
        raise StoreError(f"{endpoint} answered {status}: {answer!r:.60}; it is no etcd server")
    return str(answer["etcdserver"])


def _written(text: str, token: Any, replace: Callable[[Any], tuple[bool, Record | None]]) -> Any:
    """Set a record to ``text`` by ``replace``, and return its token. ``token`` is the one that it should have now.

    A request that was repeated at another member may be executed twice, much later for the second time. So each one
    names the record that it replaces, and a record that has the text already was set by an earlier request.
    """
    for _ in range(_MAX_SETS):
        done, record = replace(token)
        token = None if record is None else record.token
        if done or (record is not None and record.text == text):
            return token
    raise StoreError("etcd: another process sets a record of this one; start each agent with a node name of its own")


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
