"""Faults of a run under SLURM. Each function causes one in a run that trains, and waits for the expected result."""

import time
from collections.abc import Iterable

from hpcelastic.protocol.events import WorkersPoll
from hpcelastic.storage.events import read_events
from tests.slurm.scenario.stage import Stage

STARTED = 3
"""The number of steps that a run has completed at the time of a fault."""


# ------------------------------------------------------------------------------------------------ workers and agents


def worker_crash(stage: Stage) -> None:
    stage.record_fault("a worker is killed")
    stage.kill_worker(rank=2)


def agent_crash(stage: Stage) -> None:
    stage.record_fault("an agent is killed")
    stage.kill_agent(3)


# ------------------------------------------------------------------------------------------------ nodes


def node_killed(stage: Stage) -> None:
    stage.record_fault("a node dies, and SLURM notices")
    stage.cluster.fail_node(3)


def power_loss(stage: Stage) -> None:
    stage.record_fault("a node loses power")
    stage.cluster.power_off(3)


def batch_host_lost(stage: Stage) -> None:
    node = Stage.number(stage.cluster.job(stage.job_on(1))["BatchHost"])
    stage.record_fault("the node of the batch script dies")
    stage.cluster.fail_node(node)


def first_rank_lost(stage: Stage) -> None:
    node = stage.node_of(rank=0)
    stage.record_fault("the node of rank 0 loses power")
    stage.cluster.power_off(node)


def node_returns(stage: Stage) -> None:
    node_killed(stage)
    stage.until_world(3)
    stage.record_fault("a node returns")
    stage.cluster.start_node(3)
    stage.until_world(4)


# ------------------------------------------------------------------------------------------------ network, filesystem


def cable_cut(stage: Stage) -> None:
    """The leases of the node, which all others see, show that it is alive. So no other node continues without it."""
    stage.record_fault("the network of a node is cut for 2 s")
    stage.cluster.cut(3)
    time.sleep(2.0)
    stage.cluster.heal(3)


def cut_off(stage: Stage) -> None:
    """The node reaches neither the others nor the filesystem, because it is frozen. Then it continues as an orphan."""
    before = stage.newest()[-1].round
    stage.record_fault("a node loses network and filesystem for a while")
    stage.cluster.cut(3)
    stage.cluster.freeze_node(3)
    stage.until_step(0, after_round=before)
    stage.record_fault("and gets them back")
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
    """SLURM requeues a job that has lost all of its nodes."""
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
    """A run does not need SLURM in order to continue."""
    before = stage.newest()[-1].round
    stage.cluster.stop_controller()
    stage.record_fault("a node loses power while the controller is away")
    stage.cluster.power_off(3)
    stage.until_step(0, after_round=before)
    time.sleep(1.0)
    stage.record_fault("the controller returns")
    stage.cluster.start_controller()


def controller_forgets(stage: Stage) -> None:
    """A controller that was killed before it saved the start of the job has the job as PENDING while its tasks train.

    It starts the job once more, learns that it runs, drains the node that reported so, and holds the job. Sometimes it
    starts a task again. SLURM 24.11 and later end the tasks of a held job: the run continues once an administrator
    resumes the node and the owner releases the job.
    """
    (job,) = stage.run.status().jobs
    step = f"{job}.0"  # without it srun would wait for the controller, which saves its state within 5 s
    stage.until("the agents' step", lambda: step in stage.cluster.run("squeue", "--steps", "-h", "-o", "%i").split())
    stage.cluster.kill_controller()
    stage.until_step(STARTED)
    stage.record_fault("the controller forgets that the job runs")
    stage.cluster.start_controller()

    def held() -> bool:
        return "held" in stage.cluster.job(job)["Reason"].lower()

    stage.until("SLURM to hold the job, or to run it again", lambda: held() or stage.newest()[-1].round > 1)
    time.sleep(5.0)  # if the tasks of a held job end, they end within this time
    if len(stage.left()) >= 2 or not held():  # the run continues on two nodes
        return
    for node, state in stage.cluster.node_states().items():
        if state.startswith("drain"):
            stage.cluster.run("scontrol", "update", f"nodename={node}", "state=resume")
    stage.cluster.run("scontrol", "release", job)
    _start_again(stage, [job])
    stage.until_world(4, after_round=1)


# ------------------------------------------------------------------------------------------------ taken away


def preempted(stage: Stage) -> None:
    """A job of a higher partition takes all nodes, and returns them."""
    jobs, before = stage.cluster.jobs(), stage.newest()[-1].round
    _preempt(stage)
    _start_again(stage, jobs)
    stage.until_world(4, after_round=before)


def preempted_for_good(stage: Stage) -> None:
    """The run continues after a person resumes it."""
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
    """Return the pending jobs of ``jobs``, without SLURM's delay. For some, the delay may already be over."""
    time.sleep(1.1)  # see `SlurmCluster.start_now`
    for job in jobs:
        if stage.cluster.job_state(job) == "PENDING":
            stage.cluster.run("scontrol", "update", f"jobid={job}", "StartTime=now", check=False)


def time_is_up(stage: Stage) -> None:
    before = stage.newest()[-1]
    stage.record_fault("the time limit")
    jobs = list(stage.cluster.jobs())
    for job in jobs:
        stage.cluster.limit(job, 35)  # SLURM checks twice before, and warns at the first check
    for job in jobs:
        stage.cluster.lift_limit(job)
    stage.until_world(before.world_size, after_round=before.round)


def batch_host_lost_and_time_is_up(stage: Stage) -> None:
    """The limit is set first, because SLURM refuses to change that of a job whose batch host was lost."""
    job = stage.job_on(1)
    stage.cluster.limit(job, 50)
    batch_host_lost(stage)
    alone = stage.until_world(3)
    stage.record_fault("the time limit")
    stage.cluster.lift_limit(job)
    stage.until_world(3, after_round=alone)


def too_few_nodes(stage: Stage) -> None:
    """An allocation is started anew, because SLURM does not replace a lost node of it. A pool gets its nodes back."""
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
    """A standby, or a node that an allocation has asked for, replaces the lost node."""
    before = stage.newest()[-1].round
    node = stage.node_of(rank=1)
    stage.record_fault("a node that can be replaced dies")
    stage.cluster.fail_node(node)
    stage.until_world(3, after_round=before)


def becomes_bad(stage: Stage) -> None:
    """The job's agents are started again, and one of their nodes fails the node check."""
    job, before = stage.job_on(3), stage.newest()[-1].round
    stage.make_bad(3)
    stage.record_fault("a node becomes bad, and its job is requeued")
    stage.cluster.run("scontrol", "requeue", job)
    stage.cluster.start_now(job)
    stage.until("the exclusion of the node", lambda: "n3" in stage.run.status().incidents)
    stage.until_world(3, after_round=before)


def drained_by_slurm(stage: Stage) -> None:
    stage.record_fault("SLURM drains a node")
    stage.cluster.drain(3)
    stage.until_world(3)


def resumed_by_slurm(stage: Stage) -> None:
    """An element of a pool was moved to another node by a drain. It uses the drained node again when SLURM assigns
    it."""
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
    stage.record_fault("hpcelastic scale to one node less")
    stage.run.scale(3)
    stage.until_world(3)


def scaled_up(stage: Stage) -> None:
    stage.record_fault("hpcelastic scale to one node more")
    stage.run.scale(4)
    stage.until_world(4)


def checkpoint(stage: Stage) -> None:
    before = stage.newest()[-1].round
    polls = WorkersPoll(round=before)
    stage.until("workers that poll", lambda: any(logged.event == polls for logged in read_events(stage.paths.events)))
    stage.record_fault("hpcelastic checkpoint")
    stage.run.checkpoint()
    stage.until_world(4, after_round=before)
