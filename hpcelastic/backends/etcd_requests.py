"""Requests to the members of an etcd cluster, over HTTP with or without TLS."""

import contextlib
import http.client
import json
import random
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from hpcelastic.errors import ConfigError, StoreError

T = TypeVar("T")

_REQUEST_TIMEOUT = 5.0
"""The time-out of a request in seconds."""

_MEMBER_TIMEOUT = 0.5
"""The time-out of a request that other members can answer. A lease must not expire because one member hangs."""

_DEFAULT_PORT = 2379

NOT_A_FILE = b"Not a file"
"""In the answer of etcd 3.5, with status 500, to a request of version 2 that renews the lifetime of a directory."""


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


NO_TLS = Tls()
"""No TLS, unless an endpoint requires it."""


def _no_password() -> str:
    """Raise an error, because ssl would otherwise ask the user at the terminal."""
    raise ValueError("the key is encrypted")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A handler that refuses redirects, because they could lead to a server without TLS."""

    def redirect_request(self, *_: object) -> None:
        return None


class Server:
    """The members of an etcd cluster at ``endpoint``, HOST[:PORT][,HOST[:PORT]...] with or without a scheme."""

    def __init__(self, endpoint: str, tls: Tls) -> None:
        urls = _base_urls(endpoint, tls)
        first = random.randrange(len(urls))  # the processes of a run share the members
        self._base_urls = (*urls[first:], *urls[:first])
        """The members, in the order of the next request. Threads share this, so it is replaced as a whole."""

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
        members = self._base_urls
        for tried, base in enumerate(members, 1):
            timeout = _REQUEST_TIMEOUT if once or tried == len(members) else _MEMBER_TIMEOUT
            request = urllib.request.Request(f"{base}{path}", data, {"Content-Type": kind}, method=method)
            try:
                with self._opener.open(request, timeout=timeout) as answer:
                    return answer.status, json.loads(answer.read())
            except urllib.error.HTTPError as error:
                failure, received = error, True
                with contextlib.suppress(OSError, http.client.HTTPException), error:
                    body = error.read()
                    if error.code < 500 or NOT_A_FILE in body:
                        return error.code, _decode_body(body)
            except (OSError, ValueError, http.client.HTTPException) as error:
                # URLError is an error before the whole request was sent. An error after that is raised as it is.
                failure, received = error, not isinstance(error, urllib.error.URLError)
            self._base_urls = (*members[tried:], *members[:tried])  # the next requests go to the next member first
            if once and received:
                break
        reason = getattr(failure, "reason", failure)
        remedy = "check that it runs and that this node can reach it"
        # A server without TLS answers the handshake with an error, or resets the connection before the error is read.
        if isinstance(reason, (ssl.SSLError, ConnectionResetError)) and base.startswith("https:"):
            names = f"{self._owner}.cacert, {self._owner}.cert and {self._owner}.key"
            remedy = f"check that it uses TLS, and that {names} are right"
        raise StoreError(f"etcd at {self.where} does not answer: {failure}; {remedy}")


def _base_urls(endpoint: str, tls: Tls) -> list[str]:
    """Return the URLs of the members. All use TLS if one of them does, or if a setting of ``tls`` is given."""
    scheme = "https" if tls != NO_TLS or "https://" in endpoint else "http"
    parts = [part.strip() for part in endpoint.split(",")]
    found = [_base_url(part if "//" in part else f"{scheme}://{part}", tls.owner) for part in parts]
    if len({base.partition(":")[0] for base in found}) > 1 or not found[0].startswith(f"{scheme}:"):
        raise ConfigError(f"{tls.owner}.endpoint is {endpoint!r}, but TLS is required; write https:// for every member")
    return found


def _base_url(text: str, owner: str) -> str:
    try:
        parsed = urllib.parse.urlsplit(text)
        scheme, name, port = parsed.scheme, parsed.hostname, parsed.port or _DEFAULT_PORT
    except ValueError:
        scheme, name, port = "", "", 0
    if scheme not in ("http", "https") or not name or not port:
        raise ConfigError(
            f"{owner}.endpoint has {text!r}; write HOST:PORT of an etcd server, such as n1:{_DEFAULT_PORT}"
        )
    host = f"[{name}]" if ":" in name else name
    return f"{scheme}://{host}:{port}"


def _decode_body(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace").strip()
