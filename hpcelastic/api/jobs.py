"""The SLURM jobs of a run, and its agents on this machine."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hpcelastic.agent.guard_main import kill_group, kill_marked_processes
from hpcelastic.agent.member import LOCAL_JOB_PREFIX, local_pid
from hpcelastic.backends.backend import Backend
from hpcelastic.backends.connect import RunReader, open_backend
from hpcelastic.bootstrap import run_agent
from hpcelastic.config import JobConfig
from hpcelastic.config.options import flags
from hpcelastic.errors import SlurmError, StoreError
from hpcelastic.protocol.state import Member, NodeState
from hpcelastic.slurm.jobs import add_record, submitted
from hpcelastic.slurm.queue import Capacity, capacity_of
from hpcelastic.slurm.scheduler import ENDED_STATES, cancel_jobs, job_states, queue
from hpcelastic.slurm.submission import submit_elements, submit_job
from hpcelastic.storage import modes
from hpcelastic.storage.foreign import user_name
from hpcelastic.storage.paths import RunPaths


def submit_for(paths: RunPaths, config: JobConfig) -> None:
    """Submit one job, or a pool of jobs, for all nodes of the run. Raises SlurmError."""
    if config.slurm.shape == "pool":
        add_elements(paths, config, config.nodes.wanted)
    else:
        record_job(paths, submit_job(config, paths, run_agent))


def add_elements(paths: RunPaths, config: JobConfig, count: int) -> str:
    """Submit ``count`` jobs of one node each, as one array, and return its id. Raises SlurmError.

    They start in the working directory of the run's first job, independent of the current directory.
    """
    job = submit_elements(_with_first_directory(paths, config), paths, count, run_agent)
    record_job(paths, job, elements=count)
    return job


def _with_first_directory(paths: RunPaths, config: JobConfig) -> JobConfig:
    """Return ``config`` with the working directory of the run's first job."""
    home = next((job["directory"] for job in submitted(paths) if "directory" in job), None)
    if home is None or home == os.getcwd():
        return config
    given = str(flags(config.slurm.options).get("chdir", ""))
    options = {**config.slurm.options, "chdir": str(Path(home, given))}
    return replace(config, slurm=replace(config.slurm, options=options))


def record_job(paths: RunPaths, job_id: str, **more: int) -> None:
    """Record in the run's directory that a SLURM job was submitted for it, and the working directory. ``more`` is the
    number of ``elements`` of an array.

    If that fails, cancel the job, which no command would find, and raise OSError or SlurmError.
    """
    try:
        add_record(paths, {"job": job_id, **more, "submitted": time.time(), "directory": os.getcwd()})
    except BaseException as error:
        try:
            cancel_jobs([job_id])
        except SlurmError as second:
            raise SlurmError(
                f"job {job_id} is submitted, and cannot be recorded ({error}) or cancelled ({second}); cancel it: "
                f"scancel {job_id}"
            ) from error
        raise


def jobs_of(paths: RunPaths) -> list[str]:
    """Return the SLURM jobs that were submitted for the run, the newest last. An array is one job."""
    return [job["job"] for job in submitted(paths)]


def live_jobs(paths: RunPaths) -> dict[str, str]:
    """Return the jobs of the run that have not ended, with their states as text. One query.

    Raises SlurmError, also if SLURM lists no job of a run of another user: it may hide them.
    """
    elements, owner = {job["job"]: job.get("elements") for job in submitted(paths)}, paths.root.stat().st_uid
    states = job_states(elements, owner)
    if elements and not states and os.geteuid() not in (0, owner):
        raise SlurmError(f"squeue lists no job of {user_name(owner)}; it may show you only your own")
    return {job: _describe_job(each, elements[job]) for job, each in _unended(states).items()}


def _unended(states: Mapping[str, list[str]]) -> dict[str, list[str]]:
    return {job: each for job, each in states.items() if not ENDED_STATES.issuperset(each)}


def capacity(run: RunReader) -> Capacity:
    """Count the nodes of all jobs of the run's owner that were submitted for the run. One query. Raises SlurmError."""
    ours = {*jobs_of(run.paths)}
    jobs = [job for job in queue(run.paths.root.stat().st_uid) if job.array in ours]
    there: dict[str, set[str]] = {}
    left: dict[str, set[str]] = {}
    for member in (lease.member for lease in run.backend().leases().values()):
        (left if member.node_state is NodeState.LEFT else there).setdefault(member.job, set()).add(member.name)
    return capacity_of(jobs, {job: len(names - there.get(job, set())) for job, names in left.items()})


def _describe_job(states: list[str], elements: int | None) -> str:
    """Describe the state of a job: ``RUNNING``, or for an array ``4 elements: 3 RUNNING, 1 ended``.

    SLURM does not list elements that have ended long ago.
    """
    if elements is None:
        return states[0]
    alive = Counter(state for state in states if state not in ENDED_STATES)
    counts = [f"{alive[state]} {state}" for state in sorted(alive, reverse=True)]  # RUNNING before PENDING
    ended = elements - alive.total()
    return f"{elements} element{'s' * (elements != 1)}: {', '.join([*counts, f'{ended} ended'] if ended else counts)}"


def local_agents(backend: Backend) -> list[int]:
    """Return the process ids of the run's agents on this machine."""
    members = [lease.member for lease in backend.leases(processes=True).values()]
    pids = (local_pid(m.process) for m in members if m.node_state is not NodeState.LEFT)
    return [pid for pid in pids if pid is not None]


def all_local(backend: Backend) -> bool:
    """True if `LocalNodes` has started all agents of the run. The user's own job script could start others later."""
    return all(is_local(lease.member) for lease in backend.leases().values())


def is_local(member: Member) -> bool:
    """True if `LocalNodes` has started the agent."""
    return member.job.startswith(LOCAL_JOB_PREFIX)


def end_jobs(*runs: RunReader) -> None:
    """Cancel the SLURM jobs of runs, and send SIGTERM to their agents on this machine. Raises SlurmError.

    One query for each owner of a run.
    """
    for pid in (pid for run in runs for pid in local_agents(run.backend())):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    jobs: dict[int, list[str]] = {}
    for run in runs:
        jobs.setdefault(run.paths.root.stat().st_uid, []).extend(jobs_of(run.paths))
    cancel_jobs([job for owner, ids in jobs.items() for job in _unended(job_states(ids, owner))])


class LocalNodes:
    """Agents on this machine that act as nodes ``node0``, ``node1`` …"""

    def __init__(self, paths: RunPaths, count: int) -> None:
        self._paths = paths
        self._count = count
        self._job = f"{LOCAL_JOB_PREFIX}{secrets.token_hex(3)}"
        self._agents: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start all nodes. Kills all of them if one cannot be started."""
        try:
            for index in range(self._count):
                self.start_node(index)
        except BaseException:
            for index in self.alive():
                self.kill_node(index)
            raise

    def start_node(self, index: int) -> None:
        """Start one node, for the first time or after its end."""
        command = [sys.executable, "-m", "hpcelastic", "agent", "--run-dir", str(self._paths.root)]
        command += ["--node-name", f"node{index}", "--local-addr", "127.0.0.1", "--job", f"{self._job}:{self._count}"]
        environ = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
        if self._count > 1:  # the nodes share the processors of this machine, as the workers of a node do
            environ.setdefault("OMP_NUM_THREADS", "1")
        with open(modes.create(self.log(index), os.O_WRONLY | os.O_APPEND), "ab") as log:
            self._agents[index] = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def log(self, index: int) -> Path:
        """Return the log file of a node's agent."""
        return self._paths.root / f"agent-node{index}.log"

    def kill_node(self, index: int) -> None:
        """Kill all processes of the node with SIGKILL: the agent, its guard, all workers."""
        agent = self._agents[index]
        members = self._members()
        children = _children(agent.pid)
        for pid in (agent.pid, *children):
            kill_group(pid, signal.SIGKILL)
        agent.wait()
        for member in members:
            if member.name == f"node{index}":
                kill_marked_processes(member.node)

    def _members(self) -> list[Member]:
        """Return the members in the leases of the run, or nothing if the directory cannot be read."""
        try:
            with contextlib.closing(open_backend(self._paths)) as backend:
                return [lease.member for lease in backend.leases().values()]
        except (OSError, StoreError):
            return []

    def signal(self, signum: int) -> None:
        """Send a signal to every running agent."""
        for agent in self.alive().values():
            agent.send_signal(signum)

    def alive(self) -> dict[int, "subprocess.Popen[bytes]"]:
        """Return the agents that have not ended."""
        return {index: agent for index, agent in self._agents.items() if agent.poll() is None}

    def wait(self, timeout: float | None = None) -> dict[int, int]:
        """Wait for all agents. Returns exit statuses (minus signal numbers) by node. Raises TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for agent in self._agents.values():
            agent.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return {index: agent.returncode for index, agent in self._agents.items()}


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
