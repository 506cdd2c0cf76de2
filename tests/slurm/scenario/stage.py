"""A run of the scenarios' script on a test cluster, with functions for faults and for the judgement of its end."""

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import hpcelastic
from hpcelastic.api.run import Run
from hpcelastic.config.job import node_range
from hpcelastic.protocol.codec import decode
from hpcelastic.protocol.events import WorkersStarted
from hpcelastic.protocol.state import Phase, State
from hpcelastic.storage.events import read_events
from hpcelastic.storage.leases import read_leases
from hpcelastic.storage.paths import RunPaths
from hpcelastic.storage.register import Register
from tests.cluster import SlurmCluster
from tests.slurm.scenario.judge import Begin, Evidence, Fault, Refusal, Verdict, judge
from tests.slurm.scenario.plan import Plan, undisturbed
from tests.slurm.scenario.trace import Note, read_trace

T = TypeVar("T")

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("train.py")
ELASTIC = Path(__file__).with_name("train_elastic.py")
"""A script that keeps its state in memory over rounds."""

TIMEOUT = 90.0
"""Time limit for each expected event in seconds. It is long, because the machine may be busy with other tests."""

SHAPES = ("allocation", "pool")
_QUICK = {"lease": 2, "margin": 0.5, "poll": 0.1, "last_call": 1, "join_timeout": 80}


@dataclass(frozen=True)
class Setting:
    """The parameters of a submission."""

    shape: str = "allocation"
    nodes: str = "2..4"
    plan: Plan = field(default_factory=Plan)
    name: str = "run"
    slurm: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of `slurm`. With ``memory``, agents share nodes with other jobs."""

    spares: int = 0
    total_time: str | None = None
    restarts: int = 3
    script: Path = SCRIPT

    def job(self, directory: Path) -> dict[str, Any]:
        began = f'echo "$SLURMD_NODENAME $(date +%s.%N)" >> {directory}/{self.name}-jobs'
        alone = (
            {} if "memory" in self.slurm else {"options": {"exclusive": True}}
        )  # each element of a pool has a node of its own
        return {
            "run": {"name": self.name, "directory": str(directory), "total_time": self.total_time},
            "entrypoint": {"script": str(self.script), "args": self.plan.arguments},
            "nodes": {**vars(node_range(self.nodes)), "spares": self.spares},
            "health": {"command": f"test ! -e {directory}/bad-$SLURMD_NODENAME"},
            "workers": {"per_node": 1, "stop_grace": 2},
            "rendezvous": _QUICK,
            "restarts": {"max": self.restarts},
            "slurm": {"shape": self.shape, **alone, **self.slurm, "setup": [began, *self.slurm.get("setup", ())]},
        }


class Stage:
    """A run from its submission to its end. On exit of the context, all that is left of it is ended."""

    def __init__(self, cluster: SlurmCluster, setting: Setting) -> None:
        self.cluster, self.setting, self.plan = cluster, setting, setting.plan
        self.faults: list[Fault] = []
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> "Stage":
        self._exits.enter_context(login(self.cluster))
        self.run: Run = hpcelastic.submit(self.setting.job(self.cluster.path / "runs"))
        self.paths = RunPaths(self.run.directory)
        return self

    def resume(self) -> None:
        """Resume the run once its jobs have ended."""
        self.run = hpcelastic.submit(self.setting.job(self.cluster.path / "runs"), resume=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()

    # ------------------------------------------------------------------------------------------------ what is seen

    def job_on(self, node: int) -> str:
        """Return the run's job, or element of a pool, on a node."""
        return self.cluster.run("squeue", "-h", "-r", "-n", self.setting.name, "-w", f"n{node}", "-o", "%i").split()[0]

    def job_states(self) -> set[str]:
        """Return the states of the run's jobs, or of the elements of its pool."""
        shown = (self.cluster.run("scontrol", "show", "job", "-o", job) for job in self.run.status().jobs)
        return {state for text in shown for state in re.findall(r"\bJobState=(\w+)", text)}

    def notes(self) -> list[Note]:
        return read_trace(self.run.directory / "trace")

    def newest(self) -> list[Note]:
        """Return the notes of the newest round, ordered by time."""
        return read_trace(self.run.directory / "trace", newest=True)

    def node_of(self, rank: int) -> int:
        """Return the number of the node that has a rank in the newest round."""
        return self.number(next(note.node for note in self.newest() if note.rank == rank))

    @staticmethod
    def number(node: str) -> int:
        """Return 3 for ``n3``, for the element of a pool ``n3_1``, and for ``n3@INCARNATION``."""
        return int(re.findall(r"\d+", node)[0])

    @property
    def alive(self) -> list[int]:
        """Return the numbers of the nodes that have power."""
        return [number for number in range(1, len(self.cluster.nodes) + 1) if self.cluster.node_running(number)]

    def until(self, what: str, poll: Callable[[], T], timeout: float = TIMEOUT) -> T:
        """Call ``poll`` until its result is true, and return the result."""
        deadline = time.monotonic() + timeout
        while not (found := poll()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {timeout:g} s for {what}\n{self.describe()}")
            time.sleep(0.05)
        return found

    def until_step(self, step: int, after_round: int = 0) -> int:
        """Wait until a round after ``after_round`` has done the step or a later one. Return the number of that
        round."""

        def poll() -> int:
            done = (note for note in self.notes() if note.progress and note.round > after_round and note.step >= step)
            return max((note.round for note in done), default=0)

        return self.until(f"step {step} of a round after {after_round}", poll)

    def until_world(self, size: int, after_round: int = 0) -> int:
        """Wait until a round after ``after_round`` with that number of ranks trains. Return its number."""

        def poll() -> int:
            newest = [note for note in self.newest() if note.progress and note.world_size == size]
            return newest[0].round if newest and newest[0].round > after_round else 0

        return self.until(f"a round of {size} ranks", poll)

    def describe(self) -> str:
        """Describe the state of the run and the last output of its agents, for the message of a failure."""
        logs = (path.read_text(errors="replace").splitlines()[-8:] for path in sorted(self._logs()))
        lines = [repr(self.run), self.cluster.run("squeue", check=False), *(line for log in logs for line in log)]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes()[-6:])])

    def _logs(self) -> Iterator[Path]:
        return self.paths.slurm.rglob("*_log.*")

    # ------------------------------------------------------------------------------------------------ what is done

    def record_fault(self, name: str) -> None:
        """Record a fault of the run, with the present time."""
        self.faults.append(Fault(name, time.monotonic()))

    def make_bad(self, node: int) -> None:
        """From now on the check of the node fails."""
        (self.paths.root.parent / f"bad-n{node}").touch()

    def kill_worker(self, rank: int) -> None:
        note = next(note for note in self.newest() if note.rank == rank)
        self._kill(self.number(note.node), note.pid)

    def kill_agent(self, node: int) -> None:
        """Kill the agent, but neither its workers nor its guard."""
        found = read_leases(self.paths.leases, processes=True)
        for lease in (lease for name, lease in found.items() if self.number(name) == node):
            self._kill(node, int(lease.member.process.split(":")[2]))

    def _kill(self, node: int, inner: int) -> None:
        if pid := self.cluster.pid_of(node, inner):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # ------------------------------------------------------------------------------------------------ how it ends

    def verdict(self, timeout: float = TIMEOUT) -> Verdict:
        """Wait for the end of the run and judge it. Raises Refusal if its end is not that of an undisturbed run."""
        (self.run.directory / "finish").touch()
        status = self.until("the end of the run", self._ended, timeout)
        if status.phase != Phase.SUCCEEDED.value:
            raise Refusal(f"the run has {status.phase}: {status.reason}\n{self.describe()}")
        try:
            return judge(self.evidence())
        except Refusal as refusal:
            raise Refusal(f"{refusal}\n{self.describe()}") from None

    def _ended(self) -> Any:
        status = self.run.status()
        return status if status.ended else None

    def leaves_nothing(self) -> None:
        """Check that no job is in the queue and no process on any node."""
        self.until("an empty queue", lambda: not self.cluster.jobs())
        self.until("no process left", lambda: not self.left())

    def left(self) -> dict[int, set[int]]:
        """Return the living processes of the run by node."""
        left = {node: self.cluster.user_pids(node) for node in self.alive}
        return {node: pids for node, pids in left.items() if pids}

    def evidence(self) -> Evidence:
        starts: dict[int, float] = {}
        for logged in read_events(self.paths.events):
            if isinstance(logged.event, WorkersStarted):
                starts.setdefault(logged.event.round, logged.time)
        return Evidence(
            notes=self.notes(),
            result=json.loads((self.run.directory / "result.json").read_text()),
            members=members(self.paths),
            steps=self.plan.steps,
            digest=undisturbed(self.plan),
            starts=starts,
            published={path.name: path.stat().st_ctime for path in self.run.directory.glob("checkpoints/round-*.pt")},
            jobs=self._jobs_begun(),
            faults=self.faults,
            in_memory=self.setting.script == ELASTIC,
        )

    def _jobs_begun(self) -> list[Begin]:
        lines = self.paths.root.with_name(f"{self.setting.name}-jobs").read_text().splitlines()
        return [Begin(node, float(when)) for node, when in (line.split() for line in lines)]


def members(paths: RunPaths) -> dict[int, tuple[str, ...]]:
    """Return by round the names of the nodes that versions of the register have in it, in the order of ranks."""
    register = Register(paths.register, "judge")
    states = [decode(State, register.version(number).value) for number in register.numbers()]
    return {state.round: tuple(p.name for p in state.participants) for state in states}


@contextlib.contextmanager
def login(cluster: SlurmCluster) -> Iterator[None]:
    """Give this process the environment of a user on the login node who works in the project."""
    before = dict(os.environ)
    os.environ.update({**cluster.env, "PYTHONPATH": str(ROOT)})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
