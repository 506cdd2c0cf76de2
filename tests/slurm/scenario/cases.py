"""Faults of a run under SLURM, one case each, for tests and for the table of the documentation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.cluster import presets
from tests.slurm.scenario import faults
from tests.slurm.scenario.faults import STARTED
from tests.slurm.scenario.judge import Verdict
from tests.slurm.scenario.stage import SHAPES, Setting, Stage

COMPLETED = frozenset({"COMPLETED"})


@dataclass(frozen=True)
class Case:
    """A fault of a run, and the expected result."""

    cause: Callable[[Stage], None]
    restarts: int = 0
    """Spent part of the restart budget at the end."""

    world: int = 4
    """Number of ranks at the end, one on each node."""

    lost: int = 0
    """Maximum number of missing ranks, because SLURM may end tasks by itself."""

    jobs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By shape: the final states of the run's jobs, if not all of them are COMPLETED."""

    shapes: tuple[str, ...] = SHAPES
    nightly: str = ""
    """The shape that only `make nightly` tests, because other cases are similar."""

    nodes: str = "2..4"
    spares: int = 0
    cancelled: bool = False
    """Whether a job that SLURM holds is left, so that a person cancels it after the success of the run."""

    early: bool = False
    """Whether the fault occurs before the run trains."""

    blame: str = ""
    """The part at fault, as `hpcelastic why` must find it for some round; empty if more than one is right."""

    total_time: str | None = None
    """`run.total_time`."""

    slurm: Mapping[str, object] = field(default_factory=dict)
    conf: str = presets.QUICK

    def setting(self, shape: str) -> Setting:
        return Setting(shape, self.nodes, slurm=self.slurm, spares=self.spares, total_time=self.total_time)

    @property
    def first_world(self) -> int:
        """Number of ranks at the time of the fault."""
        return int(self.nodes.rpartition(".")[2])

    def play(self, stage: Stage) -> None:
        """Cause the fault in a run that trains on all of its nodes."""
        if not self.early:
            stage.until_world(self.first_world)
            stage.until_step(STARTED)
        self.cause(stage)

    def end(self, stage: Stage) -> Verdict:
        """Wait for the end of the run and of all its jobs and processes."""
        verdict = stage.verdict()
        if self.cancelled:
            stage.run.cancel()
        stage.leaves_nothing()
        explained = stage.run.why_all()
        assert self.blame in ("", *(each.blame for each in explained)), "\n\n".join(map(str, explained))
        return verdict

    def ends(self, shape: str) -> frozenset[str]:
        return self.jobs.get(shape, COMPLETED)


PREEMPTION = presets.PREEMPTION.replace("GraceTime=20", "GraceTime=5")
_ALLOCATION = ("allocation",)
_POOL = ("pool",)
_CANCELLED = frozenset({"CANCELLED"})
_POLITE = {"partition": "graceful"}
_TIMED: Mapping[str, object] = {"time": "5"}
_LOOKS: Mapping[str, object] = {"poll": 1}

CASES = {
    "worker crash": Case(faults.worker_crash, blame="unknown", restarts=1),
    "agent crash": Case(faults.agent_crash, blame="node", nightly="pool"),
    "node killed": Case(faults.node_killed, blame="node", world=3),
    "power loss": Case(faults.power_loss, blame="node", world=3),
    "batch host lost": Case(
        faults.batch_host_lost, blame="node", world=3, shapes=_ALLOCATION, jobs={"allocation": _CANCELLED}
    ),
    "batch host lost, then the time limit": Case(
        faults.batch_host_lost_and_time_is_up,
        blame="node",
        world=3,
        shapes=_ALLOCATION,
        total_time="UNLIMITED",
        slurm=_TIMED,
    ),
    "first rank's node lost": Case(faults.first_rank_lost, blame="node", world=3, jobs={"allocation": _CANCELLED}),
    "node returns": Case(faults.node_returns, shapes=_POOL),
    "node lost, a spare takes its place": Case(
        faults.replaced, blame="node", world=3, nodes="2..3", spares=1, jobs={"allocation": _CANCELLED | COMPLETED}
    ),
    "node lost, and replaced": Case(
        faults.replaced,
        blame="node",
        world=3,
        nodes="2..3",
        shapes=_ALLOCATION,
        slurm={"refill": 2},
        jobs={"allocation": _CANCELLED | COMPLETED},
    ),
    "fewer than nodes.min left": Case(faults.too_few_nodes, nodes="3..4", nightly="pool"),
    "a bad node": Case(
        faults.becomes_bad, world=3, jobs=dict.fromkeys(SHAPES, COMPLETED | {"FAILED"}), nightly="allocation"
    ),
    "network cut and healed": Case(faults.cable_cut),
    "network and filesystem cut and healed": Case(faults.cut_off, nightly="allocation"),
    "requeue by hand": Case(faults.requeue_by_hand),
    "requeue by SLURM": Case(faults.requeue_by_slurm, world=1, nodes="1", shapes=_ALLOCATION),
    "controller restart": Case(faults.controller_restart, nightly="pool"),
    "controller away while a node dies": Case(faults.controller_away, world=3, nightly="pool"),
    "controller forgets the start": Case(
        faults.controller_forgets,
        lost=2,  # SLURM chooses how many tasks it ends and does not start again; nodes.min are enough
        early=True,
        cancelled=True,
        shapes=_ALLOCATION,
        jobs={"allocation": _CANCELLED | COMPLETED},
    ),
    "preemption without grace": Case(
        faults.preempted, blame="scheduler", conf=PREEMPTION, slurm={"partition": "low"}, nightly="allocation"
    ),
    "preemption with grace": Case(faults.preempted, blame="scheduler", conf=PREEMPTION, slurm=_POLITE),
    "preemption with grace, announced by the job's own signal": Case(
        faults.preempted,
        blame="scheduler",
        conf=f"{PREEMPTION}\n{presets.USER_SIGNAL}",
        slurm=_POLITE,
        nightly="allocation",
    ),
    "preemption with `requeue: false`": Case(
        faults.preempted_for_good,
        conf=PREEMPTION,
        slurm={**_POLITE, "requeue": False},
        jobs=dict.fromkeys(SHAPES, COMPLETED | {"PREEMPTED", "FAILED"}),
        nightly="pool",
    ),
    "time limit": Case(
        faults.time_is_up, blame="scheduler", total_time="UNLIMITED", slurm=_TIMED, nightly="allocation"
    ),
    "drain by SLURM": Case(faults.drained_by_slurm, blame="scheduler", world=3, slurm=_LOOKS, shapes=_ALLOCATION),
    "drain by SLURM, and resumed": Case(faults.resumed_by_slurm, slurm=_LOOKS, shapes=_POOL),
    "`hpcelastic drain`": Case(faults.drained, blame="user", world=3),
    "`hpcelastic scale`, down": Case(faults.scaled_down, blame="user", world=3, nightly="pool"),
    "`hpcelastic scale`, up": Case(faults.scaled_up, nodes="2..3", nightly="allocation"),
    "`hpcelastic checkpoint`": Case(faults.checkpoint, blame="user", nightly="pool"),
}
"""The cases by name. Each must succeed with the digest of an undisturbed run."""
