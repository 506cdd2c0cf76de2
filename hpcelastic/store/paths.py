"""Every path in a run's directory."""

import re
from dataclasses import dataclass
from pathlib import Path

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class RunPaths:
    """The layout of the run's directory ``root``: one run, everything that it leaves, readable with ``cat``."""

    root: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.root / "config.json"

    @property
    def filesystem(self) -> Path:
        """The verdict on the filesystem that all agents of the run use."""
        return self.root / "filesystem.json"

    @property
    def register(self) -> Path:
        """Versions of the rendezvous register: the run's history."""
        return self.root / "rendezvous" / "versions"

    @property
    def backend(self) -> Path:
        """Which server the rendezvous is kept in; absent if that is this directory."""
        return self.root / "rendezvous" / "backend.json"

    @property
    def server(self) -> Path:
        """The address of the run's server where the user does not name it: see `ServerAddress`."""
        return self.root / "rendezvous" / "server.json"

    @property
    def known(self) -> Path:
        """The first state of a run that is kept in a server, once the run has ended its last: see `StateCopies`."""
        return self.root / "rendezvous" / "known.json"

    @property
    def newest(self) -> Path:
        """The newest state of a run that is kept in a server: see `StateCopies`."""
        return self.root / "rendezvous" / "newest.json"

    @property
    def leases(self) -> Path:
        """One lease for each node and incarnation."""
        return self.root / "rendezvous" / "nodes"

    @property
    def key(self) -> Path:
        """The key by which agents of the run know each other's messages."""
        return self.root / "rendezvous" / "key"

    @property
    def race(self) -> Path:
        """Names for which agents race when they start."""
        return self.root / "rendezvous" / "race"

    @property
    def incidents(self) -> Path:
        """What went wrong on nodes, one file for each time."""
        return self.root / "incidents"

    @property
    def stores(self) -> Path:
        """The key-value stores of the rounds."""
        return self.root / "rendezvous" / "store"

    def store(self, round: int) -> Path:
        """The key-value store that the workers of a round share."""
        return self.stores / f"round-{round:04d}"

    @property
    def events(self) -> Path:
        """One JSON-lines log for each agent."""
        return self.root / "events"

    def event_log(self, node: str) -> Path:
        return self.events / f"{node}.jsonl"

    @property
    def logs(self) -> Path:
        """Worker logs for each round and rank."""
        return self.root / "logs"

    def round_logs(self, round: int) -> Path:
        return self.logs / f"round-{round:04d}"

    def log(self, round: int, rank: int, stream: str) -> Path:
        """Log of one worker; ``stream`` is ``out`` or ``err``."""
        return self.round_logs(round) / f"rank-{rank:05d}.{stream}"

    def matches(self, round: int, node: str, stream: str) -> Path:
        """Lines of the workers of one node that have a text that is looked for."""
        return self.round_logs(round) / f"match-{node}.{stream}"

    def error_file(self, round: int, rank: int) -> Path:
        """Where a worker writes its exception, in the format of torch's ``@record``."""
        return self.round_logs(round) / f"rank-{rank:05d}.error.json"

    @property
    def facts(self) -> Path:
        """The store of the whole run, for the user's own facts."""
        return self.root / "facts"

    @property
    def results(self) -> Path:
        """Return values of the entry point, and exceptions."""
        return self.root / "results"

    def result(self, round: int, rank: int) -> Path:
        """Return value of one rank, without suffix."""
        return self.results / f"round-{round:04d}.rank-{rank:05d}"

    def exception(self, round: int, rank: int) -> Path:
        """What the entry point raised on one rank, if that can be pickled."""
        return self.results / f"round-{round:04d}.rank-{rank:05d}.exception.pkl"

    @property
    def function(self) -> Path:
        """The entry point, where it was given as a Python function."""
        return self.root / "function.pkl"

    def call(self, name: str) -> Path:
        """The entry point that one agent was given as a Python function, where each has its own."""
        return self.root / "calls" / f"{name}.pkl"

    @property
    def point(self) -> Path:
        """What this run of a sweep has otherwise than the others."""
        return self.root / "point.json"

    @property
    def slurm(self) -> Path:
        """What was submitted: the sbatch text, and submitit's files."""
        return self.root / "slurm"

    @property
    def requeues(self) -> Path:
        """Incarnations of jobs that their own agents have requeued."""
        return self.slurm / "requeues"

    def requeue(self, job: str, restart: int) -> Path:
        """Record of one of them."""
        return self.requeues / f"{job}.{restart}.json"

    def wish(self, job: str, restart: int) -> Path:
        """Left by an agent for the batch script of its job, which is then to requeue it."""
        return self.slurm / f"requeue-{job}.{restart}"

    def success(self, job: str, restart: int) -> Path:
        """Left by an agent for the batch script of its job, whose run has succeeded."""
        return self.slurm / f"succeeded-{job}.{restart}"

    @property
    def jobs(self) -> Path:
        """SLURM jobs that were submitted for the run, one line of JSON each."""
        return self.slurm / "jobs.jsonl"


def doctors_verdict(directory: Path) -> Path:
    """Where `hpcelastic doctor` leaves its verdict for the runs that are kept in ``directory``."""
    return directory / ".hpcelastic-filesystem.json"


def noted_runs(state: Path) -> Path:
    """Where the runs that a person has started are noted, in the directory ``state`` for what programs remember."""
    return state / "hpcelastic" / "runs"


def safe_name(name: str) -> str:
    """``name`` with everything replaced that can't stand in a file name on every filesystem."""
    return _UNSAFE.sub("-", name) or "node"
