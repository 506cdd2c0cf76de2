"""The launchers of a benchmark: hpcelastic, torchrun, and NVIDIA's ft_launcher and torchft if they are available.

All agents run on this machine, one for each simulated node, with the same script and default timings. Exceptions are in
`recovery`.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from benchmarks.processes import descendants, end_tree, free_port, listens, send
from hpcelastic.agent.guard_main import marked_processes
from hpcelastic.agent.member import local_pid
from hpcelastic.agent.settings import WorkerSettings
from hpcelastic.api.jobs import LocalNodes
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.backends.files import FileBackend
from hpcelastic.protocol.events import LoggedEvent, WorkersStarted
from hpcelastic.rendezvous.run import read_state
from hpcelastic.storage.events import read_events
from hpcelastic.storage.leases import Lease, read_leases
from hpcelastic.storage.paths import RunPaths

CACHE = Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "hpcelastic-bench"
"""Directory for the peers that are not installed into the project's own environment."""


@dataclass(frozen=True)
class Package:
    """A peer that is installed on demand, beside torch."""

    name: str
    module: str
    alone: tuple[str, ...]
    """What pip installs without dependencies, because they would replace torch."""

    options: tuple[str, ...] = ()
    """Options of pip for these."""

    others: tuple[str, ...] = ()
    """What pip installs with dependencies."""

    @property
    def path(self) -> str:
        return str(CACHE / self.name)


@cache
def why_not(peer: Package) -> str | None:
    """Install a peer if necessary. Return None if it can run here, otherwise the reason."""
    environ = {**os.environ, "PYTHONPATH": peer.path}
    probe = [sys.executable, "-c", f"import {peer.module}"]
    if subprocess.run(probe, env=environ, capture_output=True).returncode:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", peer.path]
        for wanted in filter(None, (["--no-deps", *peer.options, *peer.alone], [*peer.others])):
            done = subprocess.run([*install, *wanted], capture_output=True, text=True)
            if done.returncode:
                return f"{peer.name} is left out: pip could not install it: {_last(done.stderr)}"
    tried = subprocess.run(probe, env=environ, capture_output=True, text=True)
    return f"{peer.name} is left out: it can't be imported: {_last(tried.stderr)}" if tried.returncode else None


FT_VERSION, TORCHFT_VERSION = "0.7.0", "2026.10.26"
FT_LAUNCHER = Package(
    "ft_launcher",
    "nvidia_resiliency_ext.fault_tolerance.launcher",
    (f"nvidia-resiliency-ext=={FT_VERSION}",),
    # Its wheel is for Python 3.12 and glibc 2.39, because of a module for the detection of stragglers on GPUs, which
    # the launcher does not need. All else is Python.
    ("--only-binary=:all:", "--python-version", "3.12", "--platform", "manylinux_2_39_x86_64"),
    ("defusedxml", "psutil", "grpcio", "grpcio-tools", "pydantic-settings", "fastapi", "uvicorn", "slowapi", "httpx"),
)
TORCHFT = Package(
    "torchft",
    "torchft",
    (f"torchft-nightly=={TORCHFT_VERSION}",),
    (),
    ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
)

NO_PRELOAD: Mapping[str, Any] = {"workers": {"preload": []}} if "preload" in WorkerSettings.__dataclass_fields__ else {}
"""Settings of hpcelastic with which the fork server does not import torch, if there is such a setting."""


@dataclass(frozen=True)
class Workload:
    """The script and the nodes that every launcher runs."""

    directory: Path
    """A directory for this run. Notes of the workers are in its subdirectory ``notes``."""

    script: Path
    nodes: str
    """``MIN..MAX``"""

    per_node: int = 1
    script_args: tuple[str, ...] = ()
    settings: Mapping[str, Any] | None = None
    """Settings of hpcelastic that are not the default."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of torchrun's and ft_launcher's agents."""

    notes_in: Path | None = None
    """Another directory for the workers' notes."""

    @property
    def notes(self) -> Path:
        return self.notes_in or self.directory / "notes"


class Side(Protocol):
    """A launcher under measurement."""

    notes: Path

    def start(self, index: int) -> None: ...

    def start_all(self, count: int) -> None: ...

    def takes_part(self) -> bool: ...

    def agent(self, index: int) -> int: ...

    def processes(self, index: int) -> list[int]: ...

    def first(self) -> int: ...

    def world(self, nodes: int) -> int:
        """Return the number of nodes that train if so many are alive."""

    def events(self) -> list[LoggedEvent]: ...

    def stop(self) -> None: ...


class Ours:
    """hpcelastic, with agents that start like those of `hpcelastic run`."""

    def __init__(self, workload: Workload) -> None:
        workload.notes.mkdir(parents=True, exist_ok=True)
        job = {
            "run": {"name": "bench", "directory": str(workload.directory)},
            "entrypoint": {"script": str(workload.script), "args": [str(workload.notes), *workload.script_args]},
            "nodes": workload.nodes,
        }
        job = {**job, **(workload.settings or {})}
        job["workers"] = {"per_node": workload.per_node, **dict(job.get("workers", {}))}
        self.paths = prepare(resolve(job, []))
        self.notes = workload.notes
        self._nodes: dict[int, LocalNodes] = {}

    def start(self, index: int) -> None:
        """Start a node as a separate job of one node, so that agents do not wait for further nodes."""
        self._nodes[index] = LocalNodes(self.paths, 1)
        self._nodes[index].start_node(index)

    def start_all(self, count: int) -> None:
        """Start all nodes as one job. Agents know from its size how many nodes can join."""
        together = LocalNodes(self.paths, count)
        for index in range(count):
            self._nodes[index] = together
            together.start_node(index)

    def agent(self, index: int) -> int:
        return self._nodes[index].alive()[index].pid

    def processes(self, index: int) -> list[int]:
        agent = self.agent(index)
        names = [path.stem for path in self.paths.events.glob(f"node{index}@*.jsonl")]
        found = [*descendants(agent), *(pid for name in names for pid in marked_processes(name)), agent]
        return list(dict.fromkeys(found))

    def first(self) -> int:
        """The node of group rank 0."""
        started = [(one.event, one.node) for one in self.events() if isinstance(one.event, WorkersStarted)]
        newest = max(event.round for event, _ in started)
        _, node = min((min(event.pids), node) for event, node in started if event.round == newest)
        return int(node.partition("@")[0].removeprefix("node"))

    def world(self, nodes: int) -> int:
        return nodes

    def takes_part(self) -> bool:
        """Return whether any agent has a lease."""
        return any(not path.name.startswith(".") for path in self.paths.leases.iterdir())

    def events(self) -> list[LoggedEvent]:
        return read_events(self.paths.events)

    def stop(self) -> None:
        for index, nodes in self._nodes.items():
            for agent in [nodes.alive()[index]] if index in nodes.alive() else []:
                send(self.processes(index), signal.SIGKILL)
                agent.wait()
            nodes.kill_node(index)


class _Torch:
    """An agent with torchrun's flags. The first agent that binds the port serves its c10d rendezvous."""

    module = ""
    nodes = ""
    """The value of ``--nnodes``, if it is not the workload's."""

    extra: tuple[str, ...] = ()

    def __init__(self, workload: Workload) -> None:
        workload.notes.mkdir(parents=True, exist_ok=True)
        self.notes = workload.notes
        self._directory = workload.directory
        self._port = free_port()
        nodes = self.nodes or workload.nodes.replace("..", ":")
        self._command = [
            sys.executable,
            "-m",
            self.module,
            "--nnodes",
            nodes,
            "--nproc-per-node",
            str(workload.per_node),
        ]
        self._command += ["--max-restarts", "3", "--rdzv-id", "bench", "--local-addr", "127.0.0.1"]
        self._command += [*self._rendezvous(workload), *self.extra]
        self._command += [str(workload.script), str(workload.notes), *workload.script_args]
        self._environ = {**os.environ, **workload.environment, "PYTHONPATH": self._path()}
        self._agents: dict[int, subprocess.Popen[bytes]] = {}

    def _rendezvous(self, workload: Workload) -> list[str]:
        return ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self._port}"]

    def _path(self) -> str:
        return os.environ.get("PYTHONPATH", "")

    def _environment(self, index: int) -> dict[str, str]:
        return self._environ

    def start(self, index: int) -> None:
        with (self._directory / f"agent-{index}.log").open("ab") as log:
            self._agents[index] = subprocess.Popen(
                self._command,
                env=self._environment(index),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_all(self, count: int) -> None:
        for index in range(count):
            self.start(index)

    def agent(self, index: int) -> int:
        return self._agents[index].pid

    def processes(self, index: int) -> list[int]:
        agent = self.agent(index)
        return [*descendants(agent), agent]

    def first(self) -> int:
        """The node whose agent hosts the rendezvous."""
        return next(index for index, agent in self._agents.items() if listens(agent.pid, self._port))

    def world(self, nodes: int) -> int:
        return nodes

    def takes_part(self) -> bool:
        """Return whether any agent serves the rendezvous."""
        return any(listens(agent.pid, self._port) for agent in self._agents.values())

    def events(self) -> list[LoggedEvent]:
        return []

    def stop(self) -> None:
        for agent in self._agents.values():
            end_tree(agent.pid)
            agent.wait()
        self._end_orphans()

    def _end_orphans(self) -> None:
        """Kill workers that have outlived their agent. Their command line contains the directory of this run."""
        mark = os.fsencode(self._directory)
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if mark in path.read_bytes():
                    end_tree(int(path.parent.name))
            except OSError:
                continue


class Torchrun(_Torch):
    module = "torch.distributed.run"


class TorchrunPlugin(_Torch):
    """torchrun, with hpcelastic's rendezvous in files."""

    module = "torch.distributed.run"

    def _rendezvous(self, workload: Workload) -> list[str]:
        self._paths = RunPaths(workload.directory / "runs" / "bench")
        times = dict((workload.settings or {}).get("rendezvous", {}))
        conf = ["--rdzv-conf", ",".join(f"{key}={value:g}" for key, value in times.items())] if times else []
        return ["--rdzv-backend", "hpcelastic", "--rdzv-endpoint", str(workload.directory / "runs"), *conf]

    def processes(self, index: int) -> list[int]:
        pids = super().processes(index)
        names = [lease.member.node for lease in self._leases() if local_pid(lease.member.process) == self.agent(index)]
        return list(dict.fromkeys([*(pid for name in names for pid in marked_processes(name)), *pids]))

    def first(self) -> int:
        """The node of group rank 0."""
        node = read_state(FileBackend(self._paths)).participants[0].node
        pid = next(local_pid(lease.member.process) for lease in self._leases() if lease.member.node == node)
        return next(index for index, agent in self._agents.items() if agent.pid == pid)

    def takes_part(self) -> bool:
        return bool(self._leases())

    def _leases(self) -> list[Lease]:
        found = read_leases(self._paths.leases, processes=True) if self._paths.leases.exists() else {}
        return list(found.values())


class FtLauncher(_Torch):
    """NVIDIA's launcher. The least number of nodes trains, and the others are spares."""

    module = FT_LAUNCHER.module
    extra = ("--ft-ignore-missing-cfg",)

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self._environ["NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE"] = "1"  # all nodes of a benchmark are on this machine
        self._min_nodes = int(workload.nodes.partition("..")[0])

    def world(self, nodes: int) -> int:
        return min(nodes, self._min_nodes)

    def _path(self) -> str:
        return os.pathsep.join([FT_LAUNCHER.path, *filter(None, [super()._path()])])


class TorchFt(_Torch):
    """torchft: each node is a replica group, which a torchrun of its own starts. A lighthouse process serves all."""

    module = "torch.distributed.run"
    nodes = "1"

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        join_ms = 10_000  # the default, one minute, would be the whole result
        serve = f"LighthouseServer('127.0.0.1:{self._port}', min_replicas=1, join_timeout_ms={join_ms})"
        code = f"import time; from torchft._torchft import LighthouseServer; served = {serve}; time.sleep(10**6)"
        with (workload.directory / "lighthouse.log").open("wb") as log:
            self._lighthouse = subprocess.Popen(
                [sys.executable, "-c", code], env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + 30.0
        while not listens(self._lighthouse.pid, self._port):
            if time.monotonic() > deadline or self._lighthouse.poll() is not None:
                raise RuntimeError("torchft's lighthouse does not listen")
            time.sleep(0.05)

    def _rendezvous(self, workload: Workload) -> list[str]:
        return ["--standalone"]

    def _path(self) -> str:
        return os.pathsep.join([TORCHFT.path, *filter(None, [super()._path()])])

    def _environment(self, index: int) -> dict[str, str]:
        lighthouse = f"http://127.0.0.1:{self._port}"
        return {**self._environ, "TORCHFT_LIGHTHOUSE": lighthouse, "REPLICA_GROUP_ID": str(index)}

    def first(self) -> int:
        return 0  # all replica groups are alike

    def stop(self) -> None:
        super().stop()
        end_tree(self._lighthouse.pid)
        self._lighthouse.wait()


def sides(names: Sequence[str] = ()) -> tuple[dict[str, type], list[str]]:
    """Return the launchers of any script that are available here, by name, and the reasons why others are not."""
    everyone: dict[str, type] = {"hpcelastic": Ours, "torchrun": Torchrun, "torchrun, plug-in": TorchrunPlugin}
    everyone["ft_launcher"] = FtLauncher
    chosen = {name: side for name, side in everyone.items() if not names or name in names}
    missing = why_not(FT_LAUNCHER) if "ft_launcher" in chosen else None
    if missing:
        del chosen["ft_launcher"]
    return chosen, [missing] if missing else []


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]


def await_nothing(pids: Sequence[int], timeout: float = 10.0) -> None:
    """Wait until none of ``pids`` runs any more. RuntimeError names those that still run after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while alive := [pid for pid in pids if _runs(pid)]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {alive} still run after {timeout:g} s")
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
