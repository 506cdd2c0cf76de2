"""The account of a run, from its directory."""

import time
from collections.abc import Collection

from hpcelastic.accounting import Account, Job, Journal, account
from hpcelastic.accounting.journal import SECOND, log_of
from hpcelastic.backends.connect import RunReader
from hpcelastic.protocol.events import TrainingTotals
from hpcelastic.protocol.state import State
from hpcelastic.rendezvous.run import read_state
from hpcelastic.slurm.jobs import submitted
from hpcelastic.storage.events import read_logs
from hpcelastic.storage.paths import RunPaths


def account_of(run: RunReader) -> Account:
    """Return the account of a run, up to now if it has not ended. Raises StoreError if its files cannot be read."""
    return account(read_journal(run.paths, read_state(run.backend())))


def read_journal(paths: RunPaths, state: State, rounds: Collection[int] | None = None) -> Journal:
    """Return all that the directory of a run tells about it, or about some rounds only; see `read_logs`."""
    logs = tuple(log_of(node, events) for node, events in read_logs(paths.events, rounds).items())
    jobs = tuple(
        Job(job["job"], round(job["submitted"] * SECOND), job.get("elements"))
        for job in submitted(paths)
        if "submitted" in job
    )
    totals = {
        node: event.event
        for node, events in read_logs(paths.training_totals).items()
        for event in events
        if isinstance(event.event, TrainingTotals)
    }
    now = None if state.phase.final else round(time.time() * SECOND)
    return Journal(logs, jobs, state.settings.nodes.wanted, totals, now)
