"""Tells torch's events and metrics what happens to an agent, under the names that torch's own agent uses.

What a user's handler raises is logged, and stops nothing.
Sources: torch/distributed/elastic/agent/server/api.py, .../events and .../metrics.
"""

import json
import socket
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.distributed.elastic import events
from torch.distributed.elastic.events.api import Event, EventSource, NodeState
from torch.distributed.elastic.metrics.api import NullMetricHandler, getStream, put_metric
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from hpcelastic.protocol.state import Phase
from hpcelastic.pytorch.listening import tell

BACKEND = "hpcelastic"
"""What events say as ``rdzv_backend``."""

_NODE_STATES = {
    Phase.JOINING: NodeState.INIT,
    Phase.RUNNING: NodeState.RUNNING,
    Phase.SUCCEEDED: NodeState.SUCCEEDED,
    Phase.FAILED: NodeState.FAILED,
    Phase.CLOSED: NodeState.FAILED,
}


@dataclass(frozen=True)
class About:
    """What all events of a launch have in common."""

    run_id: str
    role: str
    entrypoint: str
    max_restarts: int
    destination: str
    """Name of the handler that torch's `events.record` passes events to."""


@dataclass(frozen=True)
class LaunchOutcome:
    """How a launch has ended on this node, by global rank."""

    values: Mapping[int, Any] = field(default_factory=dict)
    failures: Mapping[int, ProcessFailure] = field(default_factory=dict)


@dataclass(frozen=True)
class Workers:
    """The workers of this node in one round."""

    round: int
    group_rank: int
    group_world_size: int
    role_rank: int
    """Rank among all workers of their role, of the first of them."""

    role_world_size: int
    pids: Mapping[int, int]
    """Processes by global rank."""


class Telemetry:
    """`take` is told what happens to the agent, `tick` that time passes, and one of `ended` and `broke` is the last."""

    def __init__(self, about: About) -> None:
        self._about = about
        self._hostname = socket.getfqdn(socket.gethostname())
        self._began = self._formed_at = time.monotonic()
        self._formed = 0
        self._waits_since: float | None = None
        """Since when there have been no workers, as long as there are none."""

        self._seconds = 0
        self._restarts = 0
        self._healthy = False
        self.workers: Workers | None = None
        """Those that were started last; None if none were."""

        self.started = False
        """Whether the agent took part at all."""

    @property
    def ticks(self) -> bool:
        """Whether `tick` has anybody to tell that the workers are healthy."""
        handler = getStream("torchelastic").handler
        return self._healthy and not isinstance(handler, NullMetricHandler)

    def tick(self) -> None:
        self._put_state("healthy")

    def take(self, moment: float, event: str, fields: Mapping[str, Any]) -> None:
        """``moment`` is when it happened, in seconds of time.monotonic()."""
        if event == "agent started":
            self.started = True
            self._waits_since = moment
        elif event == "state":
            self._state(moment, fields)
        elif event == "workers started":
            self._started(moment, fields)
        elif event == "worker ended":
            if fields["exit_code"] != 0 and self._healthy:
                self._healthy = False
                self._put_state("failed")
        elif event in ("workers stopped", "fenced"):
            self._healthy, self._waits_since = False, moment
        elif event == "run ended":
            self._healthy = False
            if fields["phase"] == Phase.SUCCEEDED.value:
                self._put_state("succeeded")

    def ended(self, outcome: LaunchOutcome) -> None:
        """The agent has ended, well or with failures of workers."""
        self._seconds = int(time.monotonic() - self._began)
        self._put_run("success")
        self._put_totals(failed=bool(outcome.failures))
        for rank in sorted(self.workers.pids) if self.workers is not None else ():
            failure = outcome.failures.get(rank)
            state = "FAILED" if failure else "TERMINATED" if outcome.failures else "SUCCEEDED"
            raw = json.dumps(failure.error_file_data) if failure else None
            exit_code, pid = (failure.exitcode, failure.pid) if failure else (None, None)
            self._record(state, rank=rank, raw_error=raw, exit_code=exit_code, worker_pid=pid)
        self._record("SUCCEEDED")  # the agent has; so says torch's own as well

    def broke(self) -> None:
        """The agent has ended by the exception that is being handled."""
        self._seconds = int(time.monotonic() - self._began)
        if self._waits_since is not None:
            self._rendezvous("failure", time.monotonic() - self._waits_since)
        self._put_run("failure")
        self._record("FAILED", raw_error=traceback.format_exc())

    def _state(self, moment: float, fields: Mapping[str, Any]) -> None:
        phase = Phase(fields["phase"])
        self._restarts = fields["restarts"]
        if phase is Phase.RUNNING and fields["round"] != self._formed:
            self._formed, self._formed_at = fields["round"], moment
        told = {"run_id": self._about.run_id, "message": fields["reason"], "node_state": _NODE_STATES[phase]}
        tell(lambda: events.construct_and_record_rdzv_event(name=phase.value, **told))  # it looks up who calls it

    def _started(self, moment: float, fields: Mapping[str, Any]) -> None:
        since = self._formed_at if self._waits_since is None else self._waits_since
        waited, started = max(0.0, self._formed_at - since), max(0.0, moment - self._formed_at)
        self._rendezvous("success", waited)
        self._record("ASSIGN_WORKER_RANKS", duration_ms=0.0)  # the rendezvous has done that
        self.workers = Workers(**{name: fields[name] for name in Workers.__dataclass_fields__})
        self._healthy, self._waits_since = True, None
        for rank in sorted(self.workers.pids):
            self._record("START", rank=rank)
        _put_timed("LocalElasticAgent._start_workers", started)
        _put_timed("SimpleElasticAgent._initialize_workers", waited + started)

    def _rendezvous(self, how: str, seconds: float) -> None:
        self._record("RENDEZVOUS", duration_ms=1000 * seconds)
        _put_timed("SimpleElasticAgent._rendezvous", seconds, how)

    def _put_state(self, state: str) -> None:
        role = self._about.role
        _put(f"workers.{role}.remaining_restarts", self._remaining)
        _put(f"workers.{role}.{state}", 1)

    def _put_run(self, how: str) -> None:
        _put_timed("SimpleElasticAgent.run", time.monotonic() - self._began, how)

    def _put_totals(self, failed: bool) -> None:
        given = self._about.max_restarts
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
            _put(f"workers.{self._about.role}.{name}", value)

    @property
    def _remaining(self) -> int:
        return max(0, self._about.max_restarts - self._restarts)

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
        about, workers = self._about, self.workers
        told: dict[str, Any] = {
            "group_world_size": workers.group_world_size if workers else None,
            "entry_point": about.entrypoint,
        }
        if rank is not None and workers is not None:  # each in a list, as torch's own agent has it
            told |= {
                "local_rank": [rank - min(workers.pids)],
                "role_rank": [rank - min(workers.pids) + workers.role_rank],
                "role_world_size": [workers.role_world_size],
                "exit_code": [exit_code],
                "worker_pid": [worker_pid],
            }
        metadata = {
            "run_id": about.run_id,
            "global_rank": rank,
            "group_rank": workers.group_rank if workers else None,
            "worker_id": str(workers.pids[rank]) if workers and rank is not None else None,
            "role": about.role,
            "hostname": self._hostname,
            "state": state,
            "total_run_time": self._seconds,
            "rdzv_backend": BACKEND,
            "raw_error": raw_error,
            "metadata": json.dumps(told),
            "agent_restarts": about.max_restarts - self._remaining,
            "duration_ms": duration_ms,
        }
        source = EventSource.AGENT if rank is None else EventSource.WORKER
        event = Event(f"torchelastic.worker.status.{state}", source, metadata=metadata)
        tell(events.record, event, about.destination)


def _put(name: str, value: int) -> None:
    tell(put_metric, name, value)


def _put_timed(name: str, seconds: float, how: str = "success") -> None:
    """What torch's ``@prof`` puts for a call."""
    _put(f"{name}.{how}", 1)
    _put(f"{name}.duration.ms", int(1000 * seconds))
