"""An etcd server with TLS, an authority of the user, and certificates of clients."""

import http.server
import os
import secrets
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcelastic.backends.connect import Connect
from hpcelastic.backends.etcd import connect, connect_v2
from hpcelastic.backends.etcd_server import EtcdServer
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.pytorch import EtcdClient, EtcdStore
from tests.backends.test_agents import TIMES
from tests.cli.shell import Shell, shell_in


@dataclass(frozen=True)
class Secure:
    """A server, and the files of a client that it accepts."""

    endpoint: str
    cacert: str
    cert: str
    key: str

    @property
    def files(self) -> dict[str, str]:
        return {"cacert": self.cacert, "cert": self.cert, "key": self.key}


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    directory = tmp_path_factory.mktemp("tls")
    make_certificates(directory)
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0)), other.bind(("127.0.0.1", 0))
        port, peers = one.getsockname()[1], other.getsockname()[1]
    command = ["etcd", "--enable-v2=true", "--data-dir=data", "--client-cert-auth", "--trusted-ca-file=ca.pem"]
    command += ["--cert-file=server.pem", "--key-file=server.key", f"--listen-peer-urls=http://127.0.0.1:{peers}"]
    command += [f"--{what}-client-urls=https://127.0.0.1:{port}" for what in ("listen", "advertise")]
    command += [f"--initial-advertise-peer-urls=http://127.0.0.1:{peers}"]
    command += [f"--initial-cluster=default=http://127.0.0.1:{peers}"]
    environ = {**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"}
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, env=environ, stdout=log, stderr=log)
    client = [str(directory / name) for name in ("ca.pem", "client.pem", "client.key")]
    found = Secure(f"127.0.0.1:{port}", *client)
    try:
        until_answered(found, process)
        yield found
    finally:
        process.kill()
        process.wait()


def make_certificates(directory: Path) -> None:
    """Make an authority, and certificates of the server and of a client that it has signed."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)

    new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    authority = ["-subj", "/CN=authority", "-addext", "keyUsage=critical,keyCertSign"]  # Python 3.13 requires it
    openssl(*new, *authority, "-keyout", "ca.key", "-out", "ca.pem")
    for name in ("server", "client"):
        more = ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1"]
        more += ["-addext", "basicConstraints=critical,CA:false"]
        openssl(*new, *more, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")


def until_answered(server: Secure, process: "subprocess.Popen[bytes]") -> None:
    while True:
        assert process.poll() is None, (Path(server.cacert).parent / "log").read_text()
        try:
            connect(server.endpoint, "none", True, **server.files).get("state")
            return
        except StoreError:
            time.sleep(0.1)


@pytest.mark.parametrize("version", [connect, connect_v2])
def test_records(secure: Secure, version: Connect) -> None:
    records = version(f"https://{secure.endpoint}", f"run-{secrets.token_hex(4)}", True, prefix="/mine", **secure.files)
    assert records.get("state") is None
    assert records.compare_set("state", None, "1") and not records.compare_set("state", None, "2")
    records.set("nodes/a", "beat")
    held = records.get("state")
    assert held is not None and held.text == "1" and records.all("nodes/") == {"nodes/a": "beat"}


@pytest.mark.parametrize("version", [connect, connect_v2])
def test_an_untrusted_server_is_refused(secure: Secure, version: Connect) -> None:
    with pytest.raises(StoreError, match=r"certificate verify failed.*check that it uses TLS"):
        version(f"https://{secure.endpoint}", "run", True).get("state")


def test_a_certificate_is_never_shown_to_a_server_without_tls(secure: Secure, etcd: EtcdServer) -> None:
    for files in ({"cacert": secure.cacert}, secure.files):
        with pytest.raises(StoreError, match=r"does not answer.*check that it uses TLS"):
            connect(etcd.endpoint, "run", True, **files).get("state")
    with pytest.raises(ConfigError, match="write https:// for every member"):
        connect(f"http://{etcd.endpoint}", "run", True, **secure.files)


def test_all_members_use_tls_if_one_does(secure: Secure, etcd: EtcdServer) -> None:
    with pytest.raises(StoreError, match="check that it uses TLS"):
        connect(f"{etcd.endpoint},https://{etcd.endpoint}", "run", True).get("state")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"cacert": "/no/ca.pem"}, "rendezvous.cacert /no/ca.pem: can't be used for TLS"),
        (
            {"cert": "/no/c.pem", "key": "/no/c.key"},
            "rendezvous.cert /no/c.pem; rendezvous.key /no/c.key: can't be used",
        ),
    ],
)
def test_missing_files(files: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        connect("n1", "run", True, **files)


@pytest.mark.parametrize("api", [3, 2])
def test_a_store_of_torch(secure: Secure, api: int) -> None:
    prefix = f"test-{secrets.token_hex(4)}"
    store = EtcdStore(EtcdClient(secure.endpoint, api, **secure.files), prefix)
    store.set("a", b"\xff")
    assert store.get("a") == b"\xff" and store.add("n", 1) == 1
    with pytest.raises(StoreError, match=r"check that it uses TLS, and that EtcdClient\.cacert"):
        EtcdStore(EtcdClient(f"https://{secure.endpoint}", api), prefix)


def test_a_redirection_is_not_followed(etcd: EtcdServer) -> None:
    with leading_to(f"http://{etcd.endpoint}") as endpoint, pytest.raises(StoreError, match="answered 302"):
        connect_v2(endpoint, "run", True).get("state")


@contextmanager
def leading_to(target: str) -> Iterator[str]:
    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"{target}{self.path}")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        yield made


def test_a_run(secure: Secure, shell: Shell) -> None:
    """The command line has torch's options. A reader finds the files by the run's directory."""
    shell.write({"train.py": "print('trained')\n"})
    run = f"run-{secrets.token_hex(4)}"
    conf = f"protocol=https,ca_cert={secure.cacert},ssl_cert={secure.cert},ssl_cert_key={secure.key},read_timeout=9"
    line = ["agent", "--rdzv-backend", "etcd-v2", "--rdzv-endpoint", secure.endpoint, "--rdzv-id", run, "--preload", ""]
    done = shell.hpcelastic(*line, "--local-addr", "127.0.0.1", "--rdzv-conf", f"{TIMES},{conf}", "train.py")
    assert done.returncode == 0, done.stderr
    assert "--rdzv-conf: read_timeout is not needed" in done.stderr
    status = shell.hpcelastic("status", f"runs/{run}")
    assert "phase      succeeded" in status.stdout
    assert connect_v2(f"https://{secure.endpoint}", run, False, **secure.files).get("state") is not None
