"""The goodput of a run, for display: what the time of its nodes went into."""

import html
from collections.abc import Mapping
from dataclasses import dataclass

from hpcelastic.accounting import Account, Category
from hpcelastic.accounting.journal import SECOND
from hpcelastic.api.accounts import account_of
from hpcelastic.api.figures import duration, percent
from hpcelastic.backends.connect import RunReader

MEANINGS = {
    Category.USEFUL: "steps that count",
    Category.CHECKPOINT: "training waits for saves",
    Category.REDONE: "steps that were made before",
    Category.RESTORE: "workers get their state",
    Category.LAUNCH: "workers start and compile",
    Category.RENDEZVOUS: "nodes wait for a round",
    Category.STOP: "workers stop or park",
    Category.DETECTION: "until a fault is noticed",
    Category.HANG: "no progress",
    Category.START: "agents start",
    Category.SPARE: "nodes stand by",
    Category.QUEUE: "jobs wait in SLURM's queue",
    Category.UNKNOWN: "the logs do not tell",
}
"""The categories in the order of the display, each with its meaning."""

_BAR = 16
"""Characters of the longest bar."""

_NO_MARKS = (
    "the script writes no progress marks, so the time in which workers ran cannot be divided; use Elastic, "
    "should_stop() or report_progress()"
)


@dataclass(frozen=True)
class FaultCost:
    """A round that a fault has ended, with its cost in node-seconds."""

    round: int
    time: float
    """The first sign of the fault, in seconds since the epoch."""

    reason: str
    node: str
    """The node that was lost, or on which a worker failed; empty if it is unknown."""

    node_seconds: Mapping[str, float]
    stopped: float | None
    """Seconds from the fault to the first new step; None if there was none."""


@dataclass(frozen=True)
class Goodput:
    """The account of a run in seconds. In a notebook it is shown as a table."""

    name: str
    goodput: float | None
    """The useful part of the allocated node time; None if it is unknown."""

    ettr: float | None
    """Wall time of steps that count, by wall time since the submission; None if it is unknown."""

    predicted_ettr: float | None
    node_seconds: Mapping[str, float]
    """Node time by category. The values sum to `total`."""

    total: float
    allocated: float
    begin: float
    """In seconds since the epoch."""

    end: float
    final: bool
    """Whether the run has ended."""

    abandoned: bool
    """Whether no agent is left, although the run has not ended."""

    marked: bool
    """Whether the script writes progress marks."""

    fault_count: int
    faults: tuple[FaultCost, ...]
    """All faults; in a long run the newest 1,000 or more."""

    mttf: float | None
    mttf_interval: tuple[float | None, ...]
    """The bounds of the 90 % confidence interval of `mttf`."""

    save_cost: float | None
    save_interval: float | None
    best_save_interval: float | None
    at_risk: int | None
    """Steps of the running round that are not saved."""

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, price: float | None = None) -> list[str]:
        """Return the account as lines of text. ``price`` is the price of a node for an hour."""
        state = "" if self.final else ", of which no agent is left" if self.abandoned else ", which goes on"
        lines = [f"run          {self.name}{state}"]
        lines.append(f"goodput      {percent(self.goodput):>7}  of {duration(self.allocated)} of allocated node time")
        predicted = "" if self.predicted_ettr is None else f"; {percent(self.predicted_ettr)} follows from its rates"
        lines.append(f"ETTR         {percent(self.ettr):>7}  of {duration(self.end - self.begin)}{predicted}")
        for category, meaning in MEANINGS.items():
            seconds = self.node_seconds[category.value]
            if seconds:
                share = seconds / self.total
                bar = "█" * max(1, round(share * _BAR))
                time = duration(seconds)
                lines.append(f"  {category.value:10} {percent(share):>7}  {time:>9}  {bar:{_BAR}}  {meaning}".rstrip())
        lines.append(f"faults       {self._faults()}")
        lines += [self._cost(fault) for fault in self.faults[-5:]]
        if self.save_cost is not None and self.save_interval is not None:
            best = self.best_save_interval
            advice = "" if best is None else f"; every {duration(best)} loses least"
            lines.append(f"saves        one in {duration(self.save_interval)}, each {duration(self.save_cost)}{advice}")
        if self.at_risk is not None:
            lines.append(f"at risk      {self.at_risk} steps that are not saved")
        if price is not None:
            lost = self.allocated - self.node_seconds[Category.USEFUL.value]
            lines.append(
                f"price        {self.allocated / 3600 * price:.2f}, of which {lost / 3600 * price:.2f} is lost"
            )
        if not self.marked and self.allocated:
            lines.append(f"note         {_NO_MARKS}")
        return lines

    def rows(self) -> list[dict[str, object]]:
        """Return the categories as rows, for example for a DataFrame of pandas."""
        return [
            {"run": self.name, "category": category.value, "node_seconds": self.node_seconds[category.value]}
            for category in MEANINGS
        ]

    def _faults(self) -> str:
        least, most = self.mttf_interval
        if self.mttf is None:
            return f"none; fewer than one in {duration(least or 0.0)} (90 %)"
        bounds = f"{duration(least or 0.0)} to {duration(most or 0.0)}"
        return f"{self.fault_count}: one in {duration(self.mttf)} (90 %: {bounds})"

    def _cost(self, fault: FaultCost) -> str:
        cost = duration(sum(fault.node_seconds.values()))
        stopped = "" if fault.stopped is None else f", {duration(fault.stopped)} without a new step"
        return f"  round {fault.round:<5} {cost} of node time{stopped}: {fault.reason}"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def goodput_of(run: RunReader) -> Goodput:
    """Return the goodput of a run, up to now if it has not ended. Raises StoreError if its files cannot be read."""
    return goodput(run.paths.root.name, account_of(run))


def goodput(name: str, account: Account) -> Goodput:
    """Return the account of the run ``name`` in seconds."""
    return Goodput(
        name=name,
        goodput=account.goodput,
        ettr=account.ettr,
        predicted_ettr=account.predicted_ettr,
        node_seconds=_in_seconds(account.categories),
        total=account.total / SECOND,
        allocated=account.allocated / SECOND,
        begin=account.begin / SECOND,
        end=account.end / SECOND,
        final=account.final,
        abandoned=account.abandoned,
        marked=account.marked,
        fault_count=account.fault_sums.count,
        faults=tuple(
            FaultCost(
                fault.round,
                fault.time / SECOND,
                fault.reason,
                fault.node,
                _in_seconds(fault.cost),
                None if fault.stopped is None else fault.stopped / SECOND,
            )
            for fault in account.faults
        ),
        mttf=account.mttf,
        mttf_interval=account.mttf_interval,
        save_cost=account.save_cost,
        save_interval=account.save_interval,
        best_save_interval=account.best_save_interval,
        at_risk=account.at_risk,
    )


def _in_seconds(categories: Mapping[Category, int]) -> dict[str, float]:
    return {category.value: micros / SECOND for category, micros in categories.items()}
