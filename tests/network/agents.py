"""Networks for tests: in this process, and in processes that can be stopped and killed."""

import contextlib
import json
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from hpcelastic.network import (
    Network,
    News,
    Notification,
    Peer,
    PeerHeard,
    PeerLinkLost,
    PeerRefused,
    PeerSilent,
    Transfer,
)
from hpcelastic.protocol.failure_detector import HEARTBEAT_INTERVAL
from tests.agent.processes import TIMEOUT

KEY = bytes(range(32))
_KINDS = {kind.__name__: kind for kind in (PeerHeard, PeerRefused, Notification, PeerLinkLost, PeerSilent)}


@contextlib.contextmanager
def held(peer: Peer) -> Iterator[None]:
    """Hold the port of a dead agent without listening. Otherwise a process of another test may listen there soon.

    While connections of the dead agent are being closed, no process gets the port, this one included.
    """
    family = socket.AF_INET6 if ":" in peer.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for _ in range(50):
            with contextlib.suppress(OSError):
                holder.bind((peer.address, peer.port))
                break
            time.sleep(0.001)
        yield


class Inbox:
    """The received news in order. ``all`` also has those that were taken."""

    def __init__(self) -> None:
        self._queue: queue.Queue[News] = queue.Queue()
        self.all: list[News] = []
        self.put = self._queue.put

    def take(self, within: float = TIMEOUT) -> News | None:
        """Return the next one; None if none arrives."""
        try:
            news = self._queue.get(timeout=within)
        except queue.Empty:
            return None
        self.all.append(news)
        return news

    def await_(self, wanted: News, times: int = 1) -> bool:
        """Wait until ``wanted`` has arrived so often from now on. Other news may arrive meanwhile."""
        deadline = time.monotonic() + TIMEOUT
        while times and time.monotonic() < deadline:
            times -= self.take(max(0.0, deadline - time.monotonic())) == wanted
        return not times

    def drain(self) -> None:
        """Take all news that have arrived."""
        while self.take(0.0):
            pass


class Local:
    """A network in this process."""

    def __init__(
        self, node: str, address: str = "127.0.0.1", key: bytes = KEY, interval: float = HEARTBEAT_INTERVAL
    ) -> None:
        self.inbox = Inbox()
        self.transfers: queue.Queue[Transfer] = queue.Queue()
        """The transfers that other agents have started."""

        self.network = Network(key, node, address, self.inbox.put, self.transfers.put, interval=interval)
        self.peer = Peer(node, address, self.network.port)


@contextlib.contextmanager
def local(
    *nodes: str, address: str = "127.0.0.1", key: bytes = KEY, interval: float = HEARTBEAT_INTERVAL
) -> Iterator[list[Local]]:
    """Started networks in this process, without neighbours."""
    with contextlib.ExitStack() as stack:
        found = []
        for node in nodes:
            it = Local(node, address, key, interval)
            stack.callback(it.network.close)
            it.network.start()
            found.append(it)
        yield found


class Remote:
    """A network in its own process, whose news arrive in ``inbox``."""

    def __init__(self, node: str, address: str = "127.0.0.1", prefix: Sequence[str] = ()) -> None:
        command = [*prefix, sys.executable, "-m", "tests.network.agents", node, address]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.inbox = Inbox()
        self.children: list[int] = []
        assert self.process.stdout is not None
        self.peer = Peer(node, address, int(self.process.stdout.readline()))
        self._replies: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def watch(self, ring: Sequence[Peer], version: int = 0) -> None:
        self._ask("watch", version, [[it.node, it.address, it.port] for it in ring])

    def healthy(self) -> bool:
        return self._ask("healthy") == "True"

    def start_child(self) -> int:
        """Start a process that holds the presence socket and outlives the agent."""
        child = int(self._ask("start_child"))
        self.children.append(child)
        return child

    def limit(self, on: bool) -> None:
        """Deny it further descriptors, or allow them again."""
        self._ask("limit", on)

    def close(self) -> None:
        """Close the network in order. The process continues."""
        self._ask("close")

    def signal(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def _ask(self, *words: object) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return self._replies.get(timeout=TIMEOUT)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == "reply":
                self._replies.put(rest)
            else:
                self.inbox.put(_KINDS[word](json.loads(rest)))


@contextlib.contextmanager
def remote(*nodes: str, address: str = "127.0.0.1", prefix: Sequence[str] = ()) -> Iterator[list[Remote]]:
    """Networks in their own processes, which are killed at the end with their children."""
    with contextlib.ExitStack() as stack:
        found = []
        for node in nodes:
            it = Remote(node, address, prefix)
            stack.callback(it.end)
            found.append(it)
        yield found


def _main(node: str, address: str) -> None:
    lock = threading.Lock()

    def say(line: str) -> None:
        with lock:
            print(line, flush=True)

    def deliver(news: News) -> None:
        say(f"{type(news).__name__} {json.dumps(news.version if isinstance(news, Notification) else news.node)}")

    network = Network(KEY, node, address, deliver)
    say(str(network.port))
    network.start()
    for line in sys.stdin:
        word, *arguments = json.loads(line)
        reply: object = "done"
        if word == "watch":
            network.watch([Peer(*peer) for peer in arguments[1]], arguments[0])
        elif word == "healthy":
            reply = network.healthy
        elif word == "start_child":
            streams = dict.fromkeys(("stdin", "stdout"), subprocess.DEVNULL)
            reply = subprocess.Popen(["sleep", "300"], pass_fds=[network.presence.fileno()], **streams).pid  # type: ignore[call-overload]
        elif word == "limit":
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (1 if arguments[0] else hard, hard))
        elif word == "close":
            network.close()
        say(f"reply {reply}")


if __name__ == "__main__":
    _main(*sys.argv[1:])
