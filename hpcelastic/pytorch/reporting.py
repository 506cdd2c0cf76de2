"""Reports an agent of `hpcelastic agent` to torch's events and metrics, as torchrun reports its own agent.

It imports torch. Only an agent with ``--event-log-handler`` imports this module.
"""

from collections.abc import Callable

from torch.distributed.elastic.metrics import initialize_metrics
from torch.distributed.elastic.metrics.api import MetricsConfig

from hpcelastic.agent.session import Observe
from hpcelastic.bootstrap import Task
from hpcelastic.errors import RunFailed
from hpcelastic.exporters import call_handler, listening
from hpcelastic.protocol.state import Failure, Phase
from hpcelastic.pytorch.failures import process_failures
from hpcelastic.pytorch.telemetry import EventContext, LaunchOutcome, Telemetry, check_event_handler
from hpcelastic.storage.paths import RunPaths


def run_reported(run: Callable[[Observe], int], task: Task, event_handler: str, interval: float) -> int:
    """Call ``run``, which runs the agent of ``task`` with an observer, and return its result, an exit status.

    ``event_handler`` is the name of a handler of torch's events. Healthy workers are reported to a handler of metrics
    every ``interval`` seconds. Raises ConfigError if there is no such handler of events, and the errors of ``run``.
    """
    check_event_handler(event_handler, "--event-log-handler")
    initialize_metrics(MetricsConfig())
    telemetry = Telemetry(_context(task, event_handler))
    try:
        with listening(telemetry, interval) as observe:
            status = run(observe)
    except BaseException as error:
        call_handler(_report_error, telemetry, task.paths, error)  # what fails here must not hide the error
        raise
    if status == 0:
        telemetry.ended(LaunchOutcome())
    else:
        telemetry.broke(f"the agent has ended with status {status}")
    return status


def _report_error(telemetry: Telemetry, paths: RunPaths, error: BaseException) -> None:
    """Report the end of the agent by ``error``, which is being handled."""
    failures = error.failures if isinstance(error, RunFailed) and telemetry.phase is Phase.FAILED else ()
    ranks = tuple(failure for failure in failures if isinstance(failure, Failure))
    if ranks:
        telemetry.ended(LaunchOutcome(failures=process_failures(paths, ranks)))
    else:
        telemetry.broke()


def _context(task: Task, event_handler: str) -> EventContext:
    entrypoint, role = task.agent.entrypoint, task.agent.workers.role
    name = entrypoint.script or entrypoint.module or entrypoint.program or entrypoint.function
    return EventContext(task.run_id, role, str(name), task.settings.restarts.max, event_handler)
