"""Reports the events of an agent to torch's events and metrics, under the names that torch's own agent uses.

An exception in a user's handler is logged and has no other effect.
Sources: torch/distributed/elastic/agent/server/api.py, .../events and .../metrics.
"""

import json
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.distributed.elastic import events
from torch.distributed.elastic.agent.server.api import WorkerState
from torch.distributed.elastic.events.api import Event as TorchEvent
from torch.distributed.elastic.events.api import EventSource, NodeState
from torch.distributed.elastic.events.handlers import get_logging_handler
from torch.distributed.elastic.metrics.api import NullMetricHandler, getStream, put_metric
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from hpcelastic.errors import ConfigError
from hpcelastic.exporters import call_handler
from hpcelastic.protocol.events import (
    AgentStarted,
    Event,
    Fenced,
    RunEnded,
    StateChanged,
    TimerExpired,
    WorkerEnded,
    WorkersParked,
    WorkersStarted,
    WorkersStopped,
)
from hpcelastic.protocol.state import Phase

BACKEND = "hpcelastic"
"""The value of ``rdzv_backend`` in events."""

_NODE_STATES = {
    Phase.JOINING: NodeState.INIT,
    Phase.RUNNING: NodeState.RUNNING,
    Phase.SUCCEEDED: NodeState.SUCCEEDED,
    Phase.FAILED: NodeState.FAILED,
    Phase.CLOSED: NodeState.FAILED,
}

_FINAL_STATES = {
    Phase.SUCCEEDED: WorkerState.SUCCEEDED,
    Phase.FAILED: WorkerState.FAILED,
    Phase.CLOSED: WorkerState.STOPPED,
}


@dataclass(frozen=True)
class EventContext:
    """The values that all events of a launch share."""

    run_id: str
    role: str
    entrypoint: str
    max_restarts: int
    destination: str
    """Name of the handler that torch's `events.record` passes events to."""


def check_event_handler(name: str, option: str) -> None:
    """Raise ConfigError if torch has no handler of events that is called ``name``. ``option`` has this value."""
    try:
        get_logging_handler(name)
    except KeyError as error:
        raise ConfigError(
            f"{option} is {name!r}, but torch.distributed.elastic.events.handlers has no handler of that name"
        ) from error


@dataclass(frozen=True)
class LaunchOutcome:
    """The result of a launch on this node, by global rank."""

    values: Mapping[int, Any] = field(default_factory=dict)
    failures: Mapping[int, ProcessFailure] = field(default_factory=dict)
    left: bool = False
    """Whether the node has left a run that goes on."""


class Telemetry:
    """`take` receives events, and `tick` is called between them. The last call is `ended` or `broke`."""

    def __init__(self, context: EventContext) -> None:
        self._context = context
        self._hostname = socket.getfqdn(socket.gethostname())
        self._began = self._formed_at = time.monotonic()
        self._formed = 0
        self._waits_since: float | None = None
        """The time since which there have been no workers; None if there are workers."""

        self._seconds = 0
        self._restarts = 0
        self.state = WorkerState.INIT
        """State of the workers of this node, as torch's agent would give it."""

        self.workers: WorkersStarted | None = None
        """The last start of workers on this node; None if none were started."""

        self.started = False
        """Whether the agent has taken part in the run."""

        self.phase: Phase | None = None
        """How the run has ended; None if the agent has not read that it has."""

    @property
    def ticks(self) -> bool:
        """Whether `tick` is to be called: the workers are healthy, and a handler of metrics is set."""
        handler = getStream("torchelastic").handler
        return self.state is WorkerState.HEALTHY and not isinstance(handler, NullMetricHandler)

    def tick(self) -> None:
        """Report that the workers are healthy."""
        self._put_state()

    def take(self, moment: float, event: Event) -> None:
        """Report an event that happened at ``moment``, in seconds of time.monotonic()."""
        match event:
            case AgentStarted():
                self.started = True
                self._waits_since = moment
            case StateChanged():
                self._state_changed(moment, event)
            case WorkersStarted():
                self._workers_started(moment, event)
            case WorkerEnded(exit_code=exit_code):
                if exit_code != 0 and self.state is WorkerState.HEALTHY:
                    self.state = WorkerState.FAILED
                    self._put_state()
            case TimerExpired():
                self._timer_expired(event)
            case WorkersStopped() | WorkersParked() | Fenced():
                self.state, self._waits_since = WorkerState.STOPPED, moment
            case RunEnded(phase=phase):
                self.state, self.phase = _FINAL_STATES[phase], phase
                if phase is Phase.SUCCEEDED:
                    self._put_state()

    def ended(self, outcome: LaunchOutcome) -> None:
        """Report that the agent has ended without an exception; workers may have failed."""
        self._seconds = int(time.monotonic() - self._began)
        self._put_run("success")
        self._put_totals(failed=bool(outcome.failures))
        for rank in sorted(self.workers.pids) if self.workers is not None else ():
            failure = outcome.failures.get(rank)
            state = "FAILED" if failure else "TERMINATED" if outcome.failures else "SUCCEEDED"
            raw = json.dumps(failure.error_file_data) if failure else None
            exit_code, pid = (failure.exitcode, failure.pid) if failure else (None, None)
            self._record(state, rank=rank, raw_error=raw, exit_code=exit_code, worker_pid=pid)
        self._record("SUCCEEDED")  # of the agent; torch's own agent does the same

    def broke(self, error: str = "") -> None:
        """Report that the agent has failed by ``error``, by default the exception that is being handled."""
        self._seconds = int(time.monotonic() - self._began)
        if self._waits_since is not None:
            self._rendezvous("failure", time.monotonic() - self._waits_since)
            raised = sys.exc_info()[1]
            message = error or f"{type(raised).__name__}: {raised}"
            self._record_rendezvous("failed", message, NodeState.FAILED)
        self._put_run("failure")
        self._record("FAILED", raw_error=error or traceback.format_exc())

    def _state_changed(self, moment: float, event: StateChanged) -> None:
        phase = event.phase
        self._restarts = event.restarts
        if phase is Phase.RUNNING and event.round != self._formed:
            self._formed, self._formed_at = event.round, moment
        self._record_rendezvous(phase.value, event.reason, _NODE_STATES[phase])

    def _workers_started(self, moment: float, event: WorkersStarted) -> None:
        since = self._formed_at if self._waits_since is None else self._waits_since
        waited, started = max(0.0, self._formed_at - since), max(0.0, moment - self._formed_at)
        self._rendezvous("success", waited)
        self._record("ASSIGN_WORKER_RANKS", duration_ms=0.0)  # the rendezvous has assigned them
        self.workers = event
        self.state, self._waits_since = WorkerState.HEALTHY, None
        for rank in sorted(self.workers.pids):
            self._record("START", rank=rank)
        _put_timed("LocalElasticAgent._start_workers", started)
        _put_timed("SimpleElasticAgent._initialize_workers", waited + started)

    def _timer_expired(self, event: TimerExpired) -> None:
        """Report the events of the server of timers in torch."""
        sent = str(signal.Signals[event.sent].value) if event.sent else "0"
        details = {"worker_pid": str(event.pid), "scope_id": event.scope, "signal": sent}
        for name in ("timer expired", *(["kill worker process"] if event.sent else [])):
            metadata = {**self._metadata("RUNNING"), "metadata": json.dumps({"watchdog_event": name, **details})}
            self._pass_on(TorchEvent(name, EventSource.AGENT, metadata=metadata))

    def _rendezvous(self, how: str, seconds: float) -> None:
        self._record("RENDEZVOUS", duration_ms=1000 * seconds)
        _put_timed("SimpleElasticAgent._rendezvous", seconds, how)

    def _put_state(self) -> None:
        role = self._context.role
        _put(f"workers.{role}.remaining_restarts", self._remaining)
        _put(f"workers.{role}.{self.state.value.lower()}", 1)

    def _put_run(self, how: str) -> None:
        _put_timed("SimpleElasticAgent.run", time.monotonic() - self._began, how)

    def _put_totals(self, failed: bool) -> None:
        given = self._context.max_restarts
        again = self._remaining != given
        flakiness = 100.0 if failed else 100.0 - 100.0 * (self._remaining + 1) / (given + 1)
        found = {
            "flakiness": int(flakiness),
            "run_total": 1,
            "run_success_with_retries": int(not failed and again),
            "run_success_no_retries": int(not failed and not again),
            "run_failed_with_retries": int(failed and again),
            "run_failed_no_retries": int(failed and not again),
        }
        for name, value in found.items():
            _put(f"workers.{self._context.role}.{name}", value)

    def _record_rendezvous(self, name: str, message: str, state: NodeState) -> None:
        run_id = self._context.run_id
        # In a lambda: the function of torch reads the file name of its caller.
        call_handler(lambda: events.construct_and_record_rdzv_event(run_id, message, state, name=name))

    @property
    def _remaining(self) -> int:
        return max(0, self._context.max_restarts - self._restarts)

    def _record(
        self,
        state: str,
        *,
        rank: int | None = None,
        raw_error: str | None = None,
        duration_ms: float | None = None,
        exit_code: int | None = None,
        worker_pid: int | None = None,
    ) -> None:
        workers = self.workers
        details: dict[str, Any] = {
            "group_world_size": workers.group_world_size if workers else None,
            "entry_point": self._context.entrypoint,
        }
        if rank is not None and workers is not None:  # each value in a list, as in the events of torch's own agent
            details |= {
                "local_rank": [rank - min(workers.pids)],
                "role_rank": [rank - min(workers.pids) + workers.role_rank],
                "role_world_size": [workers.role_world_size],
                "exit_code": [exit_code],
                "worker_pid": [worker_pid],
            }
        metadata = {
            **self._metadata(state),
            "global_rank": rank,
            "worker_id": str(workers.pids[rank]) if workers and rank is not None else None,
            "raw_error": raw_error,
            "metadata": json.dumps(details),
            "duration_ms": duration_ms,
        }
        source = EventSource.AGENT if rank is None else EventSource.WORKER
        self._pass_on(TorchEvent(f"torchelastic.worker.status.{state}", source, metadata=metadata))

    def _metadata(self, state: str) -> dict[str, Any]:
        """Return the metadata that all events have."""
        context = self._context
        return {
            "run_id": context.run_id,
            "global_rank": None,
            "group_rank": self.workers.group_rank if self.workers else None,
            "worker_id": None,
            "role": context.role,
            "hostname": self._hostname,
            "state": state,
            "total_run_time": self._seconds,
            "rdzv_backend": BACKEND,
            "raw_error": None,
            "agent_restarts": context.max_restarts - self._remaining,
        }

    def _pass_on(self, event: TorchEvent) -> None:
        call_handler(events.record, event, self._context.destination)


def _put(name: str, value: int) -> None:
    call_handler(put_metric, name, value)


def _put_timed(name: str, seconds: float, how: str = "success") -> None:
    """Put the metrics that torch's ``@prof`` puts for a call."""
    _put(f"{name}.{how}", 1)
    _put(f"{name}.duration.ms", int(1000 * seconds))
