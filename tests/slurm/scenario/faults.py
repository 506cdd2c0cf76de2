"""Faults of a run under SLURM. Each function causes one in a run that trains and waits for the expected result."""

import time
from collections.abc import Iterable

from hpcelastic.protocol.events import WorkersPoll
from hpcelastic.storage.events import read_events
from hpcelastic.storage.leases import read_leases
from tests.slurm.scenario.stage import Stage

STARTED = 3
"""The step that a run has completed at the time of a fault."""


# ------------------------------------------------------------------------------------------------ workers and agents


def worker_crash(stage: Stage) -> None:
    stage.record_fault("a worker is killed")
    stage.kill_worker(rank=2)


def agent_crash(stage: Stage) -> None:
    stage.record_fault("an agent is killed")
    stage.kill_agent(3)


# ------------------------------------------------------------------------------------------------ nodes


def node_killed(stage: Stage) -> None:
    stage.record_fault("a node dies, SLURM knows")
    stage.cluster.fail_node(3)


def power_loss(stage: Stage) -> None:
    stage.record_fault("a node loses its power")
    stage.cluster.power_off(3)


def batch_host_lost(stage: Stage) -> None:
    node = Stage.number(stage.cluster.job(stage.job_on(1))["BatchHost"])
    stage.record_fault("the node of the batch script dies")
    stage.cluster.fail_node(node)


def first_rank_lost(stage: Stage) -> None:
    node = stage.node_of(rank=0)
    stage.record_fault("the node of rank 0 loses its power")
    stage.cluster.power_off(node)


def node_returns(stage: Stage) -> None:
    node_killed(stage)
    stage.until_world(3)
    stage.record_fault("a node returns")
    stage.cluster.start_node(3)
    stage.until_world(4)


# ------------------------------------------------------------------------------------------------ network, filesystem


def cable_cut(stage: Stage) -> None:
    """The leases of the node, which all can see, say that it lives: nobody goes on without it."""
    stage.record_fault("the network of a node is cut for 2 s")
    stage.cluster.cut(3)
    time.sleep(2.0)
    stage.cluster.heal(3)


def cut_off(stage: Stage) -> None:
    """The node can reach neither others nor the filesystem, as it stands still; and then goes on, as an orphan."""
    before = stage.newest()[-1].round
    stage.record_fault("a node loses network and filesystem for a while")
    stage.cluster.cut(3)
    stage.cluster.freeze_node(3)
    stage.until_step(0, after_round=before)
    stage.record_fault("and has them again")
    stage.cluster.heal(3)
    stage.cluster.thaw_node(3)
    stage.until_world(4)


# ------------------------------------------------------------------------------------------------ SLURM


def requeue_by_hand(stage: Stage) -> None:
    job, before = stage.job_on(3), stage.newest()[-1].round
    stage.record_fault("scontrol requeue")
    stage.cluster.run("scontrol", "requeue", job)
    stage.cluster.start_now(job)
    stage.until_world(4, after_round=before)


def requeue_by_slurm(stage: Stage) -> None:
    """A job that has lost all of its nodes is SLURM's to start again."""
    node = stage.node_of(rank=0)
    job = stage.job_on(node)
    stage.record_fault("the only node of a job dies")
    stage.cluster.fail_node(node)
    stage.cluster.start_now(job)


def controller_restart(stage: Stage) -> None:
    stage.record_fault("the controller is restarted")
    stage.cluster.stop_controller()
    stage.cluster.start_controller()


def controller_away(stage: Stage) -> None:
    """Nothing that a run needs to go on is asked of SLURM."""
    before = stage.newest()[-1].round
    stage.cluster.stop_controller()
    stage.record_fault("a node loses its power while the controller is away")
    stage.cluster.power_off(3)
    stage.until_step(0, after_round=before)
    time.sleep(1.0)
    stage.record_fault("the controller comes back")
    stage.cluster.start_controller()


def controller_forgets(stage: Stage) -> None:
    """Killed before it has saved that the job started, it comes back with the job PENDING, while its tasks train.

    It starts the job once more, learns that it runs, drains the node that said so, and holds the job; at times it
    starts a task again. SLURM 24.11 and later end the tasks of a job that is held: the run goes on once an
    administrator resumes the node and the owner releases the job.
    """
    stage.until("the agents", lambda: len(read_leases(stage.paths.leases)) == 4)
    (job,) = stage.run.status().jobs
    stage.cluster.kill_controller()
    stage.until_step(STARTED)
    stage.record_fault("the controller forgets that the job runs")
    stage.cluster.start_controller()

    def held() -> bool:
        return "held" in stage.cluster.job(job)["Reason"].lower()

    stage.until("SLURM to hold the job, or to run it again", lambda: held() or stage.newest()[-1].round > 1)
    time.sleep(5.0)  # the tasks of a job that is held end within it, or not at all
    if stage.left() or not held():
        return
    for node, state in stage.cluster.node_states().items():
        if state.startswith("drain"):
            stage.cluster.run("scontrol", "update", f"nodename={node}", "state=resume")
    stage.cluster.run("scontrol", "release", job)
    _start_again(stage, [job])
    stage.until_world(4, after_round=1)


# ------------------------------------------------------------------------------------------------ taken away


def preempted(stage: Stage) -> None:
    """All nodes are taken by a job of a higher partition, and given back."""
    jobs, before = stage.cluster.jobs(), stage.newest()[-1].round
    _preempt(stage)
    _start_again(stage, jobs)
    stage.until_world(4, after_round=before)


def preempted_for_good(stage: Stage) -> None:
    """The run goes on when a person says so."""
    before = stage.newest()[-1].round
    _preempt(stage)
    stage.until("an empty queue", lambda: not stage.cluster.jobs())
    stage.record_fault("hpcelastic submit --resume")
    stage.resume()
    stage.until_world(4, after_round=before)


def _preempt(stage: Stage) -> None:
    stage.record_fault("preemption")
    high = stage.cluster.submit("echo high; sleep 300", "-p", "high", "--exclusive", f"-N{len(stage.cluster.nodes)}")
    stage.cluster.wait_output(high, "high")
    stage.cluster.run("scancel", high)


def _start_again(stage: Stage, jobs: Iterable[str]) -> None:
    """Return those of ``jobs`` that are pending, without SLURM's delay. For some, the delay may already be over."""
    time.sleep(1.1)  # see `SlurmCluster.start_now`
    for job in jobs:
        if stage.cluster.job_state(job) == "PENDING":
            stage.cluster.run("scontrol", "update", f"jobid={job}", "StartTime=now", check=False)


def time_is_up(stage: Stage) -> None:
    before = stage.newest()[-1]
    stage.record_fault("the time limit")
    for job in stage.cluster.jobs():
        stage.cluster.limit(job, 35)  # SLURM looks twice before: at the first time it warns
    stage.until_world(before.world_size, after_round=before.round)


def batch_host_lost_and_time_is_up(stage: Stage) -> None:
    """The limit is set first: of a job whose batch host was lost, SLURM refuses to change it."""
    stage.cluster.limit(stage.job_on(1), 50)
    batch_host_lost(stage)
    alone = stage.until_world(3)
    stage.record_fault("the time limit")
    stage.until_world(3, after_round=alone)


def too_few_left(stage: Stage) -> None:
    """An allocation starts anew, as SLURM gives it no node in place of a lost one; a pool gets its nodes back."""
    jobs, before = stage.cluster.jobs(), stage.newest()[-1].round
    stage.record_fault("fewer nodes than nodes.min are left")
    for node in (3, 4):
        stage.cluster.fail_node(node)
    stage.until("a requeue", lambda: "PENDING" in stage.cluster.jobs().values())
    for node in (3, 4):
        stage.cluster.start_node(node)
    _start_again(stage, jobs)
    stage.until_world(4, after_round=before)


def replaced(stage: Stage) -> None:
    """By a node that stands by, or that an allocation has asked for."""
    before = stage.newest()[-1].round
    node = stage.node_of(rank=1)
    stage.record_fault("a node dies that can be replaced")
    stage.cluster.fail_node(node)
    stage.until_world(3, after_round=before)


def goes_bad(stage: Stage) -> None:
    """The job's agents start again, and find one of their nodes bad."""
    job, before = stage.job_on(3), stage.newest()[-1].round
    stage.make_bad(3)
    stage.record_fault("a node goes bad, and its job is requeued")
    stage.cluster.run("scontrol", "requeue", job)
    stage.cluster.start_now(job)
    stage.until("the node's refusal", lambda: "n3" in stage.run.status().incidents)
    stage.until_world(3, after_round=before)


def drained_by_slurm(stage: Stage) -> None:
    stage.record_fault("SLURM drains a node")
    stage.cluster.drain(3)
    stage.until_world(3)


def resumed_by_slurm(stage: Stage) -> None:
    """A pool's element that a drain has sent elsewhere takes the node again once SLURM gives it."""
    drained_by_slurm(stage)
    stage.until("the requeue", lambda: "PENDING" in stage.cluster.jobs().values())
    stage.record_fault("the node is resumed")
    stage.cluster.resume(3)
    stage.until_world(4)


# ------------------------------------------------------------------------------------------------ steered


def drained(stage: Stage) -> None:
    stage.record_fault("hpcelastic drain")
    stage.run.drain("n3")
    stage.until_world(3)


def scaled_down(stage: Stage) -> None:
    stage.record_fault("hpcelastic scale, to one node less")
    stage.run.scale(3)
    stage.until_world(3)


def scaled_up(stage: Stage) -> None:
    stage.record_fault("hpcelastic scale, to one node more")
    stage.run.scale(4)
    stage.until_world(4)


def checkpoint(stage: Stage) -> None:
    before = stage.newest()[-1].round
    polls = WorkersPoll(round=before)
    stage.until("workers that poll", lambda: any(logged.event == polls for logged in read_events(stage.paths.events)))
    stage.record_fault("hpcelastic checkpoint")
    stage.run.checkpoint()
    stage.until_world(4, after_round=before)
