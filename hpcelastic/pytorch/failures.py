"""Reports of failed ranks, as torch's `ChildFailedError` has them."""

import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from hpcelastic.agent.failure_texts import describe_failure
from hpcelastic.errors import StoreError
from hpcelastic.protocol.events import WorkersStarted
from hpcelastic.protocol.state import Failure
from hpcelastic.storage.events import agents_with_logs, read_logs
from hpcelastic.storage.paths import RunPaths


def process_failures(paths: RunPaths, failures: tuple[Failure, ...]) -> dict[int, ProcessFailure]:
    """Return the reports by global rank, the root cause first: torch takes the first report with the earliest time.

    The times are those of the clocks of several nodes. The root cause gets the earliest one.
    """
    pids = _pids(paths, failures)
    made = {failure.rank: _process_failure(paths, failure, pids) for failure in failures}
    if made:
        next(iter(made.values())).timestamp = min(report.timestamp for report in made.values())
    return made


def _process_failure(paths: RunPaths, failure: Failure, pids: dict[tuple[int, int], int]) -> ProcessFailure:
    process = (failure.local_rank, pids.get((failure.round, failure.rank), 0), failure.exit_code)
    error_file = str(paths.error_file(failure.round, failure.rank))
    try:
        made = ProcessFailure(*process, error_file)
    except Exception:  # torch reads the file, which a process of the user has written
        made = ProcessFailure(*process, "")
    made.timestamp = int(failure.timestamp)
    if made.error_file != error_file and failure.exit_code > 0:
        made.message = failure.traceback or failure.message
    return made


def _pids(paths: RunPaths, failures: tuple[Failure, ...]) -> dict[tuple[int, int], int]:
    """Return the process ids of the ranks on the nodes of ``failures`` by round and rank; none if a log is unreadable.

    A run may have many large logs, and each agent looks for them at the same time. Those of other nodes are not read.
    """
    nodes, rounds = {failure.node for failure in failures}, {failure.round for failure in failures}
    try:
        logs = read_logs(paths.events, rounds, without=set(agents_with_logs(paths.events)) - nodes)
    except StoreError:
        return {}
    started = [each.event for log in logs.values() for each in log if isinstance(each.event, WorkersStarted)]
    return {(event.round, rank): pid for event in started for rank, pid in event.pids.items()}


def signal_in_flight() -> bool:
    """Return whether the exception that is being raised in this thread is that of a signal to the agent.

    torch's `launch_agent` does not shut the rendezvous down for its own SignalException, but it does for the
    KeyboardInterrupt of a SIGINT that arrives before torch handles signals.
    """
    return isinstance(sys.exc_info()[1], KeyboardInterrupt | SignalException)


def failure_in_flight(node: str, round: int) -> Failure | None:
    """Return the first failure of the ChildFailedError that is being raised in this thread; None if none is raised.

    torch's `launch_agent` shuts the rendezvous down while it raises the error, and does not pass the error on.
    """
    error = sys.exc_info()[1]
    if not isinstance(error, ChildFailedError):
        return None
    rank, failure = error.get_first_failure()
    message, traceback, timestamp = describe_failure(failure.exitcode, Path(failure.error_file), None)
    return Failure(round, node, rank, failure.local_rank, failure.exitcode, message, traceback, timestamp=timestamp)
