"""A complete SLURM cluster in a temporary directory: a controller host, node hosts n1 to nN, and this machine as the
login node. Nodes are numbered from 1. The cluster ends at `stop`, or when the process that started it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType, TracebackType

from tests.cluster import processes
from tests.cluster.errors import ClusterError
from tests.cluster.host import Host
from tests.cluster.machines import Machines, Shape, assemble
from tests.cluster.slurm_conf import CONTROLLER_PORT
from tests.cluster.waiting import POLL_INTERVAL, log_tails, wait_until

# States that a job never leaves. NODE_FAIL and PREEMPTED are not among them, because a requeue may follow.
_FINAL_STATES = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "TIMEOUT"}
_DAEMONS = ("slurmd", "slurmstepd")


class SlurmCluster:
    """A cluster of `nodes` hosts. `gpus` is the number of GPUs of each host, or a tuple with the number for each.

    `extra_conf` has lines for slurm.conf, which replace the default lines of the same key. `topology` has the lines of
    topology.conf, for topology/tree. With `ipv6`, no host has an address of IPv4 except loopback. Each node executes
    the lines of `setup` with bash when it starts, as root (see `Host`). `more_files` has the texts of other
    configuration files by their names, such as cgroup.conf.
    """

    def __init__(
        self,
        nodes: int = 4,
        cpus: int = 4,
        extra_conf: str = "",
        gpus: int | tuple[int, ...] = 0,
        topology: str = "",
        *,
        ipv6: bool = False,
        setup: str = "",
        more_files: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self._shape = Shape(nodes, cpus, gpus, extra_conf, topology, ipv6, setup, more_files)
        self._resources = ExitStack()
        self._started: Machines | None = None
        self._set_down: set[int] = set()

    # ------------------------------------------------------------------------------------------------ life

    def start(self, timeout: float = 60.0) -> SlurmCluster:
        """Start all daemons. Return when every node is idle."""
        try:
            self._started = machines = assemble(self._shape, self._resources)
            # A slurmd that finds no controller tries again only after a second. So the controller starts first.
            self.start_controller(timeout)
            for host in machines.nodes:
                host.start(self.env)
            self.wait_idle(timeout)
        except BaseException:
            self.stop()
            raise
        return self

    @property
    def _machines(self) -> Machines:
        if self._started is None:
            raise ClusterError("the cluster was not started")
        return self._started

    @property
    def path(self) -> Path:
        """A directory that this machine and all hosts share. `stop` removes it. `log` in it has the logs."""
        return self._machines.path

    @property
    def env(self) -> dict[str, str]:
        """The environment for commands and programs that use this cluster."""
        return self._machines.env

    @property
    def uplink(self) -> str:
        """The name of this machine's network link to the cluster."""
        return self._machines.uplink

    def stop(self) -> None:
        """Kill every process of the cluster, and remove its links and its directory. A second call does nothing."""
        self._resources.close()

    def __enter__(self) -> SlurmCluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ------------------------------------------------------------------------------------------------ SLURM's commands

    def run(self, *command: str, check: bool = True, timeout: float = 60.0, stdin: str = "") -> str:
        """Run a command on this machine against the cluster. Return its standard output without the last newline."""
        done = subprocess.run(command, env=self.env, input=stdin, capture_output=True, text=True, timeout=timeout)
        if check and done.returncode:
            output = f"{done.stdout}{done.stderr}".strip()
            raise ClusterError(f"{' '.join(command)} ended with {done.returncode}: {output}\n{self.logs()}")
        return done.stdout.rstrip("\n")

    def submit(self, script: str, *options: str) -> str:
        """Submit the lines of a bash script with `sbatch`. Return the job id."""
        output = [f"--output={self.path}/job-%j.out", "--open-mode=append"]
        return self.run("sbatch", "--parsable", *output, *options, stdin=f"#!/bin/bash\n{script}\n")

    def output(self, job: str) -> str:
        """Return the output of a job that `submit` has submitted, over all its starts."""
        path = self.path / f"job-{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def job(self, job: str) -> dict[str, str]:
        """Return the fields of `scontrol show job`, such as JobState, Restarts, NodeList, Reason."""
        words = self.run("scontrol", "show", "job", "-o", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def job_state(self, job: str) -> str:
        return self.job(job)["JobState"]

    def start_now(self, job: str) -> None:
        """Start a requeued job without the delay of about 6 s that SLURM sets."""
        self.wait_job(job, "PENDING")
        time.sleep(1.1)  # a restart on the same node within one second ends as FAILED, "Job already killed"
        self.run("scontrol", "update", f"jobid={job}", "StartTime=now")

    def node_states(self) -> dict[str, str]:
        """Return the state of each node as sinfo prints it: idle, mixed, down*, ..."""
        return dict(line.split() for line in self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T").splitlines())

    def node_state(self, node: int) -> str:
        return self.node_states()[f"n{node}"]

    def logs(self) -> str:
        """Return the tails of the daemons' logs."""
        return log_tails(self.path / "log")

    # ------------------------------------------------------------------------------------------------ waiting

    def wait_idle(self, timeout: float = 60.0) -> None:
        """Wait until every node is idle."""
        wanted = dict.fromkeys(self.nodes, "idle")
        wait_until("all nodes idle", self.node_states, lambda seen: seen == wanted, timeout, self.logs)

    def wait_down(self, node: int, timeout: float = 60.0) -> None:
        """Wait until SLURM calls the node down. Without `set_down` this takes SlurmdTimeout and more."""
        what = f"n{node} down"
        wait_until(what, lambda: self.node_state(node), lambda seen: seen.startswith("down"), timeout, self.logs)

    def wait_job(self, job: str, states: str | tuple[str, ...], timeout: float = 60.0) -> str:
        """Wait until the job has one of the states, and return it. ClusterError if none of them can follow."""
        wanted = (states,) if isinstance(states, str) else states
        stop = _FINAL_STATES.union(wanted)
        what = f"job {job} in state {' or '.join(wanted)}"
        seen = wait_until(what, lambda: self.job_state(job), lambda state: state in stop, timeout, self.logs)
        if seen not in wanted:
            raise ClusterError(f"job {job} is {seen}, not {' or '.join(wanted)}: {self.job(job)}\n{self.output(job)}")
        return seen

    def wait_output(self, job: str, text: str, timeout: float = 60.0) -> str:
        """Wait until a job of `submit` has printed the text. Return its whole output."""
        return wait_until(
            f"{text!r} from job {job}", lambda: self.output(job), lambda seen: text in seen, timeout, self.logs
        )

    # ------------------------------------------------------------------------------------------------ faults

    def kill_node(self, node: int) -> None:
        """Kill all processes of the node at once. Its network stays, so peers get resets and refused connections."""
        self._host(node).kill()

    def power_off(self, node: int) -> None:
        """Kill the node and its network. Peers get no reply and no reset."""
        self.cut(node)
        self.kill_node(node)

    def fail_node(self, node: int) -> None:
        """Kill the node, and tell SLURM at once."""
        self.kill_node(node)
        self.set_down(node)

    def start_node(self, node: int) -> None:
        """Boot a node that was killed or powered off. When its slurmd has registered, SLURM uses the node again.

        This takes up to a minute if a job was just ending there and nothing had set the node down.
        """
        self._host(node).start(self.env)
        if node in self._set_down:
            self.resume(node)

    def cut(self, node: int) -> None:
        """Disconnect the node from the network."""
        self._host(node).cut()

    def cut_pair(self, one: int, other: int) -> None:
        """Lose all that two nodes send to each other, silently. Both still reach all others."""
        for node, peer in ((one, other), (other, one)):
            self._host(node).lose(self._host(peer).address)

    def heal(self, node: int) -> None:
        """Reconnect the node to the network."""
        self._host(node).heal()

    def cut_controller(self) -> None:
        """Disconnect the controller from the network. It continues to run, but does not answer."""
        self._machines.controller.cut()

    def heal_controller(self) -> None:
        self._machines.controller.heal()

    def freeze_node(self, node: int) -> None:
        """Stop every process on the node with SIGSTOP, except its init, which is idle."""
        self._signal_until_stable(node, signal.SIGSTOP)

    def thaw_node(self, node: int) -> None:
        self._signal_until_stable(node, signal.SIGCONT)

    def _signal_until_stable(self, node: int, number: signal.Signals) -> None:
        done: set[int] = set()
        while new := self.node_pids(node) - done - {self._host(node).init_pid}:
            processes.send(new, number)
            done |= new

    def set_down(self, node: int) -> None:
        """`scontrol update state=down`: jobs lose the node at once. It stays down until `resume` or `start_node`.

        With ReturnToService=2 it would not: SLURM may later process a reply that the node sent before it died, and then
        start jobs on the dead node (seen with 26.05).
        """
        self._set_down.add(node)
        self.run("scontrol", "update", f"nodename=n{node}", "state=down", "reason=test")

    def drain(self, node: int) -> None:
        """`scontrol update state=drain`: the node gets no new job and keeps its jobs."""
        self.run("scontrol", "update", f"nodename=n{node}", "state=drain", "reason=test")

    def limit(self, job: str, seconds: int) -> None:
        """Let a running job's time limit end in so many seconds. SLURM notices up to 30 s later (see `presets`)."""
        self.run("scontrol", "update", f"jobid={job}", f"EndTime=now+{seconds}")

    def lift_limit(self, job: str) -> None:
        """Let a job run for 30 minutes once it is requeued. Its short limit may end again before it trains."""
        again = f"job {job} to be requeued"
        wait_until(again, lambda: self.job(job)["Restarts"], lambda count: count == "1", 90.0, self.logs)
        self.run("scontrol", "update", f"jobid={job}", "TimeLimit=30")

    def resume(self, node: int) -> None:
        """Undo `set_down` or `drain` of a node that is alive."""
        self._set_down.discard(node)
        self.run("scontrol", "update", f"nodename=n{node}", "state=resume")

    def node_running(self, node: int) -> bool:
        """Return False after a kill or a power-off, until the next start."""
        return self._host(node).running

    @property
    def controller_running(self) -> bool:
        return self._machines.controller.running

    def kill_controller(self) -> None:
        self._machines.controller.kill()

    def stop_controller(self, timeout: float = 60.0) -> None:
        """End the controller in an orderly way, as for maintenance. It saves its state."""
        controller = self._machines.controller
        daemons = {pid for pid in controller.pids() if processes.command_name(pid).startswith("slurmctld")}
        processes.send(daemons, signal.SIGTERM)
        wait_until(
            "the end of the controller", lambda: daemons & controller.pids(), lambda left: not left, timeout, self.logs
        )
        self.kill_controller()

    def start_controller(self, timeout: float = 60.0) -> None:
        """Start the controller. After a kill it has the state that the killed one saved some seconds before."""
        self._machines.controller.start(self.env)
        wait_until("an answer of the controller", self._controller_answers, bool, timeout, self.logs)

    def _controller_answers(self) -> bool:
        try:
            with socket.create_connection((self._machines.controller.address, CONTROLLER_PORT), timeout=POLL_INTERVAL):
                return True
        except OSError:
            return False

    # ------------------------------------------------------------------------------------------------ processes

    def _host(self, node: int) -> Host:
        return self._machines.nodes[node - 1]

    def node_pids(self, node: int) -> set[int]:
        """Return all processes on the node, by the process ids of this machine."""
        return self._host(node).pids()

    def user_pids(self, node: int) -> set[int]:
        """Return the processes on the node that do not belong to SLURM."""
        pids = self.node_pids(node) - {self._host(node).init_pid}
        return {pid for pid in pids if not processes.command_name(pid).startswith(_DAEMONS)}

    def pid_of(self, node: int, inner: int) -> int | None:
        """Return the id on this machine of the process with the id `inner` on the node; None if it has ended."""
        return next((pid for pid in self.user_pids(node) if processes.inner_pid(pid) == inner), None)

    def jobs(self) -> dict[str, str]:
        """Return the state of each pending or running job, as squeue prints it."""
        return dict(line.split() for line in self.run("squeue", "-h", "-r", "-o", "%i %T").splitlines())

    def job_pids(self, job: str, node: int) -> set[int]:
        """Return the processes of a job on the node. The environment of their start identifies them."""
        return {pid for pid in self.user_pids(node) if processes.environment(pid).get("SLURM_JOB_ID") == job}
