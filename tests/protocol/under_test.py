"""Fresh copies of the code under test, so that a test can simulate its machine or insert a fault into its source."""

import builtins
import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

from tests.simulation.system import System

DECIDE, ASSIGNMENT = "hpcelastic.protocol.decide", "hpcelastic.protocol.assignment"
RANKING, GROUPS = "hpcelastic.protocol.ranking", "hpcelastic.protocol.groups"
BUDGET, EXAMINATION = "hpcelastic.protocol.budget", "hpcelastic.protocol.hangs"
HANGS = "hpcelastic.health.hangs"
ROLLBACK, STRAGGLERS = "hpcelastic.protocol.rollback", "hpcelastic.health.stragglers"
LEADERS, POLLING = "hpcelastic.protocol.leaders", "hpcelastic.protocol.polling"
LIVENESS, PUBLICATIONS = "hpcelastic.protocol.liveness", "hpcelastic.protocol.publications"
FILES, LEASES = "hpcelastic.storage.files", "hpcelastic.storage.leases"
LEASE_NAMES = "hpcelastic.storage.lease_names"
REGISTER, KEYVALUE = "hpcelastic.storage.register", "hpcelastic.storage.keyvalue"
MODES = "hpcelastic.storage.modes"
RENDEZVOUS, THREAD = "hpcelastic.rendezvous.rendezvous", "hpcelastic.rendezvous.thread"
KNOWN, OBSERVED_LEASES = "hpcelastic.rendezvous.known", "hpcelastic.rendezvous.observed_leases"
RUN, LEASE_KEEPER = "hpcelastic.rendezvous.run", "hpcelastic.rendezvous.lease_keeper"
SUSPICION, PROBES = "hpcelastic.rendezvous.suspicion", "hpcelastic.rendezvous.probes"
TURNS, LEASE_DURATION = "hpcelastic.rendezvous.turns", "hpcelastic.protocol.lease_duration"
HISTORY, GUARD, NODE = "hpcelastic.storage.history", "hpcelastic.agent.guard_main", "hpcelastic.protocol.node"
SIGNAL_RESOLUTION, REQUEUE = "hpcelastic.agent.signal_resolution", "hpcelastic.slurm.requeue"
CONNECT, FILE_BACKEND = "hpcelastic.backends.connect", "hpcelastic.backends.files"
FENCE, PUBLISH = "hpcelastic.training.fence", "hpcelastic.training.publish"
ELASTIC, RECOVERY, ROUNDS = (
    "hpcelastic.training.elastic",
    "hpcelastic.training.recovery",
    "hpcelastic.training.rounds",
)
WORKERS = "hpcelastic.agent.workers"
IDLE_WORKERS, SNAPSHOT_WRITER = "hpcelastic.agent.idle_workers", "hpcelastic.agent.snapshot_writer"
SNAPSHOTS, SNAPSHOT_COPIES = "hpcelastic.agent.snapshots", "hpcelastic.agent.snapshot_copies"
KEPT_SNAPSHOTS, SLOTS = "hpcelastic.agent.kept_snapshots", "hpcelastic.training.slots"
CHECKPOINT_FILES, RETENTION = "hpcelastic.training.checkpoint_files", "hpcelastic.training.retention"
LOADING = "hpcelastic.training.loading"
JOURNAL, ROUND_FACTS = "hpcelastic.accounting.journal", "hpcelastic.accounting.rounds"
SEGMENTS, EVIDENCE = "hpcelastic.accounting.segments", "hpcelastic.accounting.evidence"
EXPLANATION, ACCOUNT = "hpcelastic.accounting.explanation", "hpcelastic.accounting.account"
FOLDED, EVENT_LOG = "hpcelastic.accounting.folded", "hpcelastic.storage.events"
OLD_ROUNDS, RUN_ACCOUNTS = "hpcelastic.agent.old_rounds", "hpcelastic.api.accounts"
CHANNEL, TRANSFER = "hpcelastic.network.channel", "hpcelastic.network.transfer"

_AS_THEY_ARE = {
    "hpcelastic.errors",
    "hpcelastic.protocol.findings",
    "hpcelastic.protocol.peers",
    "hpcelastic.protocol.rows",
    "hpcelastic.protocol.settings",
    "hpcelastic.protocol.state",
    "hpcelastic.training.token",
}
"""Modules of values, which the tests share with the code under test; and one without effect outside a worker."""


@dataclass(frozen=True)
class Patch:
    """One edit of a module's source. ``old`` must occur exactly once, so that an outdated patch is detected."""

    module: str
    old: str
    new: str

    def applied(self, text: str) -> str:
        """Return the module's ``text`` with the edit. Raises ValueError unless its place occurs exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.module}: {self.old!r} occurs {text.count(self.old)} times, not once")
        return text.replace(self.old, self.new)


class Code:
    """Fresh copies of modules with ``patches`` in their source. They import each other and the simulated modules."""

    def __init__(self, patches: tuple[Patch, ...]) -> None:
        self.system = System()
        self._patches = patches
        self._modules: dict[str, Any] = dict(self.system.modules())
        self._builtins = {**vars(builtins), "__import__": self._import}
        for patch in patches:
            self.module(patch.module)

    def module(self, name: str) -> Any:
        """Return a module of hpcelastic or a simulated module."""
        if name not in self._modules:
            self._modules[name] = module = ModuleType(name)
            vars(module).update(__builtins__=self._builtins, __package__=name.rpartition(".")[0])
            exec(_compiled(name, tuple(p for p in self._patches if p.module == name)), vars(module))
        return self._modules[name]

    def tests(self, name: str) -> ModuleType:
        """Return a fresh copy of a test module that imports this code."""
        module = ModuleType(name)
        vars(module).update(__builtins__=self._builtins, __package__=name.rpartition(".")[0])
        exec(_compiled(name, ()), vars(module))
        return module

    @property
    def decide(self) -> Any:
        return self.module(DECIDE)

    @property
    def assignment(self) -> Any:
        return self.module(ASSIGNMENT)

    def _import(self, name: str, scope: Any = None, local: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if level:
            name = f"{scope['__package__'].rsplit('.', level - 1)[0]}.{name}" if name else scope["__package__"]
        if name in self._modules:
            return self._modules[name]
        if name.partition(".")[0] != "hpcelastic" or name in _AS_THEY_ARE:
            return importlib.__import__(name, scope, local, fromlist, 0)
        if _is_package(name):
            return SimpleNamespace(**{item: self.module(f"{name}.{item}") for item in fromlist})
        return self.module(name)


@cache
def load(*patches: Patch) -> Code:
    """Return the code with ``patches``."""
    return Code(patches)


@cache
def _is_package(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.submodule_search_locations is not None


@cache
def _compiled(name: str, patches: tuple[Patch, ...]) -> CodeType:
    path = source(name)
    text = path.read_text()
    for patch in patches:
        text = patch.applied(text)
    return compile(text, path, "exec")


def source(name: str) -> Path:
    """Return the file of a module of hpcelastic."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin)
