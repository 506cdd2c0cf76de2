"""Faults of every kind at random times, on a run whose nodes come from an allocation or a pool, and from single jobs.

``python -m tests.slurm.scenario.storm --minutes 20 --seed N --shape pool``, with ``--elastic`` for a script that keeps
its state in memory. After the storm all faults are undone, and the run must end as if there had been no fault. The same
seed draws the same random numbers, but the speed of the machine also has an effect.
"""

import argparse
import contextlib
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcelastic.accounting import Category
from hpcelastic.accounting.journal import SECOND
from hpcelastic.api.accounts import account_of
from hpcelastic.backends.connect import RunReader
from hpcelastic.errors import ConfigError, SlurmError
from hpcelastic.storage.events import read_logs
from hpcelastic.storage.leases import read_leases
from hpcelastic.storage.paths import RunPaths
from tests.cluster import SlurmCluster, presets
from tests.slurm.scenario.judge import Verdict
from tests.slurm.scenario.plan import Plan
from tests.slurm.scenario.stage import ELASTIC, SCRIPT, SHAPES, TIMEOUT, Setting, Stage

NODES = 6
ALLOCATED = 4
"""Nodes of the first allocation. The others are for the pool."""

BROKEN = 3
"""Maximum number of nodes that have a fault at the same time."""

CONF = f"{presets.QUICK}\n{presets.PREEMPTION}".replace("GraceTime=20", "GraceTime=3")
UNKNOWN = 0.02
"""The greatest share of the node time of which the account may not know what it went into."""

_NEAR = 20.0
"""Seconds around a time that is unknown of which the events are shown."""

PARTITIONS = ("low", "graceful")
LEAST = {"allocation": 3, "pool": NODES}
"""Minimum number of jobs, pending ones included."""

JOIN = "srun --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 {python} -m hpcelastic agent --run-dir {run}"


@dataclass
class Storm:
    """A storm of faults. ``dice`` makes all random decisions."""

    stage: Stage
    dice: random.Random
    repairs: list[tuple[float, str, Callable[[], object]]] = field(default_factory=list)
    """Functions that undo faults, with the times at which to call them."""

    broken: set[int] = field(default_factory=set)
    started: float = field(default_factory=time.monotonic)

    def cause_faults(self, seconds: float) -> None:
        """Cause one fault after the other for some seconds, then undo all."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(self.dice.uniform(0.3, 3.0))
            self.undo_due(time.monotonic())
            self.supply()
            fault = self.dice.choice(FAULTS)
            fault(self)
        self.undo_due(float("inf"))
        for node in range(1, NODES + 1):  # a controller that was killed may have lost this change
            resume(self, node)
        self.supply()

    def report(self, what: str) -> None:
        print(f"{time.monotonic() - self.started:7.1f} s  {what}", flush=True)

    def record_fault(self, what: str) -> None:
        self.report(what)
        self.stage.record_fault(what)

    def later(self, what: str, undo: Callable[[], object], longest: float) -> None:
        self.repairs.append((time.monotonic() + self.dice.uniform(0.5, longest), what, undo))

    def undo_due(self, until: float) -> None:
        """Undo all faults that are due by ``until``."""
        due = sorted((each for each in self.repairs if each[0] <= until), key=lambda each: each[0])
        self.repairs = [each for each in self.repairs if each not in due]
        for _, what, undo in due:
            self.record_fault(what)
            undo()

    def node(self) -> int | None:
        """Choose a node without a fault; None if enough nodes have one."""
        if len(self.broken) >= BROKEN:
            return None
        node = self.dice.choice(sorted(set(range(1, NODES + 1)) - self.broken))
        self.broken.add(node)
        return node

    def repair(self, node: int, how: Callable[[int], object]) -> None:
        how(node)
        self.broken.discard(node)

    def slurm(self, *command: str) -> str:
        """Run a command that may fail, because its object may have changed."""
        return self.stage.cluster.run(*command, check=False) if self.stage.cluster.controller_running else ""

    def jobs(self) -> list[str]:
        """Return the pending and running jobs of the run."""
        return self.slurm("squeue", "-h", "-r", "-n", self.stage.setting.name, "-o", "%i").split()

    def supply(self) -> None:
        """Replace jobs that have ended by jobs of one node each."""
        if not self.stage.cluster.controller_running:
            return
        self.release()
        for _ in range(LEAST[self.stage.setting.shape] - len(self.jobs())):
            partition = self.dice.choice(PARTITIONS)
            self.report(f"one more job of one node, {partition}")
            self.stage.cluster.submit(
                JOIN.format(python=sys.executable, run=self.stage.run.directory),
                *("-N1", "--exclusive", "--requeue", "--no-kill", "-p", partition, "-J", self.stage.setting.name),
                *("-t5", "--signal=USR2@60"),
            )

    @contextlib.contextmanager
    def steering(self) -> Iterator[None]:
        """Report a user's request that cannot be fulfilled now, and continue."""
        try:
            yield
        except (ConfigError, SlurmError) as error:
            self.report(f"  but {str(error).splitlines()[0]}")

    def release(self) -> None:
        """Cancel jobs that SLURM holds because it has found a job started twice."""
        for line in self.slurm("squeue", "-h", "-r", "-t", "PD", "-o", "%i %r").splitlines():
            job, _, reason = line.partition(" ")
            if "held" in reason.lower():
                self.report(f"job {job} is held ({reason}): cancelled")
                self.slurm("scancel", job)


# ------------------------------------------------------------------------------------------------ faults


def kill_worker(storm: Storm) -> None:
    if ranks := sorted({note.rank for note in storm.stage.newest()}):
        rank = storm.dice.choice(ranks)
        storm.record_fault(f"the worker of rank {rank} is killed")
        storm.stage.kill_worker(rank)


def kill_agent(storm: Storm) -> None:
    names = read_leases(storm.stage.paths.leases)
    if nodes := sorted({storm.stage.number(name) for name in names}):
        node = storm.dice.choice(nodes)
        storm.record_fault(f"the agent of n{node} is killed")
        storm.stage.kill_agent(node)


def kill_node(storm: Storm) -> None:
    cluster = storm.stage.cluster
    if node := storm.node():
        how, what = storm.dice.choice([(cluster.kill_node, "is killed"), (cluster.power_off, "loses power")])
        storm.record_fault(f"n{node} {what}")
        how(node)
        storm.later(f"n{node} is started", lambda: storm.repair(node, cluster.start_node), 12.0)


def cut(storm: Storm) -> None:
    cluster = storm.stage.cluster
    if node := storm.node():
        storm.record_fault(f"the network of n{node} is cut")
        cluster.cut(node)
        storm.later(f"the network of n{node} is back", lambda: storm.repair(node, cluster.heal), 8.0)


def freeze(storm: Storm) -> None:
    """Never the whole group: if all workers of a round stop, they can do one more step together when they continue."""
    cluster = storm.stage.cluster
    if len({note.node for note in storm.stage.newest()}) > 2 and (node := storm.node()):
        storm.record_fault(f"n{node} is frozen, without network and filesystem")
        cluster.cut(node)
        cluster.freeze_node(node)
        storm.later(f"n{node} continues", lambda: storm.repair(node, thaw(cluster)), 8.0)


def thaw(cluster: SlurmCluster) -> Callable[[int], None]:
    def both(node: int) -> None:
        cluster.heal(node)
        cluster.thaw_node(node)

    return both


def down(storm: Storm) -> None:
    if storm.stage.cluster.controller_running and (node := storm.node()):
        state = storm.dice.choice(["down", "drain"])
        storm.record_fault(f"n{node} is set to {state}")
        storm.slurm("scontrol", "update", f"nodename=n{node}", f"state={state}", "reason=storm")
        storm.later(f"n{node} is resumed", lambda: storm.repair(node, lambda it: resume(storm, it)), 6.0)


def resume(storm: Storm, node: int) -> None:
    storm.slurm("scontrol", "update", f"nodename=n{node}", "state=resume")


def limit(storm: Storm) -> None:
    """A run that waits at its gate makes no progress, so it would not continue after a second time limit."""
    jobs = storm.slurm("squeue", "-h", "-r", "-t", "R", "-n", storm.stage.setting.name, "-o", "%i").split()
    if jobs and not any(note.kind == "waiting" for note in storm.stage.newest()):
        job, seconds = storm.dice.choice(jobs), storm.dice.randint(5, 60)
        storm.record_fault(f"the time limit of job {job} ends in {seconds} s")
        storm.slurm("scontrol", "update", f"jobid={job}", f"EndTime=now+{seconds}")


def drain(storm: Storm) -> None:
    node = f"n{storm.dice.randint(1, NODES)}"
    storm.record_fault(f"{node} is drained")
    with storm.steering():
        storm.stage.run.drain(node)
        storm.later(f"{node} is allowed again", lambda: undrain(storm, node), 6.0)


def undrain(storm: Storm, node: str) -> None:
    with storm.steering():
        storm.stage.run.drain(node, undo=True)


def scale(storm: Storm) -> None:
    nodes = storm.dice.randint(1, NODES)
    if storm.stage.cluster.controller_running:
        storm.record_fault(f"the run is scaled to {nodes}")
        with storm.steering():
            storm.stage.run.scale(nodes)


def checkpoint(storm: Storm) -> None:
    storm.record_fault("a checkpoint is requested")
    with storm.steering():
        storm.stage.run.checkpoint(anyway=storm.dice.random() < 0.2)


def requeue(storm: Storm) -> None:
    if jobs := storm.jobs():
        job = storm.dice.choice(jobs)
        storm.record_fault(f"job {job} is requeued")
        storm.slurm("scontrol", "requeue", job)


def cancel(storm: Storm) -> None:
    if jobs := storm.jobs():
        job = storm.dice.choice(jobs)
        storm.record_fault(f"job {job} is cancelled")
        storm.slurm("scancel", job)


def preempt(storm: Storm) -> None:
    nodes = storm.dice.choice([1, 2])
    if storm.stage.cluster.controller_running:
        storm.record_fault(f"another job preempts {nodes} nodes")
        seconds = storm.dice.uniform(1, 6)
        storm.stage.cluster.submit(f"sleep {seconds}", "-p", "high", "--exclusive", f"-N{nodes}", "-J", "high")


def controller(storm: Storm) -> None:
    cluster = storm.stage.cluster
    if cluster.controller_running:
        how, what = storm.dice.choice([(cluster.kill_controller, "killed"), (cluster.stop_controller, "ended")])
        storm.record_fault(f"the controller is {what}")
        how()
        storm.later("the controller is started", cluster.start_controller, 6.0)


FAULTS = (
    *(kill_worker, kill_worker, kill_agent, kill_node, kill_node, cut, freeze, down, requeue, cancel, preempt, preempt),
    *(limit, limit, drain, scale, checkpoint, controller),
)


# ------------------------------------------------------------------------------------------------ a whole storm


def run_storm(seconds: float, seed: int, shape: str, script: Path = SCRIPT) -> Verdict:
    """Train a run of ``script`` during a storm of so many seconds, and judge it."""
    print(f"seed {seed}, {shape}, {script.name}", flush=True)
    wanted = replace(setting(seconds, seed, shape), script=script)
    with SlurmCluster(NODES, extra_conf=CONF) as cluster, Stage(cluster, wanted) as stage:
        storm = Storm(stage, random.Random(seed))
        stage.until_step(1)
        stage.run.scale(NODES)
        storm.supply()
        storm.cause_faults(seconds)
        with storm.steering():
            stage.run.scale(NODES)
        verdict = stage.verdict(timeout=TIMEOUT + seconds)
        storm.release()
        with contextlib.suppress(TimeoutError):  # a late job finds that the run has ended, and ends
            stage.until("an empty queue", lambda: not cluster.jobs(), timeout=30.0)
        storm.release()
        stage.leaves_nothing()
        storm.report(
            f"survived: {verdict.rounds} rounds, {verdict.steps_lost} of {stage.plan.steps} steps trained again"
        )
        figures = stage.run.goodput()
        unknown = figures.node_seconds["unknown"] / figures.total
        storm.report(f"accounted for: goodput {figures.goodput or 0:.1%}, {unknown:.2%} of the node time is unknown")
        assert unknown <= UNKNOWN, unknown_time(stage.paths)
        return verdict


def unknown_time(paths: RunPaths) -> str:
    """Return the times of which the account does not know what they went into, the longest first, with the events of
    that node, and those of the others about it."""
    found = account_of(RunReader(paths))
    unknown = (segment for segment in found.segments if segment.category is Category.UNKNOWN)
    logs = [(node, event) for node, log in read_logs(paths.events).items() for event in log]
    lines = []
    for segment in sorted(unknown, key=lambda segment: -segment.duration):
        about = sorted(
            (event.time, node, str(event.event))
            for node, event in logs
            if node == segment.node or segment.node in str(event.event)
        )
        near = (each for each in about if abs(each[0] - segment.begin / SECOND) < _NEAR)
        lines += [str(segment), *(f"  {when:.3f} {node} {text[:200]}" for when, node, text in near)]
    return "\n".join(lines)


def setting(seconds: float, seed: int, shape: str) -> Setting:
    plan = Plan(steps=max(30, int(10 * seconds)), seed=seed)  # about as many as a run can do during a storm
    slurm: dict[str, object] = {
        "partition": PARTITIONS[seed // 2 % 2],
        "time": "5",
        "warning": 60,
        "poll": 2,
        "refill": 5,
    }
    max_nodes = ALLOCATED if shape == "allocation" else NODES
    return Setting(shape, f"1..{max_nodes}", plan=plan, slurm=slurm, restarts=10_000, total_time="UNLIMITED")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--shape", choices=SHAPES, default="")
    parser.add_argument("--elastic", action="store_true", help="keep the state in memory, as Elastic does")
    args = parser.parse_args()
    script = ELASTIC if args.elastic else SCRIPT
    run_storm(60 * args.minutes, args.seed, args.shape or SHAPES[args.seed % 2], script)


if __name__ == "__main__":
    main()
