"""The benchmark of nodes before they join a run: how long it takes, and whether it finds each planted fault.

Each node is a process with a network namespace of its own, which a bridge connects. The kernel limits the bandwidth of
every node. The speed of computation is given, because all nodes share the processors of this machine; the latency of
one node is increased. Everything else is what an agent does with ``health.benchmark: true``, with gloo.
"""

import ctypes
import functools
import json
import os
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Table, spread
from hpcelastic.agent.preflight import slowness
from hpcelastic.errors import StoreError
from hpcelastic.protocol.state import Member, NodeState
from hpcelastic.storage.paths import RunPaths
from hpcelastic.worker import node_benchmark
from tests.cluster.network import Switch

_CLONE_NEWNET = 0x40000000
_TIMEOUT = 180.0
_RATE, _SLOW_RATE = "100mbit", "40mbit"


@dataclass(frozen=True)
class Planted:
    """The faults of the nodes, by rank. No two of the last four may be partners: either could be at fault."""

    slow: tuple[int, ...] = (11, 50)
    """Nodes that compute at half of the speed of the others."""

    narrow: int = 40
    """The node whose network port has 40 % of the bandwidth of the others."""

    late: int = 20
    """The node whose connections have a latency of 20 ms more."""

    broken: int = 33
    """The node that cannot be measured."""

    link: tuple[int, int] = (0, 63)
    """The pair of nodes with 40 % of the bandwidth between them. It must be a pair of the first round."""

    @property
    def nodes(self) -> set[str]:
        return {f"n{rank}" for rank in (*self.slow, self.narrow, self.late, self.broken)}


@dataclass(frozen=True)
class Parameters:
    nodes: int = 64
    repeat: int = 3
    planted: Planted = Planted()


QUICK = Parameters(10, 1, Planted(slow=(2,), narrow=4, late=6, broken=8, link=(0, 9)))


def measure(parameters: Parameters, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure the nodes together, ``repeat`` times. Needs root, for network namespaces."""
    runs = []
    for _ in range(parameters.repeat):
        found = _measured_once(parameters)
        say(f"{parameters.nodes} nodes: {found['seconds']} s, missed: {found['missed']}, false: {found['false']}")
        runs.append(found)
    return {"parameters": asdict(parameters), "runs": runs}


def _measured_once(parameters: Parameters) -> dict[str, Any]:
    planted, count = parameters.planted, parameters.nodes
    import torch.distributed  # noqa: F401  # before the fork: on a real node, the process that measures imports it

    with tempfile.TemporaryDirectory(prefix="hpcelastic-bench-", dir=_memory()) as name:
        directory = Path(name)
        switch = Switch()
        children = {}
        try:
            for rank in range(count):
                children[rank] = _start(rank, parameters, directory)
            for rank, child in children.items():
                _await(directory / f"{rank}.namespace")
                switch.plug(f"port{rank}", switch.address(rank + 1), child)
            start = time.monotonic()
            (directory / "start.new").write_text(switch.subnet)
            (directory / "start.new").rename(directory / "start")
            for rank in range(count):
                _await(directory / f"{rank}.json")
            seconds = time.monotonic() - start
            results = [json.loads((directory / f"{rank}.json").read_text()) for rank in range(count)]
        finally:
            for child in children.values():
                os.kill(child, 9)
                os.waitpid(child, 0)
            switch.close()
    if problems := [result["error"] for result in results if result["error"]]:
        raise RuntimeError(f"a node has failed: {problems[0]}")
    slow = {f"n{rank}" for rank, result in enumerate(results) if result["slow"]}
    one, other = (f"n{rank}" for rank in planted.link)
    links = [line for line in results[0]["reports"] if "network: between" in line]
    expected = [line for line in links if f"between {one} and {other}:" in line]
    others = [line for line in links if line not in expected and not _ends(line) & planted.nodes]
    return {
        "seconds": round(seconds, 1),
        "planted": [*sorted(planted.nodes), f"{one}–{other}"],
        "missed": sorted(planted.nodes - slow) + ([] if expected else [f"{one}–{other}"]),
        "false": sorted(slow - planted.nodes) + others,
        "reports": results[0]["reports"],
    }


def _memory() -> str | None:
    """Return a directory in memory if there is one, because all nodes would share the speed of one disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _ends(line: str) -> set[str]:
    words = line.partition("between ")[2].partition(":")[0].split(" and ")
    return {*words}


def _await(path: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not path.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{path.name} was not written within {_TIMEOUT:g} s")
        time.sleep(0.02)


def _start(rank: int, parameters: Parameters, directory: Path) -> int:
    child = os.fork()
    if child:
        return child
    result: dict[str, Any] = {"slow": "", "reports": [], "error": ""}
    try:
        _as_node(rank, parameters, directory, result)
    except BaseException:
        result["error"] = traceback.format_exc()
    temporary = directory / f"{rank}.new"
    temporary.write_text(json.dumps(result))
    temporary.rename(directory / f"{rank}.json")
    while True:
        time.sleep(60)  # until it is killed


def _as_node(rank: int, parameters: Parameters, directory: Path, result: dict[str, Any]) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    (directory / f"{rank}.namespace").touch()
    _await(directory / "start")
    subnet = (directory / "start").read_text()
    address = f"{subnet}{rank + 1}"
    _limit(rank, parameters.planted, subnet)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    member = Member(
        f"n{rank}@0-a",
        NodeState.READY,
        -1,
        local_world_size=1,
        address=address,
        port=0,
        order=rank,
        job="bench",
        job_nodes=parameters.nodes,
    )
    make_node = functools.partial(_Node, rank, parameters.planted)
    result["slow"] = slowness(RunPaths(directory), member, 1, make_node, result["reports"].append)


def _limit(rank: int, planted: Planted, subnet: str) -> None:
    """Configure the network of this node. Every node limits what it sends."""
    rate = _SLOW_RATE if rank == planted.narrow else _RATE
    commands = [
        "ip link set lo up",
        f"ip addr add {subnet}{rank + 1}/24 dev eth0",
        "ip link set eth0 up",
        "tc qdisc add dev eth0 root handle 1: htb default 1 r2q 100",
        f"tc class add dev eth0 parent 1: classid 1:1 htb rate {rate} burst 256k cburst 256k",
    ]
    if rank in planted.link:
        other = sum(planted.link) - rank
        commands += [
            f"tc class add dev eth0 parent 1: classid 1:2 htb rate {_SLOW_RATE} burst 256k cburst 256k",
            f"tc filter add dev eth0 parent 1: protocol ip u32 match ip dst {subnet}{other + 1}/32 flowid 1:2",
        ]
    for command in commands:
        subprocess.run(command.split(), check=True)


class _Node:
    """A `Measurer` in this process. Connections are measured as on any node."""

    def __init__(self, rank: int, planted: Planted) -> None:
        self._rank, self._planted = rank, planted
        self._results: Iterator[Any] = iter(())

    def ask(self, command: dict[str, Any]) -> None:
        if command["do"] != "compute":
            self._results = node_benchmark.ACTIONS[command.pop("do")](**command)
        elif self._rank == self._planted.broken:
            raise StoreError("the driver does not answer")
        else:
            flops = 0.5e12 if self._rank in self._planted.slow else 1e12
            self._results = iter([[{"device": "processors", "flops": flops, "memory": 1e11}]])

    def answer(self) -> Any:
        try:
            answer = next(self._results)
        except Exception as error:  # the process of a real node answers with the error
            raise StoreError(f"{type(error).__name__}: {error}") from error
        if isinstance(answer, dict) and "latency" in answer:
            self._finish()
            late = 0.02 if self._rank == self._planted.late else 0.0
            return {**answer, "latency": answer["latency"] + late}
        return answer

    def close(self) -> None: ...

    def _finish(self) -> None:
        """Execute the rest of the command, in which the two nodes wait for each other."""
        for _ in self._results:
            pass


def tables(results: Mapping[str, Any]) -> list[Table]:
    runs = results["runs"]
    rows = [
        (
            str(results["parameters"]["nodes"]),
            spread([run["seconds"] for run in runs]),
            str(sum(len(run["planted"]) for run in runs)),
            str(sum(len(run["missed"]) for run in runs)),
            str(sum(len(run["false"]) for run in runs)),
        )
    ]
    note = (
        f"Median (least–greatest) of {len(runs)}. Planted in each run: nodes that compute at half speed, one whose "
        "port has 40 % of the bandwidth, one with a latency of 20 ms more, one that cannot be measured, and one "
        "connection with 40 % of the bandwidth."
    )
    head = ("nodes", "seconds", "planted", "missed", "false")
    return [Table("The benchmark of nodes before they join", head, tuple(rows), note)]
