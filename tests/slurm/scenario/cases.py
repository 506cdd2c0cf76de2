"""What can befall a run under SLURM, one case each, for tests and for the table of the documentation."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hpcelastic.store.leases import read_leases
from tests.cluster import presets
from tests.slurm.scenario.judge import Verdict
from tests.slurm.scenario.stage import SHAPES, Setting, Stage

COMPLETED = frozenset({"COMPLETED"})
_STARTED = 3
"""The step that a run has done when something befalls it."""


@dataclass(frozen=True)
class Case:
    """One thing that befalls a run, and what is to come of it."""

    befall: Callable[[Stage], None]
    restarts: int = 0
    """Spent of the budget at the end."""

    world: int = 4
    """Ranks at the end, one on each node."""

    jobs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By shape, how jobs of the run end, where not all of them are COMPLETED."""

    shapes: tuple[str, ...] = SHAPES
    nodes: str = "2..4"
    cancelled: bool = False
    """A job is left that SLURM holds, and a person cancels it once the run has succeeded."""

    early: bool = False
    """It befalls the run before it trains."""

    slurm: Mapping[str, object] = field(default_factory=dict)
    conf: str = presets.QUICK

    def setting(self, shape: str) -> Setting:
        return Setting(shape, self.nodes, slurm=self.slurm)

    @property
    def first_world(self) -> int:
        """Ranks when it befalls."""
        return int(self.nodes.rpartition(".")[2])

    def play(self, stage: Stage) -> None:
        """Let it befall a run that has begun to train on all of its nodes."""
        if not self.early:
            stage.until_world(self.first_world)
            stage.until_step(_STARTED)
        self.befall(stage)

    def end(self, stage: Stage) -> Verdict:
        """Wait for the end of the run, and of all that is left of it."""
        verdict = stage.verdict()
        if self.cancelled:
            stage.run.cancel()
        stage.leaves_nothing()
        return verdict

    def ends(self, shape: str) -> frozenset[str]:
        return self.jobs.get(shape, COMPLETED)


# ------------------------------------------------------------------------------------------------ workers and agents


def worker_crash(stage: Stage) -> None:
    stage.befall("a worker is killed")
    stage.kill_worker(rank=2)


def agent_crash(stage: Stage) -> None:
    stage.befall("an agent is killed")
    stage.kill_agent(3)


# ------------------------------------------------------------------------------------------------ nodes


def node_killed(stage: Stage) -> None:
    stage.befall("a node dies, SLURM knows")
    stage.cluster.fail_node(3)


def power_loss(stage: Stage) -> None:
    stage.befall("a node loses its power")
    stage.cluster.power_off(3)


def batch_host_lost(stage: Stage) -> None:
    node = Stage.number(stage.cluster.job(stage.job_on(1))["BatchHost"])
    stage.befall("the node of the batch script dies")
    stage.cluster.fail_node(node)


def first_rank_lost(stage: Stage) -> None:
    node = stage.node_of(rank=0)
    stage.befall("the node of rank 0 loses its power")
    stage.cluster.power_off(node)


def node_returns(stage: Stage) -> None:
    node_killed(stage)
    stage.until_world(3)
    stage.befall("a node returns")
    stage.cluster.start_node(3)
    stage.until_world(4)


# ------------------------------------------------------------------------------------------------ network, filesystem


def cable_cut(stage: Stage) -> None:
    """The leases of the node, which all can see, say that it lives: nobody goes on without it."""
    stage.befall("the network of a node is cut for 2 s")
    stage.cluster.cut(3)
    time.sleep(2.0)
    stage.cluster.heal(3)


def cut_off(stage: Stage) -> None:
    """The node can reach neither others nor the filesystem, as it stands still; and then goes on, as an orphan."""
    before = stage.newest()[-1].round
    stage.befall("a node loses network and filesystem for a while")
    stage.cluster.cut(3)
    stage.cluster.freeze_node(3)
    stage.until_step(0, after_round=before)
    stage.befall("and has them again")
    stage.cluster.heal(3)
    stage.cluster.thaw_node(3)
    stage.until_world(4)


# ------------------------------------------------------------------------------------------------ SLURM


def requeue_by_hand(stage: Stage) -> None:
    job, before = stage.job_on(3), stage.newest()[-1].round
    stage.befall("scontrol requeue")
    stage.cluster.run("scontrol", "requeue", job)
    stage.cluster.start_now(job)
    stage.until_world(4, after_round=before)


def requeue_by_slurm(stage: Stage) -> None:
    """A job that has lost all of its nodes is SLURM's to start again."""
    node = stage.node_of(rank=0)
    job = stage.job_on(node)
    stage.befall("the only node of a job dies")
    stage.cluster.fail_node(node)
    stage.cluster.start_now(job)


def controller_restart(stage: Stage) -> None:
    stage.befall("the controller is restarted")
    stage.cluster.stop_controller()
    stage.cluster.start_controller()


def controller_away(stage: Stage) -> None:
    """Nothing that a run needs to go on is asked of SLURM."""
    before = stage.newest()[-1].round
    stage.cluster.stop_controller()
    stage.befall("a node loses its power while the controller is away")
    stage.cluster.power_off(3)
    stage.until_step(0, after_round=before)
    time.sleep(1.0)
    stage.befall("the controller comes back")
    stage.cluster.start_controller()


def controller_forgets(stage: Stage) -> None:
    """Killed before it has saved that the job started, it comes back with the job PENDING, while its tasks train."""
    stage.until("the agents", lambda: len(read_leases(stage.paths.leases)) == 4)
    stage.cluster.kill_controller()
    stage.until_step(_STARTED)
    stage.befall("the controller forgets that the job runs")
    stage.cluster.start_controller()


# ------------------------------------------------------------------------------------------------ taken away


def preempted(stage: Stage) -> None:
    """All nodes are taken by a job of a higher partition, and given back."""
    jobs, before = stage.cluster.jobs(), stage.newest()[-1].round
    stage.befall("preemption")
    high = stage.cluster.submit("echo high; sleep 300", "-p", "high", "--exclusive", f"-N{len(stage.cluster.nodes)}")
    stage.cluster.wait_output(high, "high")
    stage.cluster.run("scancel", high)
    for job in jobs:
        if stage.cluster.job_state(job) == "PENDING":
            stage.cluster.start_now(job)
    stage.until_world(4, after_round=before)


def time_is_up(stage: Stage) -> None:
    before = stage.newest()[-1].round
    stage.befall("the time limit")
    for job in stage.cluster.jobs():
        stage.cluster.limit(job, 1)
    stage.until_step(0, after_round=before)


def drained(stage: Stage) -> None:
    stage.befall("a node is drained")
    stage.cluster.drain(3)
    stage.until_world(3)


PATIENT = "KillWait=2"
"""SLURM finds out too late that a node stands still to call it down."""

PREEMPTION = f"{presets.QUICK}\n{presets.PREEMPTION}".replace("GraceTime=20", "GraceTime=5")
_ALLOCATION = ("allocation",)
_POOL = ("pool",)
_CANCELLED = frozenset({"CANCELLED"})

CASES = {
    "worker crash": Case(worker_crash, restarts=1),
    "agent crash": Case(
        agent_crash, world=3, jobs={"allocation": frozenset({"FAILED"}), "pool": frozenset({"FAILED", "COMPLETED"})}
    ),
    "node killed": Case(node_killed, world=3),
    "power loss": Case(power_loss, world=3),
    "batch host lost": Case(batch_host_lost, world=3, shapes=_ALLOCATION, jobs={"allocation": _CANCELLED}),
    "first rank's node lost": Case(first_rank_lost, world=3, jobs={"allocation": _CANCELLED}),
    "node returns": Case(node_returns, shapes=_POOL),
    "network cut and healed": Case(cable_cut),
    "network and filesystem cut and healed": Case(cut_off, conf=PATIENT),
    "requeue by hand": Case(requeue_by_hand),
    "requeue by SLURM": Case(requeue_by_slurm, world=1, nodes="1", shapes=_ALLOCATION),
    "controller restart": Case(controller_restart),
    "controller away while a node dies": Case(controller_away, world=3),
    "controller forgets the start": Case(
        controller_forgets, early=True, cancelled=True, shapes=_ALLOCATION, jobs={"allocation": _CANCELLED}
    ),
    "preemption without grace": Case(preempted, conf=PREEMPTION, slurm={"partition": "low"}),
}
"""By name; each is to succeed with the digest of an undisturbed run."""

NOT_YET = {
    "preemption with grace": Case(preempted, conf=PREEMPTION, slurm={"partition": "graceful"}),
    "time limit": Case(
        time_is_up, slurm={"time": "5"}, jobs={shape: frozenset({"TIMEOUT", "COMPLETED"}) for shape in SHAPES}
    ),
    "drain": Case(drained, world=3),
}
"""Cases for what is not there yet; each moves to `CASES` with what it needs. Without words so far: scale up and
down, a spare that takes a lost node's place, a bad node that is left out."""
