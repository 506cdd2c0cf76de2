"""torch's `elastic_launch`, with an agent of ours: start workers from one's own Python code, one process on each node.

    from hpcelastic.pytorch.launch import LaunchConfig, elastic_launch

    results = elastic_launch(LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2), train)(0.1)

It takes torch's own LaunchConfig, returns what torch's does, raises what torch's does, and tells torch's events and
metrics what happens. docs/python.md says what differs. The agent runs in the thread that calls, as torch's does.
"""

import contextlib
import os
import shutil
import signal
from collections.abc import Sequence
from typing import Any

from torch.distributed.elastic.metrics import initialize_metrics
from torch.distributed.elastic.metrics.api import MetricsConfig
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousTimeoutError
from torch.distributed.launcher.api import LaunchConfig

from hpcelastic import values
from hpcelastic.agent.admission import EXIT_UNFIT
from hpcelastic.agent.nonblocking_output import nonblocking_stdio
from hpcelastic.agent.signals import Handler, signal_handlers
from hpcelastic.errors import HpcElasticError, RendezvousTimeout, RunFailed
from hpcelastic.protocol.state import Failure, Phase
from hpcelastic.pytorch.failures import process_failures
from hpcelastic.pytorch.launch_config import Command, Launch, translated
from hpcelastic.pytorch.listening import listening
from hpcelastic.pytorch.telemetry import LaunchOutcome, Telemetry
from hpcelastic.rendezvous.run import read_state
from hpcelastic.slurm.entry import run_agent_with_free_name
from hpcelastic.storage.paths import RunPaths

__all__ = ["LaunchConfig", "elastic_launch", "launch_agent"]


class elastic_launch:  # torch's name
    """``elastic_launch(config, entrypoint)(*args)`` is `launch_agent` for ``args``."""

    def __init__(self, config: LaunchConfig, entrypoint: Command, health_check_server: Any = None) -> None:
        self._config = config
        self._entrypoint = entrypoint
        self._health_check_server = health_check_server

    def __call__(self, *args: Any) -> dict[int, Any]:
        return launch_agent(self._config, self._entrypoint, list(args), self._health_check_server)


def launch_agent(
    config: LaunchConfig, entrypoint: Command, args: Sequence[Any], health_check_server: Any = None
) -> dict[int, Any]:
    """Take part in the run that ``config`` describes until it ends; what this node's ranks returned, by global rank.

    ``entrypoint`` is a function, or a script or program, whose ranks return None. A ``health_check_server`` of torch's
    is stopped at the end.

    Raises ConfigError before anything is started; ChildFailedError if workers failed, with the reports of all nodes;
    RendezvousTimeoutError, RendezvousClosedError; SignalException if a signal ended this node's part; HpcElasticError.
    Empty if this node has left a run that goes on, as one that was drained.
    """
    launch = translated(config, entrypoint, args)
    initialize_metrics(MetricsConfig(config.metrics_cfg))
    telemetry = Telemetry(launch.about)
    try:
        outcome = _outcome(launch, telemetry)
    except BaseException:
        telemetry.broke()
        raise
    finally:
        if health_check_server is not None:
            health_check_server.stop()
    telemetry.ended(outcome)
    if outcome.failures:
        raise ChildFailedError(launch.about.entrypoint, dict(outcome.failures))
    if launch.passing:
        shutil.rmtree(launch.task.paths.root, ignore_errors=True)
    return dict(outcome.values)


def _outcome(launch: Launch, telemetry: Telemetry) -> LaunchOutcome:
    paths = launch.task.paths
    try:
        status = _run(launch, telemetry)
    except RendezvousTimeout as error:
        raise RendezvousTimeoutError(str(error)) from error
    except RunFailed as error:
        failures = tuple(failure for failure in error.failures if isinstance(failure, Failure))
        if read_state(paths).phase is Phase.CLOSED:
            raise RendezvousClosedError(str(error)) from error
        if not failures:
            raise
        return LaunchOutcome(failures=process_failures(paths, failures))
    if status == EXIT_UNFIT:
        raise HpcElasticError("this node does not take part: it has failed its check, or was bad lately")
    state = read_state(paths)
    if not telemetry.started:
        raise RendezvousClosedError(
            f"{paths.root}: the run has {state.phase.value} already: {state.reason}; give another run_id"
        )
    workers = telemetry.workers
    if state.phase is not Phase.SUCCEEDED or workers is None or workers.round != state.round:
        return LaunchOutcome()
    return LaunchOutcome({rank: _returned(paths, state.round, rank) for rank in sorted(workers.pids)})


def _run(launch: Launch, telemetry: Telemetry) -> int:
    """Run the agent; its exit status. Raises SignalException, and what the agent raises."""
    signals: list[int] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(nonblocking_stdio())
        observe = stack.enter_context(listening(telemetry, launch.monitor_interval))
        stack.enter_context(signal_handlers(dict.fromkeys(launch.signals, _as_a_stop(signals))))
        status = run_agent_with_free_name(launch.task, launch.place, observe)
    if status > 128:
        signum = signal.Signals(signals[0] if signals else status - 128)
        raise SignalException(f"Process {os.getpid()} got signal: {signum}", sigval=signum)
    return status


def _as_a_stop(came: list[int]) -> Handler:
    """A handler that notes a signal, and lets the agent end as by SIGTERM."""

    def handle(signum: int, _frame: object) -> None:
        came.append(signum)
        signal.raise_signal(signal.SIGTERM)

    return handle


def _returned(paths: RunPaths, round: int, rank: int) -> Any:
    try:
        return values.load(paths.result(round, rank))
    except KeyError:
        return None
