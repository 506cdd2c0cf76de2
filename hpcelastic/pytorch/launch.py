"""torch's `elastic_launch` with hpcelastic's agent: starts workers from Python code, one process on each node.

    from hpcelastic.pytorch.launch import LaunchConfig, elastic_launch

    results = elastic_launch(LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2), train)(0.1)

Its arguments, results and errors are those of torch's, including torch's own LaunchConfig. It reports to torch's events
and metrics. docs/launch.md lists the differences. The agent runs in the calling thread, like torch's.
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
from hpcelastic.backends.connect import open_backend
from hpcelastic.bootstrap import run_node_agent
from hpcelastic.errors import HpcElasticError, RendezvousTimeout, RunFailed
from hpcelastic.exporters import listening
from hpcelastic.protocol.state import Failure, Phase, State
from hpcelastic.pytorch.failures import process_failures
from hpcelastic.pytorch.launch_config import Command, LaunchSpec, launch_spec
from hpcelastic.pytorch.telemetry import LaunchOutcome, Telemetry
from hpcelastic.rendezvous.run import read_state
from hpcelastic.storage.paths import RunPaths

__all__ = ["LaunchConfig", "elastic_launch", "launch_agent"]


class elastic_launch:  # the name that torch uses
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
    """Run this node's workers until the run of ``config`` ends. Return the results of its ranks, by global rank.

    ``entrypoint`` is a function, a script or a program. The results of a script or a program are None. torch's
    ``health_check_server``, if given, is stopped at the end. The result is empty if this node has left a run that
    continues, for example after a drain.

    Raises ConfigError before anything starts; ChildFailedError, with the reports of all nodes, if workers failed;
    RendezvousTimeoutError; RendezvousClosedError; SignalException if a signal ended this agent; HpcElasticError.
    """
    spec = launch_spec(config, entrypoint, args)
    initialize_metrics(MetricsConfig(config.metrics_cfg))
    outcome = run_launch(spec, Telemetry(spec.event_context), health_check_server)
    if outcome.failures:
        raise ChildFailedError(spec.event_context.entrypoint, dict(outcome.failures))
    return dict(outcome.values)


def run_launch(spec: LaunchSpec, telemetry: Telemetry, health_check_server: Any = None) -> LaunchOutcome:
    """Run the launch of ``spec``, and report it to torch's events and metrics with ``telemetry``.

    Raises the errors of `launch_agent`, except ConfigError for a wrong configuration and ChildFailedError.
    """
    try:
        outcome = _outcome(spec, telemetry)
    except BaseException:
        telemetry.broke()
        raise
    finally:
        if health_check_server is not None:
            health_check_server.stop()
    telemetry.ended(outcome)
    if spec.temporary and not outcome.failures:
        shutil.rmtree(spec.task.paths.root, ignore_errors=True)
    return outcome


def _outcome(spec: LaunchSpec, telemetry: Telemetry) -> LaunchOutcome:
    paths = spec.task.paths
    try:
        status = _run(spec, telemetry)
    except RendezvousTimeout as error:
        raise RendezvousTimeoutError(str(error)) from error
    except RunFailed as error:
        failures = tuple(failure for failure in error.failures if isinstance(failure, Failure))
        if _newest_state(paths).phase is Phase.CLOSED:
            raise RendezvousClosedError(str(error)) from error
        if not failures:
            raise
        return LaunchOutcome(failures=process_failures(paths, failures))
    if status == EXIT_UNFIT:
        raise HpcElasticError("this node does not join the run: it failed its check, or was bad in a recent run")
    state = _newest_state(paths)
    if not telemetry.started:
        raise RendezvousClosedError(
            f"{paths.root}: the run has {state.phase.value} already: {state.reason}; use another run_id"
        )
    workers = telemetry.workers
    if state.phase is not Phase.SUCCEEDED or workers is None or workers.round != state.round:
        return LaunchOutcome(left=state.phase is not Phase.SUCCEEDED)
    return LaunchOutcome({rank: _result(paths, state.round, rank) for rank in sorted(workers.pids)})


def _newest_state(paths: RunPaths) -> State:
    """Return the state of the run after the end of this node's agent, whose backend is closed."""
    with contextlib.closing(open_backend(paths)) as backend:
        return read_state(backend)


def _run(spec: LaunchSpec, telemetry: Telemetry) -> int:
    """Run the agent and return its exit status. Raises SignalException and the errors of the agent."""
    received: list[int] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(nonblocking_stdio())
        observe = stack.enter_context(listening(telemetry, spec.monitor_interval))
        stack.enter_context(signal_handlers(dict.fromkeys(spec.extra_signals, _stop_handler(received))))
        status = run_node_agent(spec.task, spec.identity, observe, any_name=True)
    if status > 128:
        signum = signal.Signals(received[0] if received else status - 128)
        raise SignalException(f"Process {os.getpid()} got signal: {signum}", sigval=signum)
    return status


def _stop_handler(received: list[int]) -> Handler:
    """Return a handler that adds the signal to ``received`` and ends the agent like SIGTERM."""

    def handle(signum: int, _frame: object) -> None:
        received.append(signum)
        signal.raise_signal(signal.SIGTERM)

    return handle


def _result(paths: RunPaths, round: int, rank: int) -> Any:
    try:
        return values.load(paths.result(round, rank))
    except KeyError:
        return None
