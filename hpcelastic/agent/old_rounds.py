"""The removal of what a run no longer needs: what belongs to old rounds, and files of agents that have ended.

The account of old rounds is left in the run's directory by each command that computes one. In a long run, the agent of
group rank 0 starts such a command now and then, with the lowest priority. Then it removes the files of agents that have
ended. Each agent removes the events of these rounds from its own log; see `hpcelastic.storage.events.EventLog`.

Each look at the leases lists those of all agents, so those of an earlier start of a job are removed after its restart.
"""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hpcelastic.agent.settings import LogSettings
from hpcelastic.backends.backend import Backend
from hpcelastic.errors import StoreError
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.protocol.codec import decode
from hpcelastic.protocol.state import Member, job_start
from hpcelastic.storage import files
from hpcelastic.storage.errnos import as_store_error
from hpcelastic.storage.paths import RunPaths, safe_name
from hpcelastic.storage.round_directories import remove_rounds

if TYPE_CHECKING:
    from hpcelastic.accounting import Fold

_NODE_ROUNDS = 50_000
"""The number of rounds times nodes after which the account is folded. Their events take about 50 MB."""

_LEAST, _MOST = 20, 1000
"""The rounds after which the account is folded, at least and at most."""

_PAUSE = 60.0
"""Seconds from the beginning of a round until leases are removed and the account is folded, so that this does not delay
the workers."""


class OldRounds:
    """Removes what is no longer needed of a run, which ``backend`` keeps. ``keep`` is `LogSettings.keep_rounds`."""

    def __init__(self, paths: RunPaths, backend: Backend, keep: int | None = LogSettings.keep_rounds) -> None:
        self._paths, self._backend, self._keep = paths, backend, keep
        self._newest = 0
        self._swept = False
        """Whether this node has removed the leases of earlier starts of the jobs."""

        self._ended = threading.Event()

    def begin(self, part: Assignment) -> None:
        """Begin a round: remove the stores of rounds long ended, and the logs and reports that need not stay.

        Only the node with group rank 0 does so. It returns at once.
        """
        self._newest = part.round
        if part.group_rank == 0:  # in a daemon thread: there may be many files, on a filesystem that may hang
            threading.Thread(target=self._sweep, args=(part,), name="sweep", daemon=True).start()

    def end(self) -> None:
        """End the pause before a removal of leases, which does not begin: the backend may be closed."""
        self._ended.set()

    def first_needed(self) -> int:
        """Return the first round whose events stay in the event logs. Raises StoreError."""
        if self._keep is None:
            return 0
        folded = read_fold(self._paths)
        return min(folded.kept, self._newest - self._keep + 1) if folded else 0

    def _sweep(self, part: Assignment) -> None:
        remove_rounds(self._paths.stores, part.round - 2)
        if self._keep is not None:
            for directory in (self._paths.logs, self._paths.hangs):
                remove_rounds(directory, part.round - self._keep)
        folds = self._keep is not None and part.round % fold_interval(part.group_world_size) == 0
        if self._swept and not folds:
            return
        self._swept = True
        if self._ended.wait(_PAUSE):
            return
        with contextlib.suppress(StoreError, OSError):
            self._backend.remove_leases(superseded(lease.member for lease in self._backend.leases().values()))
            if self._keep is not None and folds:
                self._fold_account()
                remove_ended_agents(self._paths, self._backend, part.round - self._keep + 1)

    def _fold_account(self) -> None:
        command = ["nice", "-n", "19", sys.executable, "-m", "hpcelastic", "goodput", str(self._paths.root)]
        subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        )


def fold_interval(nodes: int) -> int:
    """Return the number of rounds after which the account of a run on ``nodes`` nodes is folded."""
    return min(_MOST, max(_LEAST, _NODE_ROUNDS // nodes))


def remove_ended_agents(paths: RunPaths, backend: Backend, first: int) -> None:
    """Remove the leases and work fractions of all ended agents in the account, and the logs of those that ended before
    round ``first``.

    Raises StoreError if a file of the run cannot be read, and OSError if one cannot be removed.
    """
    folded = read_fold(paths)
    if folded is None:
        return
    ended = {agent.node: agent.ended_before for agent in folded.ended}
    backend.remove_leases(ended)
    owners = {safe_name(node) for node in ended}
    for name in files.names(paths.work_fractions):
        if paths.owner_of_fraction(name) in owners:
            (paths.work_fractions / name).unlink(missing_ok=True)
    for node, round in ended.items():
        if round <= first:
            paths.totals_of(node).unlink(missing_ok=True)
            paths.event_log(node).unlink(missing_ok=True)


def superseded(members: Iterable[Member]) -> list[str]:
    """Return the agents of jobs that SLURM has started again since then."""
    starts = {member.node: job_start(member.job) for member in members}
    newest: dict[str, int] = {}
    for job, restart in starts.values():
        newest[job] = max(restart, newest.get(job, 0))
    return [node for node, (job, restart) in starts.items() if restart < newest[job]]


def read_fold(paths: RunPaths) -> "Fold | None":
    """Return the account of the first rounds that a command has left; None if there is none for this version.

    Raises StoreError if it cannot be read: the events of these rounds may be removed.
    """
    with as_store_error(paths.account):
        data = files.read(paths.account)
    if data is None:
        return None
    from hpcelastic.accounting import Fold  # here, because few agents need it, and all start

    try:
        return decode(Fold, json.loads(data))
    except ValueError:
        return None
