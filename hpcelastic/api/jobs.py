"""What serves a run: SLURM jobs, and agents on this machine."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hpcelastic.agent.guard import kill_group, kill_marked
from hpcelastic.agent.node import pid_here
from hpcelastic.config import JobConfig
from hpcelastic.config.options import flags
from hpcelastic.errors import StoreError
from hpcelastic.protocol.state import Member, Stand
from hpcelastic.slurm.jobs import submitted
from hpcelastic.slurm.queue import Capacity, capacity_of
from hpcelastic.slurm.scheduler import cancel_jobs, job_states, queue
from hpcelastic.slurm.submission import submit_elements, submit_job
from hpcelastic.store.backend import backend_of
from hpcelastic.store.paths import RunPaths

_OVER = {
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"),
    *("PREEMPTED", "REVOKED"),  # what is requeued after a preemption is PENDING
}
"""States of jobs that have ended. Source: squeue(1), JOB STATE CODES."""

_LOCAL = "local-"
"""How the name of what started an agent begins, where that was `LocalNodes`."""


def submit_for(paths: RunPaths, config: JobConfig) -> None:
    """Submit what serves the run on all nodes that it wants: one job, or a pool of them. Raises SlurmError."""
    if config.slurm.shape == "pool":
        add_elements(paths, config, config.nodes.wanted)
    else:
        remember_job(paths, submit_job(config, paths))


def add_elements(paths: RunPaths, config: JobConfig, count: int) -> str:
    """Submit ``count`` jobs of one node each, as one array, and return its id. Raises SlurmError.

    They start where the run's first job did, wherever it is that more are asked for.
    """
    job = submit_elements(_at_home(paths, config), paths, count)
    remember_job(paths, job, elements=count)
    return job


def _at_home(paths: RunPaths, config: JobConfig) -> JobConfig:
    """``config`` with the working directory of the jobs that the run has already."""
    home = next((job["directory"] for job in submitted(paths) if "directory" in job), None)
    if home is None or home == os.getcwd():
        return config
    given = str(flags(config.slurm.options).get("chdir", ""))
    options = {**config.slurm.options, "chdir": str(Path(home, given))}
    return replace(config, slurm=replace(config.slurm, options=options))


def remember_job(paths: RunPaths, job_id: str, **more: int) -> None:
    """Note in the run's directory that a SLURM job was submitted for it, and from where; of an array, how many
    ``elements`` it has."""
    noted = {"job": job_id, **more, "submitted": time.time(), "directory": os.getcwd()}
    with paths.jobs.open("a") as file:
        file.write(json.dumps(noted) + "\n")


def jobs_of(paths: RunPaths) -> list[str]:
    """SLURM jobs that were submitted for the run, the newest last; an array is one."""
    return [job["job"] for job in submitted(paths)]


def live_jobs(paths: RunPaths) -> dict[str, str]:
    """Those jobs of the run that SLURM has not ended, each with its state in words; one query. Raises SlurmError."""
    elements = {job["job"]: job.get("elements") for job in submitted(paths)}
    return {job: _in_words(states, elements[job]) for job, states in _alive(elements).items()}


def _alive(jobs: Iterable[str]) -> dict[str, list[str]]:
    return {job: states for job, states in job_states(jobs).items() if not _OVER.issuperset(states)}


def capacity(paths: RunPaths) -> Capacity:
    """The nodes of all jobs that were submitted for the run; one query. Raises SlurmError."""
    ours = {*jobs_of(paths)}
    jobs = [job for job in queue() if job.array in ours]
    there: dict[str, set[str]] = {}
    left: dict[str, set[str]] = {}
    for member in (lease.member for lease in backend_of(paths).leases().values()):
        (left if member.stand is Stand.LEFT else there).setdefault(member.job, set()).add(member.name)
    return capacity_of(jobs, {job: len(names - there.get(job, set())) for job, names in left.items()})


def _in_words(states: list[str], elements: int | None) -> str:
    """``RUNNING``, or of an array ``4 elements: 3 RUNNING, 1 ended``: SLURM forgets those that have ended."""
    if elements is None:
        return states[0]
    alive = Counter(state for state in states if state not in _OVER)
    counts = [f"{alive[state]} {state}" for state in sorted(alive, reverse=True)]  # those that run go first
    ended = elements - alive.total()
    return f"{elements} element{'s' * (elements != 1)}: {', '.join([*counts, f'{ended} ended'] if ended else counts)}"


def local_agents(paths: RunPaths) -> list[int]:
    """Process ids of the run's agents that live on this machine."""
    members = [lease.member for lease in backend_of(paths).leases().values()]
    pids = (pid_here(m.process) for m in members if m.stand is not Stand.LEFT)
    return [pid for pid in pids if pid is not None]


def all_local(paths: RunPaths) -> bool:
    """True if `LocalNodes` started all of the run's agents; a job script of the user's own could start others later."""
    return all(lease.member.job.startswith(_LOCAL) for lease in backend_of(paths).leases().values())


def end_jobs(*runs: RunPaths) -> None:
    """Cancel the runs' SLURM jobs, and tell their agents on this machine to leave; one query. Raises SlurmError."""
    for pid in (pid for paths in runs for pid in local_agents(paths)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    cancel_jobs(_alive(job for paths in runs for job in jobs_of(paths)))


class LocalNodes:
    """Agents on this machine, each as if it were a node named ``node0``, ``node1`` …"""

    def __init__(self, paths: RunPaths, count: int) -> None:
        self._paths = paths
        self._count = count
        self._job = f"{_LOCAL}{secrets.token_hex(3)}"
        self._agents: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start all nodes; none is left if one can't be started."""
        try:
            for index in range(self._count):
                self.start_node(index)
        except BaseException:
            for index in self.alive():
                self.kill_node(index)
            raise

    def start_node(self, index: int) -> None:
        """Start one node: for the first time, or again after its death."""
        command = [sys.executable, "-m", "hpcelastic", "agent", "--run-dir", str(self._paths.root)]
        command += ["--node-name", f"node{index}", "--local-addr", "127.0.0.1", "--job", f"{self._job}:{self._count}"]
        environ = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
        with self.log(index).open("ab") as log:
            self._agents[index] = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def log(self, index: int) -> Path:
        """Where the agent of a node reports."""
        return self._paths.root / f"agent-node{index}.log"

    def kill_node(self, index: int) -> None:
        """SIGKILL everything on the node at once: the agent, its guard, all workers."""
        agent = self._agents[index]
        marks = self._members()
        children = _children(agent.pid)
        for pid in (agent.pid, *children):
            kill_group(pid, signal.SIGKILL)
        agent.wait()
        for member in marks:
            if member.name == f"node{index}":
                kill_marked(member.node)

    def _members(self) -> list[Member]:
        """What the run's nodes have said of themselves; nothing if the directory does not tell."""
        try:
            return [lease.member for lease in backend_of(self._paths).leases().values()]
        except (OSError, StoreError):
            return []

    def signal(self, signum: int) -> None:
        """Signal every agent that lives."""
        for agent in self.alive().values():
            agent.send_signal(signum)

    def alive(self) -> dict[int, "subprocess.Popen[bytes]"]:
        """The agents that have not ended."""
        return {index: agent for index, agent in self._agents.items() if agent.poll() is None}

    def wait(self, timeout: float | None = None) -> dict[int, int]:
        """Wait for every agent to end; exit status (minus the signal's number) by node. Raises TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for agent in self._agents.values():
            agent.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return {index: agent.returncode for index, agent in self._agents.items()}


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
