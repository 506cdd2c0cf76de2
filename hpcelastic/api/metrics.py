"""The metrics of runs in the format of Prometheus, from their directories.

Counters never fall while this process runs, although the logs of a round that runs are completed later.
"""

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hpcelastic.accounting import Account
from hpcelastic.accounting.journal import SECOND
from hpcelastic.api.accounts import account_of
from hpcelastic.api.one_look import OneLook
from hpcelastic.api.run import Run
from hpcelastic.api.status import RunStatus
from hpcelastic.errors import HpcElasticError
from hpcelastic.protocol.state import Phase

_TIMEOUT = 8.0
"""Seconds for reading a run. Prometheus waits for 10 s by default."""

_Found = tuple[Account, RunStatus, float]
"""The account and the status of a run, and the seconds that it took to read them."""


class RunCollector(Collector):
    """Collects the metrics of runs when they are asked for. A run that cannot be read has ``hpcelastic_up`` 0."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._looks = [(run.name, OneLook(partial(_read, run), str(run.directory))) for run in runs]
        self._counters: dict[tuple[str, ...], float] = {}
        """The last value of each counter, by its name and labels."""

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        seconds = CounterMetricFamily("hpcelastic_node_seconds", "Node time by category", labels=("run", "category"))
        faults = CounterMetricFamily(
            "hpcelastic_faults", "Rounds that a fault has ended, by its cause", labels=("run", "cause")
        )
        rounds = CounterMetricFamily("hpcelastic_rounds", "Rounds that have begun", labels=("run",))
        steps = GaugeMetricFamily("hpcelastic_step", "Training steps that are complete", labels=("run",))
        at_risk = GaugeMetricFamily("hpcelastic_at_risk_steps", "Steps that are not saved", labels=("run",))
        nodes = GaugeMetricFamily("hpcelastic_nodes", "Nodes of the running round", labels=("run",))
        world = GaugeMetricFamily("hpcelastic_world_size", "Ranks of the running round", labels=("run",))
        phases = GaugeMetricFamily("hpcelastic_phase", "1 for the phase of the run", labels=("run", "phase"))
        up = GaugeMetricFamily("hpcelastic_up", "1 if the run could be read", labels=("run",))
        took = GaugeMetricFamily("hpcelastic_read_seconds", "Time to read the run", labels=("run",))
        for name, reading in self._read_all():
            try:
                account, status, duration = reading.result()
            except (HpcElasticError, OSError, ValueError):  # one run must not hide the others
                up.add_metric((name,), 0)
                continue
            up.add_metric((name,), 1)
            for category, micros in account.categories.items():
                labels = (name, category.value)
                seconds.add_metric(labels, self._risen("seconds", labels, micros / SECOND))
            sums = account.fault_sums
            for cause, count in (("worker", sums.worker), ("node", sums.node), ("hang", sums.hang)):
                labels = (name, cause)
                faults.add_metric(labels, self._risen("faults", labels, count))
            rounds.add_metric((name,), self._risen("rounds", (name,), status.round))
            if (done := _steps(account)) is not None:
                steps.add_metric((name,), done)
            if account.at_risk is not None:
                at_risk.add_metric((name,), account.at_risk)
            running = status.phase == Phase.RUNNING.value
            nodes.add_metric((name,), sum(bool(node.ranks) for node in status.nodes) if running else 0)
            world.add_metric((name,), status.world_size if running else 0)
            for phase in Phase:
                phases.add_metric((name, phase.value), phase.value == status.phase)
            took.add_metric((name,), duration)
        yield from (seconds, faults, rounds, steps, at_risk, nodes, world, phases, up, took)

    def _read_all(self) -> "list[tuple[str, Future[_Found]]]":
        """Read all runs at once, so that their time limits do not add up. Return the name of each with the result."""
        with ThreadPoolExecutor(max(1, len(self._looks))) as threads:
            return [(name, threads.submit(look, _TIMEOUT)) for name, look in self._looks]

    def _risen(self, name: str, labels: tuple[str, ...], value: float) -> float:
        """Return the value of a counter, or its last value if that was greater."""
        key = (name, *labels)
        self._counters[key] = max(value, self._counters.get(key, 0.0))
        return self._counters[key]


def registry_of(runs: Iterable[Run]) -> CollectorRegistry:
    """Return a registry of the metrics of runs, for the functions of prometheus_client."""
    registry = CollectorRegistry()
    registry.register(RunCollector(runs))
    return registry


def _read(run: Run) -> _Found:
    began = time.monotonic()
    account, status = account_of(run.reader), run.status()
    return account, status, time.monotonic() - began


def _steps(account: Account) -> int | None:
    """Return the number of steps that are complete, over all rounds; None if it is unknown."""
    known = [each.reached for each in account.rounds.values() if each.training and each.training.before is not None]
    return max(known, default=None)
