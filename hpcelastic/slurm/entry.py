"""The entry point inside a job: what runs on a node, whether SLURM, `hpcelastic run` or a person started it.

A composition root: the place where an agent's environment is read.
"""

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.agent.agent import Agent, AgentSpec
from hpcelastic.agent.node import Place, count_gpus, dead_predecessors, new_member
from hpcelastic.agent.report import print_failures, reporter
from hpcelastic.agent.settings import AgentSettings, WorkerSettings
from hpcelastic.config.codec import decode
from hpcelastic.errors import ConfigError, RunFailed
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Member, Phase, Stand
from hpcelastic.rendezvous.rendezvous import open_run, read_state
from hpcelastic.slurm.environment import SlurmTask, place_of, slurm_task
from hpcelastic.slurm.scheduler import cancel_jobs
from hpcelastic.store import files
from hpcelastic.store.leases import read_leases
from hpcelastic.store.paths import RunPaths


@dataclass(frozen=True)
class Task:
    """What an agent takes part in."""

    paths: RunPaths
    run_id: str
    settings: Settings
    agent: AgentSettings


def run_agent(run_directory: str) -> int:
    """Take part, on this node, in the run set up in ``run_directory``; what submitit calls in every task."""
    return take_part(task_of_run(run_directory), place_here())


def task_of_run(directory: str) -> Task:
    """The task that the run's own config.json describes."""
    paths = RunPaths(Path(directory).absolute())
    data = files.read_json(paths.config)
    if data is None:
        raise ConfigError(f"{paths.config}: no such file; name a directory made by hpcelastic submit or run")
    config = decode(data)
    return Task(paths, str(config.run.name), config.protocol_settings, config.agent_settings)


def place_here() -> Place:
    """Where this process runs: as SLURM says, else by the host's name."""
    task = slurm_task(os.environ)
    return place_of(task) if task else Place(os.uname().nodename.partition(".")[0])


def take_part(task: Task, place: Place) -> int:
    """Run the agent at ``place`` until the run ends; the exit status. Raises what `Agent.run` raises."""
    for directory in (task.paths.root, task.paths.register, task.paths.leases):
        files.make_directory(directory)
    member = new_member(place, _workers(task.agent.workers, os.environ), dead_predecessors(task.paths, place))
    state = open_run(task.paths, task.run_id, task.settings, member.node)
    if state.phase.final:
        print(f"hpcelastic: the run has {state.phase.value} already: {state.reason}", file=sys.stderr)
        return 0 if state.phase is Phase.SUCCEEDED else 1
    try:
        return Agent(
            AgentSpec(task.paths, task.run_id, task.settings, task.agent, member, os.environ), reporter(member.name)
        ).run()
    except RunFailed as error:
        print_failures(error)
        raise
    finally:
        slurm = slurm_task(os.environ)
        if slurm is not None:
            _end_orphaned_job(task, member, slurm)


def _workers(settings: WorkerSettings, environ: Mapping[str, str]) -> int:
    return (count_gpus(environ) or 1) if settings.per_node == "auto" else settings.per_node


def _end_orphaned_job(task: Task, me: Member, slurm: SlurmTask) -> None:
    """Cancel the job once the run is over if the node of its batch script was lost: SLURM would keep it for ever.

    Done by the last-ranked survivor only, after a moment in which the others see the end of the run for themselves.
    """
    state = read_state(task.paths)
    if not state.phase.final or not state.participants or state.participants[-1].node != me.node:
        return
    members = [lease.member for lease in read_leases(task.paths.leases).values() if lease.member.job == me.job]
    survivors = {p.node for p in state.participants}
    batch = [m for m in members if m.order == 0]
    if batch and all(m.node not in survivors and m.stand is not Stand.LEFT for m in batch):
        time.sleep(1.0 + 4 * task.settings.rendezvous.poll)
        print("hpcelastic: the batch script's node was lost; ending the job, or SLURM would keep it", file=sys.stderr)
        cancel_jobs([slurm.job_id])
