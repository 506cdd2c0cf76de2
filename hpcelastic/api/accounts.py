"""The account of a run, from its directory."""

import contextlib
import os
import sys
import time
from collections.abc import Collection, Mapping

from hpcelastic.accounting import Account, Fold, Job, Journal, account, fold
from hpcelastic.accounting.journal import SECOND, log_of
from hpcelastic.agent.old_rounds import read_fold
from hpcelastic.backends.connect import RunReader
from hpcelastic.errors import SlurmError, StoreError
from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.events import TrainingTotals
from hpcelastic.protocol.state import State
from hpcelastic.rendezvous.run import read_state
from hpcelastic.slurm import scheduler
from hpcelastic.slurm.jobs import FinalStates, final_states, record_final_states, submitted
from hpcelastic.storage import files
from hpcelastic.storage.bounded import bounded
from hpcelastic.storage.events import agents_with_logs, read_logs
from hpcelastic.storage.paths import RunPaths

KEPT_ROUNDS = 20
"""The number of the newest rounds that are not folded. Some of their events may not be written yet."""

_SETTLED = 600 * SECOND
"""The age at which a round may be folded."""

_STALE = 60.0
"""Seconds by which the times of a shared filesystem may be old. Source: nfs(5), acdirmax."""

_ATTEMPTS = 3
"""How often a run is read that others fold at the same time. The account of the last reading may lack some rounds."""

_SLURM_TIMEOUT = 5.0
"""Seconds in which SLURM must answer."""


def account_of(run: RunReader) -> Account:
    """Return the account of a run, up to now if it has not ended. Raises StoreError if its files cannot be read.

    In a long run, the account of old rounds is left in the directory, so that their events are not read again.
    """
    for _ in range(_ATTEMPTS):
        before = read_fold(run.paths)
        journal = read_journal(run.paths, read_state(run.backend()), before=before)
        if read_fold(run.paths) == before:
            break  # else agents may have removed events of rounds that another command has folded meanwhile
    found = account(journal)
    if (folded := _folded(run.paths, journal, found)) is not None and read_fold(run.paths) == before:
        with contextlib.suppress(StoreError, OSError):  # for example a copy that is read-only
            files.publish(run.paths.account, files.to_json(encode(folded)))
    return found


def read_journal(
    paths: RunPaths, state: State, rounds: Collection[int] | None = None, before: Fold | None = None
) -> Journal:
    """Return all that the directory of a run tells about it; see `read_logs` for ``rounds``.

    Events of rounds that are part of ``before`` are left out. If no agent of the run is left, SLURM is asked once how
    its jobs have ended.
    """
    ended = {agent.node for agent in before.ended} if before else ()
    if before is not None:
        rounds = range(before.kept, sys.maxsize)
    logs = tuple(log_of(node, events) for node, events in read_logs(paths.events, rounds, ended).items())
    now = time.time()
    last_sign = None if state.phase.final else _last_sign(paths)
    silent = state.settings.rendezvous.expiry.of(None) + _STALE
    abandoned = last_sign is not None and now - last_sign / SECOND > silent
    records = submitted(paths)
    ids = [job["job"] for job in records]
    final = _final_states(paths, ids, last_sign) if last_sign is not None and abandoned else {}
    jobs = tuple(
        Job(job["job"], round(job["submitted"] * SECOND), job.get("elements"), final.get(job["job"], ()))
        for job in records
        if "submitted" in job
    )
    totals = {
        node: event.event
        for node, events in read_logs(paths.training_totals).items()
        for event in events
        if isinstance(event.event, TrainingTotals)
    }
    return Journal(
        logs,
        jobs,
        state.settings.nodes.wanted,
        totals,
        renewed=_last_renewals(paths),
        now=None if state.phase.final else round(now * SECOND),
        last_sign=last_sign,
        abandoned=abandoned,
        fold=before,
        expiry=round(silent * SECOND),
    )


def _last_renewals(paths: RunPaths) -> dict[str, int]:
    """Return the time of the last renewal of the lease of each node, in microseconds, as `_last_sign` does."""
    found: dict[str, int] = {}
    for name in files.names(paths.leases):
        node = name.partition("~")[0]
        with contextlib.suppress(OSError):
            renewed = round((paths.leases / name).stat().st_ctime * SECOND)
            found[node] = max(renewed, found.get(node, 0))
    return found


def _last_sign(paths: RunPaths) -> int | None:
    """Return the time of the last renewal of a lease, in microseconds; None if the leases are not in the directory.

    This is for display only: it uses file times and clocks of other machines.
    """
    if files.exists(paths.backend):  # a server has the leases
        return None
    try:
        return round(paths.leases.stat().st_mtime * SECOND)  # a renewal renames a file in it
    except OSError:
        return None


def _final_states(paths: RunPaths, jobs: list[str], last_sign: int) -> Mapping[str, tuple[str, ...]]:
    """Return SLURM's states of the jobs of a run whose agents have all disappeared; without those that are unknown."""
    known = final_states(paths)
    if known is not None and known.last_sign == last_sign:
        return known.jobs
    if not jobs:
        return {}
    try:
        states = bounded(lambda: scheduler.final_states(jobs, paths.root.stat().st_uid), _SLURM_TIMEOUT, "SLURM")
    except (SlurmError, StoreError, OSError):
        return {}
    found = {job: tuple(each) for job, each in states.items() if scheduler.ENDED_STATES.issuperset(each)}
    if found.keys() == {*jobs}:
        with contextlib.suppress(StoreError, OSError):  # for example a copy that is read-only
            record_final_states(paths, FinalStates(last_sign, found))
    return found


def log_bytes(paths: RunPaths) -> int:
    """Return the size of the event logs of a run, without those that are not read because of a fold."""
    before = read_fold(paths)
    ended = {paths.event_log(agent.node) for agent in before.ended} if before else set()
    logs = [path for path in paths.events.glob("*.jsonl") if path not in ended]
    return sum(path.stat().st_size for path in logs)


def _folded(paths: RunPaths, journal: Journal, found: Account) -> Fold | None:
    """Return the account of old rounds for the directory, if there are many, and the directory is this user's."""
    if not found.rounds or paths.root.stat().st_uid != os.geteuid():
        return None
    kept, first = max(found.rounds) - KEPT_ROUNDS, min(found.rounds)
    following = found.rounds.get(kept + 1)
    if kept - first < KEPT_ROUNDS or following is None:
        return None
    if journal.fold is None and first > 1:  # their account was damaged, and their events are removed
        return None
    if following.began is None or following.began > round(time.time() * SECOND) - _SETTLED:
        return None
    return fold(journal, found, kept, agents_with_logs(paths.events))
