"""The agent holds the store's port from the start, and a server serves a real torch store there, fresh or forked."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcelastic.agent.fork_server import ForkServer, ForkServerSettings
from hpcelastic.agent.guard import Guard
from hpcelastic.agent.guard_main import MARKER, boottime, kill_marked_processes
from hpcelastic.agent.store_server import StoreListener, StoreServer, store_server_environment, store_server_spawner
from hpcelastic.agent.worker import WorkerResources
from tests.agent.processes import TIMEOUT, eventually, watched
from tests.filesystems.availability import require
from tests.network.namespaces import why_no_namespaces

CLIENT = """
import os, sys, torch.distributed as dist
from datetime import timedelta
rank, how = sys.argv[1:]
init = "env://" if how == "env" else f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
dist.init_process_group("gloo", init_method=init, rank=int(rank), world_size=2, timeout=timedelta(seconds=60))
import torch
total = torch.tensor([int(rank) + 1.0])
dist.all_reduce(total)
assert total.item() == 3.0
store = dist.distributed_c10d._get_default_store()
if rank == "0":
    os._exit(0)  # without closing its connections
sys.stdin.readline()  # rank 0 has gone
store.set("alone", "yes")
assert store.get("alone") == b"yes"
os._exit(0)
"""


@pytest.fixture
def port() -> Iterator[StoreListener]:
    with contextlib.closing(StoreListener.open()) as opened:
        yield opened


@pytest.fixture(params=["forked", "fresh"])
def resources(request: pytest.FixtureRequest) -> Iterator[WorkerResources]:
    """Both ways to start a server, under a guard. All processes are ended at the end."""
    marker = f"n@0-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        guard = stack.enter_context(Guard(marker))
        stack.callback(kill_marked_processes, marker)
        environ = {**os.environ, MARKER: marker}
        settings = ForkServerSettings(("torch",), ("-m", "none"), environ)
        fork_server = stack.enter_context(ForkServer(settings, guard, print)) if request.param == "forked" else None
        if fork_server is not None:
            assert select.select([fork_server], [], [], 60)[0], "the fork server is not ready"
            fork_server.handle_message()
            assert fork_server.pid is not None
        yield WorkerResources(guard, fork_server)


@contextlib.contextmanager
def serving(port: StoreListener, resources: WorkerResources) -> Iterator[StoreServer]:
    environ = store_server_environment({**os.environ, MARKER: f"n@0-{os.getpid()}"})
    server = port.serve(store_server_spawner(resources, boottime(), environ))
    with contextlib.closing(server):
        yield server


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)


def client(port: int, rank: int, how: str) -> "subprocess.Popen[str]":
    environ = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    command = [sys.executable, "-c", CLIENT, str(rank), how]
    return subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, text=True)


def finish(process: "subprocess.Popen[str]") -> int:
    try:
        process.communicate("go on\n", timeout=120)
    finally:
        process.kill()
        process.wait()
    return process.returncode


# The port


def test_no_other_process_gets_the_port(port: StoreListener) -> None:
    for option in (0, socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        for address in ("", "127.0.0.1"):
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                if option:
                    other.setsockopt(socket.SOL_SOCKET, option, 1)
                other.bind((address, port.port))
                other.listen()


def test_a_configured_port_is_used_in_every_round() -> None:
    with contextlib.closing(StoreListener.open()) as free:
        number = free.port
    for _ in range(2):
        with contextlib.closing(StoreListener.open(number)) as port, connect(number) as client:
            assert port.port == number
            assert select.select([port], [], [], TIMEOUT)[0]
            with pytest.raises(OSError, match="in use"):
                StoreListener.open(number)
        client.close()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4 only", "IPv6 only"])
def test_a_port_is_not_shared_with_another_family(family: socket.AddressFamily) -> None:
    """Clients of the store may use either family, and would reach the other socket."""
    with socket.socket(family) as other:
        if family is socket.AF_INET6:
            other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        other.bind(("", 0))
        other.listen()
        with pytest.raises(OSError, match="in use"):
            StoreListener.open(other.getsockname()[1])


def test_every_port_is_different() -> None:
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(contextlib.closing(StoreListener.open())).port for _ in range(100)]
        assert len(set(ports)) == 100


def test_a_client_wakes_the_agent_and_waits_in_the_kernel(port: StoreListener) -> None:
    assert not select.select([port], [], [], 0)[0]
    with connect(port.port):
        assert select.select([port], [], [], TIMEOUT)[0]


FAMILIES = [("127.0.0.1", "IPv4")] + ([("::1", "IPv6")] if Path("/proc/net/if_inet6").exists() else [])


@pytest.mark.parametrize("address", [address for address, _ in FAMILIES], ids=[name for _, name in FAMILIES])
def test_both_address_families_reach_it(port: StoreListener, address: str) -> None:
    with socket.create_connection((address, port.port), timeout=TIMEOUT):
        assert select.select([port], [], [], TIMEOUT)[0]


def test_a_port_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def no_ipv6(family: int, *rest: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return real(family, *rest)

    monkeypatch.setattr("hpcelastic.agent.store_server.socket.socket", no_ipv6)
    with contextlib.closing(StoreListener.open()) as port:
        monkeypatch.undo()
        with connect(port.port):
            assert select.select([port], [], [], TIMEOUT)[0]


def test_no_port_is_inherited(port: StoreListener) -> None:
    assert not os.get_inheritable(port.fileno())


def test_a_closed_port_refuses() -> None:
    port = StoreListener.open()
    port.close()
    with pytest.raises(ConnectionRefusedError):
        connect(port.port)


def test_a_host_that_cannot_be_started_leaves_no_port(port: StoreListener) -> None:
    def fails(fd: int) -> subprocess.Popen[bytes]:
        raise OSError(11, "Resource temporarily unavailable")

    with pytest.raises(OSError, match="Resource"):
        port.serve(fails)
    with pytest.raises(ConnectionRefusedError):
        connect(port.port)


# The server


@pytest.mark.slow
@pytest.mark.parametrize("how", ["env", "tcp"])
def test_workers_connect_and_the_store_outlives_rank_0(
    port: StoreListener, resources: WorkerResources, how: str
) -> None:
    clients = [client(port.port, rank, how) for rank in (0, 1)]
    try:
        assert select.select([port], [], [], 60)[0]
        with serving(port, resources) as server:
            assert finish(clients[0]) == 0
            assert finish(clients[1]) == 0
            assert not select.select([server], [], [], 0)[0]
    finally:
        for process in clients:
            process.kill()
            process.wait()


def test_a_host_that_was_killed_and_reaped_with_the_workers_can_be_closed(
    port: StoreListener, resources: WorkerResources
) -> None:
    with serving(port, resources) as server:
        os.kill(server.pid, signal.SIGKILL)
        assert os.waitpid(server.pid, 0)[0] == server.pid


@pytest.mark.slow
def test_noise_is_harmless_and_no_process_takes_the_port(port: StoreListener, resources: WorkerResources) -> None:
    from torch.distributed import TCPStore

    noise = [b"", b"GET / HTTP/1.1\r\nHost: n0\r\n\r\n", b"\xff" * 4096, b"\0" * 64]
    with serving(port, resources) as server:
        for data in noise * 2:
            with contextlib.suppress(ConnectionError), connect(port.port) as scanner:
                scanner.sendall(data)
        store = TCPStore("127.0.0.1", port.port, is_master=False, wait_for_workers=False)
        store.set("k", "v")
        assert store.get("k") == b"v"
        assert not select.select([server], [], [], 0)[0]
        with pytest.raises(RuntimeError):
            TCPStore("127.0.0.1", port.port, is_master=True, wait_for_workers=False)


@pytest.mark.slow
def test_two_rounds_in_a_row(resources: WorkerResources) -> None:
    from torch.distributed import TCPStore

    for value in ("1", "2"):
        port = StoreListener.open()
        with serving(port, resources):
            store = TCPStore("127.0.0.1", port.port, is_master=False, wait_for_workers=False)
            assert not store.check(["round"])
            store.set("round", value)
        with pytest.raises(ConnectionRefusedError):
            connect(port.port)


@pytest.mark.slow
def test_signals_to_all_processes_of_the_task_are_ignored(port: StoreListener, resources: WorkerResources) -> None:
    from torch.distributed import TCPStore

    with serving(port, resources) as server, watched(server.pid) as (process,):
        TCPStore("127.0.0.1", port.port, is_master=False, wait_for_workers=False)  # the server answers
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(server.pid, signum)
        assert not process.ends(within=0.2)


def test_the_host_has_the_mark_and_its_end_is_detected(port: StoreListener, resources: WorkerResources) -> None:
    environ = store_server_environment({**os.environ, MARKER: f"n@0-{os.getpid()}"})
    server = port.serve(store_server_spawner(resources, boottime(), environ))
    kill_marked_processes(f"n@0-{os.getpid()}", resources.fork_server.pid or 0 if resources.fork_server else 0)
    assert select.select([server], [], [], TIMEOUT)[0]
    assert server.reap() == -signal.SIGKILL


def test_no_worker_waits_for_a_name_server_that_the_store_asks() -> None:
    require(why_no_namespaces())
    command = ["unshare", "--net", "--mount", sys.executable, "-m", "tests.agent.name_server"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    ours, otherwise = done.stdout.split() or (done.stderr, "")
    assert (ours, otherwise != "0") == ("0", True)


def test_the_guard_ends_the_host_with_the_agent(port: StoreListener, resources: WorkerResources) -> None:
    environ = store_server_environment({**os.environ, MARKER: f"n@0-{os.getpid()}"})
    server = port.serve(store_server_spawner(resources, boottime(), environ))
    stdin = resources.guard._process.stdin
    assert stdin is not None
    stdin.close()  # like the death of the agent
    assert select.select([server], [], [], TIMEOUT)[0]
    assert server.reap() == -signal.SIGKILL


def test_a_host_whose_lease_has_expired_is_killed_at_once(port: StoreListener, resources: WorkerResources) -> None:
    lease_from = boottime()
    resources.guard.set_deadline(lease_from)  # it has expired meanwhile
    server = port.serve(
        store_server_spawner(
            resources, lease_from - 1, store_server_environment({**os.environ, MARKER: f"n@0-{os.getpid()}"})
        )
    )
    assert select.select([server], [], [], TIMEOUT)[0]
    assert server.reap() == -signal.SIGKILL


def test_a_fresh_interpreter_serves_after_the_fork_server_has_died(port: StoreListener) -> None:
    marker = f"n@0-{os.getpid()}"
    environ = {**os.environ, MARKER: marker}
    with (
        Guard(marker) as guard,
        ForkServer(ForkServerSettings((), ("-m", "none"), environ), guard, print) as fork_server,
    ):
        assert select.select([fork_server], [], [], TIMEOUT)[0]
        fork_server.handle_message()
        assert fork_server.pid is not None
        os.kill(fork_server.pid, signal.SIGKILL)
        server = port.serve(
            store_server_spawner(WorkerResources(guard, fork_server), boottime(), store_server_environment(environ))
        )
        try:
            line = Path(f"/proc/{server.pid}/cmdline")
            assert eventually(lambda: b"hpcelastic.worker.store_server_main" in line.read_bytes())
        finally:
            server.close()
            kill_marked_processes(marker)
