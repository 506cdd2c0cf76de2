"""What a run no longer needs of its old rounds: stores, logs of workers, events, and files of agents that have ended.

The account of old rounds is left in the run's directory by each command that computes one. In a long run, the agent of
group rank 0 starts such a command now and then, with the lowest priority. Then it removes the files of agents that have
ended long ago. Each agent removes the events of these rounds from its own log; see
`hpcelastic.storage.events.EventLog`.
"""

import contextlib
import json
import subprocess
import sys
import threading
import time

from hpcelastic.accounting import Fold
from hpcelastic.agent.settings import LogSettings
from hpcelastic.errors import StoreError
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.protocol.codec import decode
from hpcelastic.storage import files
from hpcelastic.storage.errnos import as_store_error
from hpcelastic.storage.lease_names import parse
from hpcelastic.storage.paths import RunPaths
from hpcelastic.storage.round_directories import remove_rounds

_NODE_ROUNDS = 50_000
"""The number of rounds times nodes after which the account is folded. Their events take about 50 MB."""

_LEAST, _MOST = 20, 1000
"""The rounds after which the account is folded, at least and at most."""

_PAUSE = 60.0
"""Seconds from the beginning of a round to the start of the command, so that it does not delay the workers."""


class OldRounds:
    """Removes what is no longer needed of a run. ``keep`` is `LogSettings.keep_rounds`."""

    def __init__(self, paths: RunPaths, keep: int | None = LogSettings.keep_rounds) -> None:
        self._paths, self._keep = paths, keep
        self._newest = 0

    def begin(self, part: Assignment) -> None:
        """Begin a round: remove the stores of rounds long ended, and the logs and reports that need not stay.

        Only the node with group rank 0 does so. It returns at once.
        """
        self._newest = part.round
        if part.group_rank == 0:  # in a daemon thread: there may be many files, on a filesystem that may hang
            threading.Thread(target=self._sweep, args=(part,), name="sweep", daemon=True).start()

    def first_needed(self) -> int:
        """Return the first round whose events stay in the event logs. Raises StoreError."""
        folded = None if self._keep is None else read_fold(self._paths)
        return 0 if folded is None or self._keep is None else min(folded.kept, self._newest - self._keep + 1)

    def _sweep(self, part: Assignment) -> None:
        remove_rounds(self._paths.stores, part.round - 2)
        if self._keep is None:
            return
        for directory in (self._paths.logs, self._paths.hangs):
            remove_rounds(directory, part.round - self._keep)
        if part.round % fold_interval(part.group_world_size) == 0:
            time.sleep(_PAUSE)
            self._fold_account()
            with contextlib.suppress(StoreError, OSError):
                remove_ended_agents(self._paths, part.round - self._keep + 1)

    def _fold_account(self) -> None:
        command = ["nice", "-n", "19", sys.executable, "-m", "hpcelastic", "goodput", str(self._paths.root)]
        subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        )


def fold_interval(nodes: int) -> int:
    """Return the number of rounds after which the account of a run on ``nodes`` nodes is folded."""
    return min(_MOST, max(_LEAST, _NODE_ROUNDS // nodes))


def remove_ended_agents(paths: RunPaths, first: int) -> None:
    """Remove the event logs and leases of agents that ended before round ``first``, if they are part of the account.

    Raises StoreError if a file of the run cannot be read, and OSError if one cannot be removed.
    """
    folded = read_fold(paths)
    ended = {agent.node for agent in folded.ended if agent.ended_before <= first} if folded else set()
    for name in files.names(paths.leases) if ended else ():
        lease = parse(name)
        if lease is not None and lease.node in ended:
            (paths.leases / name).unlink(missing_ok=True)
    for node in ended:
        paths.totals_of(node).unlink(missing_ok=True)
        paths.event_log(node).unlink(missing_ok=True)


def read_fold(paths: RunPaths) -> Fold | None:
    """Return the account of the first rounds that a command has left; None if there is none for this version.

    Raises StoreError if it cannot be read: the events of these rounds may be removed.
    """
    with as_store_error(paths.account):
        data = files.read(paths.account)
    try:
        return None if data is None else decode(Fold, json.loads(data))
    except ValueError:
        return None
