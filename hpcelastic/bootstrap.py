"""The entry point of an agent on a node. SLURM, `hpcelastic run` or a user starts it.

This module is the composition root: it reads the environment of the agent, and opens the backend of the run.
"""

import math
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from hpcelastic.agent.admission import EXIT_UNFIT, AdmissionRequest, admit
from hpcelastic.agent.agent import Agent
from hpcelastic.agent.agent_spec import AgentSpec
from hpcelastic.agent.environment import ROLE
from hpcelastic.agent.guard_main import boottime
from hpcelastic.agent.member import (
    NodeIdentity,
    count_gpus,
    overcommit_warnings,
    worker_count,
)
from hpcelastic.agent.nonblocking_output import nonblocking_stdio
from hpcelastic.agent.notifier import outside_notifier
from hpcelastic.agent.numa import processors
from hpcelastic.agent.report import print_failures
from hpcelastic.agent.session import Observe
from hpcelastic.agent.settings import AgentSettings
from hpcelastic.config.codec import decode
from hpcelastic.config.slurm import SlurmSettings, minutes
from hpcelastic.entry import EnteredRun, Entry, enter_run, is_loopback
from hpcelastic.errors import ConfigError, InternalError, RendezvousTimeout, RunFailed, SlurmError, internal_errors
from hpcelastic.exporters import ExporterContext, exporting
from hpcelastic.gridengine.batch_system import grid_engine_of
from hpcelastic.gridengine.environment import grid_engine_task
from hpcelastic.health.memory import excluded_nodes
from hpcelastic.health.settings import HealthSettings
from hpcelastic.protocol.decide import checkpoint
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Phase
from hpcelastic.rendezvous.run import is_fresh, read_run, steer_run
from hpcelastic.slurm.batch_system import SlurmBatchSystem
from hpcelastic.slurm.environment import SlurmTask, identity_of, slurm_task
from hpcelastic.slurm.exclusion import recorded_hosts
from hpcelastic.slurm.job_cleanup import JobCleanup
from hpcelastic.slurm.queue_watcher import QueueWatcher, WatchedRun
from hpcelastic.slurm.relocation import can_relocate, relocate
from hpcelastic.slurm.requeue import DepartedAgent, Limits, requeue_if_needed
from hpcelastic.slurm.restart import FIRST, Restart, start_agent
from hpcelastic.slurm.signal_resolution import Policy
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths
from hpcelastic.worker.node_benchmark import COMMAND

_SUBMISSION_TIMEOUT = 300.0
"""Seconds for the submission of jobs in place of lost nodes."""


@dataclass(frozen=True)
class Task:
    """The run that an agent joins, and the settings of the agent."""

    paths: RunPaths
    run_id: str
    settings: Settings
    agent: AgentSettings
    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    total_time: str | None = None
    """Maximum duration of the job over all of its requeues; None if it ends at its time limit."""

    is_host: bool | None = None
    """Whether this agent serves the store of a run in ``c10d``; None to detect it."""

    exporters: tuple[str, ...] = ()
    """Functions ``package.module:function`` that receive the events of the agent."""


def run_agent(run_directory: str) -> None:
    """Run the agent of this node for the run in ``run_directory``. submitit calls this function in every task.

    Raises SystemExit if the agent failed, because submitit counts every returned value as a success.
    """
    task = task_of_run(run_directory)
    restart = start_agent() if slurm_task(os.environ) else FIRST
    with nonblocking_stdio():
        try:
            status = run_node_agent(task, local_identity(), restart=restart)
        except InternalError as error:
            print(f"hpcelastic agent: {error}", file=sys.stderr)
            status = error.exit_code
    if status:
        sys.exit(status)


def task_of_run(directory: str) -> Task:
    """Return the task in the run's config.json. Raises ConfigError if there is no such file."""
    paths = RunPaths(Path(directory).absolute())
    data = files.read_json(paths.config)
    if data is None:
        raise ConfigError(f"{paths.config}: no such file; name a directory made by hpcelastic submit or run")
    config = decode(data)
    return Task(
        paths,
        str(config.run.name),
        config.protocol_settings,
        config.agent_settings,
        config.slurm,
        config.run.total_time,
        exporters=config.exporters,
    )


def local_identity() -> NodeIdentity:
    """Return the identity of this node: from the variables of SLURM or Grid Engine, else from the host name."""
    if task := slurm_task(os.environ):
        return identity_of(task)
    if grid_engine := grid_engine_task(os.environ):
        return grid_engine.identity
    return NodeIdentity(os.uname().nodename.partition(".")[0])


def run_node_agent(
    task: Task,
    identity: NodeIdentity,
    observe: Observe | None = None,
    restart: Restart = FIRST,
    *,
    any_name: bool = False,
) -> int:
    """Run the agent of the node ``identity`` until the run ends, and return the exit status.

    Raises the errors of `Agent.run`. ``observe`` is notified of events; see `Agent`. ``restart`` is the restart of
    the agent on this node. With ``any_name`` the node may take another free name; see `Entry`.
    """
    count = worker_count(task.agent.workers, os.environ)
    cpus = processors(task.agent.workers.numa, count, os.environ, os.sched_getaffinity(0))
    role = "" if task.agent.workers.role == ROLE else task.agent.workers.role
    start = time.monotonic() if restart.first_start is None else restart.first_start
    interface, again = task.agent.network.interface, restart != FIRST
    entry = Entry(
        task.paths, task.run_id, task.settings, identity, interface, len(cpus), role, task.is_host, any_name, again
    )
    with enter_run(entry) as entered:
        for line in overcommit_warnings(count, count_gpus(os.environ), len(os.sched_getaffinity(0))):
            entered.report(line)
        if is_loopback(entered.member.address):  # all agents are on this machine: no node is better than another
            health = HealthSettings(check=False, exclude=False)
            task = replace(task, agent=replace(task.agent, health=health))
        task = replace(task, settings=entered.settings)
        context = ExporterContext(task.run_id, task.paths.root, entered.member.name)
        with exporting(task.exporters, context, entered.report, observe) as observe_all:
            return _NodeRun(task, entered, cpus, start, observe_all, restart).run()


@dataclass(frozen=True)
class _NodeRun:
    """The run of the agent of this node, in a run that the node has entered."""

    task: Task
    entered: EnteredRun
    cpus: list[set[int]]
    """The processors of each worker; empty if workers are not bound."""

    start: float
    """When the first agent of this node's task has started, in seconds of time.monotonic()."""

    observe: Observe
    restart: Restart

    def run(self) -> int:
        """Run the agent, if the run continues and the node is admitted. Return the exit status."""
        state = self.entered.found.state
        if state.phase.final:
            print(f"hpcelastic: the run has {state.phase.value} already: {state.reason}", file=sys.stderr)
            return 0 if state.phase is Phase.SUCCEEDED else 1
        slurm = slurm_task(os.environ)
        status = self._admit(slurm)
        if status is not None:
            return status
        return self._run_agent(None) if slurm is None else self._run_in_job(slurm)

    def _admit(self, slurm: SlurmTask | None) -> int | None:
        """Check the node. Return the exit status of a node that is not admitted; None if it is."""
        task, entered, health = self.task, self.entered, self.task.agent.health
        movable = task.slurm.requeue and can_relocate(slurm)
        benchmark = COMMAND if health.benchmark and self.restart == FIRST else ()
        status = admit(
            AdmissionRequest(
                task.paths, entered.backend, entered.member, task.settings, health, os.environ, benchmark, movable
            ),
            entered.report,
        )
        if status == EXIT_UNFIT and movable and slurm is not None:
            relocate(slurm, _hosts_to_exclude(task, entered), entered.report)
        return status

    def _run_in_job(self, slurm: SlurmTask) -> int:
        """Run the agent in a SLURM job, and then let the job end with the result of the run."""
        task, entered = self.task, self.entered
        job_cleanup = JobCleanup(task.paths, entered.backend, slurm, entered.member, task.settings.rendezvous)
        try:
            return self._run_agent(slurm)
        except RendezvousTimeout:
            job_cleanup.end_abandoned_job()
            raise
        finally:
            job_cleanup.run()

    def _run_agent(self, slurm: SlurmTask | None) -> int:
        """Run the agent. If it has left a SLURM job, requeue the job if the run needs that."""
        report = self.entered.report
        try:
            with internal_errors():
                agent = Agent(self._agent_spec(slurm), report)
                status = agent.run()
        except RunFailed as error:
            print_failures(error)
            raise
        if slurm is not None and agent.notice is not None:
            paths, backend, limits = self.task.paths, self.entered.backend, _limits(self.task)
            elapsed = time.monotonic() - self.start
            requeue_if_needed(DepartedAgent(paths, backend, slurm, agent.member, agent.notice, elapsed, limits, report))
        return status

    def _agent_spec(self, slurm: SlurmTask | None) -> AgentSpec:
        task, entered = self.task, self.entered
        return AgentSpec(
            task.paths,
            entered.backend,
            task.run_id,
            task.settings,
            task.agent,
            entered.member,
            entered.found if is_fresh(entered.found, boottime()) else read_run(entered.backend, boottime),
            os.environ,
            self.cpus,
            _make_batch_system(task, slurm, entered)
            if slurm
            else grid_engine_of(task.agent.workers.stop_grace, task.slurm.warning),
            self.observe,
            self.restart.number,
            job_start=slurm.start if slurm else None,
            died=self.restart.reason,
        )


def _hosts_to_exclude(task: Task, entered: EnteredRun) -> set[str]:
    health = task.agent.health
    bad = excluded_nodes(task.paths, entered.backend, health.half_life)
    recorded = recorded_hosts(task.paths, health, task.slurm.partition)
    return {entered.member.machine, *bad, *recorded, *([task.slurm.exclude] if task.slurm.exclude else [])}


def _make_batch_system(task: Task, slurm: SlurmTask, entered: EnteredRun) -> SlurmBatchSystem:
    backend, node = entered.backend, entered.member.node
    grace, beyond = task.agent.workers.stop_grace, task.total_time is not None
    policy = Policy(task.slurm.signal_delay, grace, task.slurm.requeue, beyond)

    def request_checkpoint() -> None:
        with outside_notifier(task.paths, node) as notifier:
            steer_run(backend, node, checkpoint, notifier)

    refill = task.slurm.refill if task.paths.config.exists() else 0.0  # else the options of a submission are unknown
    submit = partial(_submit_replacements, task.paths)
    watched = WatchedRun(task.paths, backend, node, task.slurm.poll, slurm.nodes == 1, refill, submit)
    return SlurmBatchSystem(slurm, policy, request_checkpoint, QueueWatcher(watched, entered.report))


def _submit_replacements(paths: RunPaths, count: int) -> str:
    """Submit one-node jobs in a process of its own, because an agent does not load the modules for that.

    Raises SlurmError.
    """
    command = [sys.executable, "-m", "hpcelastic", "scale", str(paths.root), "--replace", str(count)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SUBMISSION_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"hpcelastic scale: no answer in {_SUBMISSION_TIMEOUT:g} s") from None
    if done.returncode != 0:
        raise SlurmError(done.stderr.strip() or f"hpcelastic scale: exit status {done.returncode}")
    return done.stdout.strip()


def _limits(task: Task) -> Limits:
    limit = minutes(task.total_time) if task.total_time else None
    return Limits(task.slurm.max_requeues, math.inf if limit is None else 60.0 * limit)
