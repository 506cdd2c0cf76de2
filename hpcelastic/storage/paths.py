"""The paths in a run's directory."""

import re
from dataclasses import dataclass
from pathlib import Path

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class RunPaths:
    """The layout of the run's directory ``root``, which holds everything that one run writes. ``cat`` can read it."""

    root: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.root / "config.json"

    @property
    def submissions(self) -> Path:
        """The records of the submissions of the run."""
        return self.root / "submissions"

    def submission(self, number: int) -> Path:
        """One submission: the state of the code, and its copy if the job wants one."""
        return self.submissions / f"{number:04d}"

    @property
    def filesystem(self) -> Path:
        """The verdict on the filesystem that all agents of the run use."""
        return self.root / "filesystem.json"

    @property
    def register(self) -> Path:
        """The newest versions of the rendezvous register: the run's history."""
        return self.root / "rendezvous" / "versions"

    @property
    def backend(self) -> Path:
        """The server that keeps the rendezvous; absent if this directory keeps it."""
        return self.root / "rendezvous" / "backend.json"

    @property
    def server(self) -> Path:
        """The address of the run's server if the user does not name it; see `ServerAddress`."""
        return self.root / "rendezvous" / "server.json"

    @property
    def known(self) -> Path:
        """The first state of a run that is kept in a server; its final state after the end. See `StateCopies`."""
        return self.root / "rendezvous" / "known.json"

    @property
    def newest(self) -> Path:
        """The newest state of a run that is kept in a server; see `StateCopies`."""
        return self.root / "rendezvous" / "newest.json"

    @property
    def leases(self) -> Path:
        """One lease for each node and incarnation."""
        return self.root / "rendezvous" / "nodes"

    @property
    def key(self) -> Path:
        """The key that authenticates messages between agents of the run."""
        return self.root / "rendezvous" / "key"

    @property
    def race(self) -> Path:
        """Names that agents try to create at the same time when they start, as a test of the filesystem."""
        return self.root / "rendezvous" / "race"

    @property
    def checks(self) -> Path:
        """Directories in which nodes check the filesystem before they join, one for each node."""
        return self.root / "rendezvous" / "checks"

    @property
    def incidents(self) -> Path:
        """Incidents on nodes, one file each."""
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
    def training_totals(self) -> Path:
        """The totals of the training in the newest round, one file for each of the first nodes of a round."""
        return self.root / "training-totals"

    def totals_of(self, node: str) -> Path:
        """The totals of one node: lines as in its event log, whose name is the same."""
        return self.training_totals / self.event_log(node).name

    @property
    def mailbox(self) -> Path:
        """Requests of the group of a shared run; only there the group may write."""
        return self.root / "group" / "requests"

    @property
    def taken_requests(self) -> Path:
        """Requests that an agent executes."""
        return self.root / "group" / "taken"

    @property
    def answers(self) -> Path:
        """Answers to the requests of the group."""
        return self.root / "group" / "answers"

    @property
    def account(self) -> Path:
        """The account of old rounds, so that their events need not be read again."""
        return self.root / "account.json"

    @property
    def job_ends(self) -> Path:
        """SLURM's states of the jobs of a run whose agents have all disappeared."""
        return self.root / "job-ends.json"

    @property
    def notifications(self) -> Path:
        """The notifications of people that an agent has sent, or has begun to send, one file each."""
        return self.root / "notifications"

    @property
    def logs(self) -> Path:
        """Worker logs for each round and rank."""
        return self.root / "logs"

    def round_logs(self, round: int) -> Path:
        return self.logs / f"round-{round:04d}"

    @property
    def early_logs(self) -> Path:
        """Logs of workers that have no place in a round yet."""
        return self.logs / "early"

    def log(self, round: int, rank: int, stream: str) -> Path:
        """Log of one worker; ``stream`` is ``out`` or ``err``."""
        return self.round_logs(round) / f"rank-{rank:05d}.{stream}"

    def early_log(self, node: str, local_rank: int, stream: str) -> Path:
        """Log of one worker before it has a place in a round."""
        return self.early_logs / f"{node}.{local_rank:05d}.{stream}"

    def matches(self, round: int, node: str, stream: str) -> Path:
        """The log lines of one node's workers that match a search text."""
        return self.round_logs(round) / f"match-{node}.{stream}"

    def error_file(self, round: int, rank: int) -> Path:
        """The exception of a worker, in the format of torch's ``@record``."""
        return self.round_logs(round) / f"rank-{rank:05d}.error.json"

    def stacks(self, request: int, node: str) -> Path:
        """The stacks of one node's workers, which a user has requested."""
        return self.root / "stacks" / f"{request:04d}" / f"{safe_name(node)}.txt"

    @property
    def hangs(self) -> Path:
        """The reports on rounds that made no progress, one directory for each round."""
        return self.root / "hangs"

    def hang(self, round: int, number: int) -> Path:
        """The directory with the reports of all nodes on a round that makes no progress, and the verdict."""
        return self.hangs / f"round-{round:04d}" / f"{number:02d}"

    def hang_report(self, round: int, number: int, node: str, kind: str) -> Path:
        """The report of one node; ``kind`` is ``json`` for the facts and ``txt`` for the stacks."""
        return self.hang(round, number) / f"{safe_name(node)}.{kind}"

    @property
    def work_fractions(self) -> Path:
        """The parts of their time in which workers work, one file for each node."""
        return self.root / "work-fractions"

    def work_fraction(self, node: str, number: int) -> Path:
        """The work fractions of the workers of one node; ``number`` grows with each replacement."""
        return self.work_fractions / f"{safe_name(node)}.{number:06d}.json"

    @staticmethod
    def owner_of_fraction(name: str) -> str:
        """Return the `safe_name` of the node whose work fractions are in the file ``name``."""
        return name.removesuffix(".json").rpartition(".")[0]

    @property
    def facts(self) -> Path:
        """The key-value store of the whole run, for the user's script."""
        return self.root / "facts"

    @property
    def results(self) -> Path:
        """Return values of the entry point, and exceptions."""
        return self.root / "results"

    def result(self, round: int, rank: int) -> Path:
        """Return value of one rank, without suffix."""
        return self.results / f"round-{round:04d}.rank-{rank:05d}"

    def exception(self, round: int, rank: int) -> Path:
        """The exception of the entry point on one rank, if it can be pickled."""
        return self.results / f"round-{round:04d}.rank-{rank:05d}.exception.pkl"

    @property
    def function(self) -> Path:
        """The entry point, if it is a Python function."""
        return self.root / "function.pkl"

    def call(self, name: str) -> Path:
        """The entry point of one agent, if it is a Python function and each agent has its own."""
        return self.root / "calls" / f"{name}.pkl"

    @property
    def point(self) -> Path:
        """The settings of this run of a sweep that differ from the other runs."""
        return self.root / "point.json"

    @property
    def slurm(self) -> Path:
        """The submitted sbatch text, and the files of submitit."""
        return self.root / "slurm"

    @property
    def requeues(self) -> Path:
        """Records of the incarnations of jobs that their own agents have requeued."""
        return self.slurm / "requeues"

    def requeue(self, job: str, restart: int) -> Path:
        """The record of one requeued incarnation."""
        return self.requeues / f"{job}.{restart}.json"

    def requeue_request(self, job: str, restart: int) -> Path:
        """The request of an agent to the batch script of its job to requeue the job."""
        return self.slurm / f"requeue-{job}.{restart}"

    def success(self, job: str, restart: int) -> Path:
        """The message of an agent to the batch script of its job that the run has succeeded."""
        return self.slurm / f"succeeded-{job}.{restart}"

    @property
    def jobs(self) -> Path:
        """The SLURM jobs that were submitted for the run, one line of JSON each."""
        return self.slurm / "jobs.jsonl"


def doctor_verdict(directory: Path) -> Path:
    """Return the path of the verdict of `hpcelastic doctor` on the filesystem of the runs in ``directory``."""
    return directory / ".hpcelastic-filesystem.json"


def benchmark_baseline(directory: Path) -> Path:
    """Return the path of the best medians that benchmarks of nodes have measured for the runs in ``directory``."""
    return directory / ".hpcelastic-benchmark.json"


def run_registry(state: Path) -> Path:
    """Return the directory that lists the user's runs, in the user's state directory ``state``."""
    return state / "hpcelastic" / "runs"


RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""The pattern of a run's name, which is also the name of its directory."""


def safe_name(name: str) -> str:
    """Return ``name`` with all characters replaced that some filesystem does not allow in a file name."""
    return _UNSAFE.sub("-", name) or "node"
