"""``hpcelastic status``: show the status of a run."""

import argparse
import os
import sys
import time

from hpcelastic.api.accounts import log_bytes
from hpcelastic.api.figures import duration, percent
from hpcelastic.api.jobs import live_jobs
from hpcelastic.api.run import Run
from hpcelastic.api.status import RunStatus
from hpcelastic.cli.find import add_run, find_run
from hpcelastic.cli.json_output import add_json, print_json
from hpcelastic.errors import SlurmError, StoreError
from hpcelastic.health.known_causes import explain
from hpcelastic.health.verdict import format_duration
from hpcelastic.protocol.state import Phase, name_of
from hpcelastic.storage.paths import RunPaths

_MAX_LOG_BYTES = 16 << 20
"""The size of event logs that are read within about a second or two."""

_GREEN, _YELLOW, _RED = "32", "33", "31"
_PHASE_COLOURS = {
    Phase.JOINING.value: _YELLOW,
    Phase.RUNNING.value: _GREEN,
    Phase.SUCCEEDED.value: _GREEN,
    Phase.FAILED.value: _RED,
    Phase.CLOSED.value: _YELLOW,
}
_COLOURS = {
    "server": _RED,
    "drained": _YELLOW,
    "hang": _RED,
    "slow": _YELLOW,
    "incidents": _YELLOW,
    "failures": _RED,
    "cause": _RED,
    "remedy": _YELLOW,
    "goodput": _GREEN,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser, optional=True)
    add_json(parser, "the status as a JSON object")
    parser.add_argument("--watch", action="store_true", help="show the status and the new output until the run ends")


def run(args: argparse.Namespace) -> int:
    found = find_run(args)
    if args.watch:
        found.watch()
    status = found.status()
    if args.json:
        print_json(status)
    else:
        rows = lines(status, _jobs(status)) + goodput_lines(found)
        print("\n".join(_coloured(row, status.phase) for row in rows))
    return 1 if status.ended and status.phase != Phase.SUCCEEDED.value else 0


def lines(status: RunStatus, jobs: dict[str, str]) -> list[str]:
    """Return the status as lines of text."""
    rows = [
        f"run        {status.name}  ({status.directory})",
        f"phase      {status.phase}: {status.reason}",
        f"round      {status.round}, world size {status.world_size}",
        f"restarts   {status.restarts} of {status.max_restarts}",
    ]
    if status.progress:
        rows.append(f"progress   {status.progress}")
        if status.progress.saved is not None:
            ago = duration(max(0.0, time.time() - status.progress.saved))
            rows.append(f"saved      step {status.progress.saved_step:,}, {ago} ago")
    if status.copied and not status.ended and status.round:
        rows.append(f"server     does not answer; this is the newest copy of the run's state in {status.directory}")
    if status.jobs:
        rows.append("jobs       " + ", ".join(_job(job, jobs.get(job, "ended")) for job in status.jobs))
    for i, node in enumerate(status.nodes):
        part = f"  {node.part}" if node.part else ""
        again = f"  agent restarts {node.agent_restarts}" if node.agent_restarts else ""
        rows.append(f"{'nodes' if i == 0 else '':10} {node.name:16} {node.node_state:10}{part}{again}")
    if status.scaled:
        rows.append(f"scaled     to {status.scaled} node{'s' * (status.scaled != 1)}")
    if status.drained:
        rows.append(f"drained    {', '.join(status.drained)}")
    if status.hang:
        rows.append(f"hang       {status.hang}")
    if status.stragglers:
        rows.append(f"slow       {status.stragglers}")
    for i, (name, verdict) in enumerate(status.incidents.items()):
        verdict_text = f"excluded for {format_duration(verdict.back_in)}" if verdict.out else "admitted"
        rows.append(f"{'incidents' if i == 0 else '':10} {name:16} {verdict_text:10}  {'; '.join(verdict.reasons)}")
    for i, failure in enumerate(status.failures):
        where = f"rank {failure.rank} on {name_of(failure.node)} in round {failure.round}: {failure.message}"
        rows.append(f"{'failures' if i == 0 else '':10} {where}" + (f"; log: {failure.log}" if failure.log else ""))
    if status.failures and (known := explain(status.failures[0].message, status.failures[0].traceback)):
        rows += [f"cause      {known.text}", f"remedy     {known.remedy}"]
    return rows


def goodput_lines(run: Run) -> list[str]:
    """Return the goodput and the last fault as lines of text; nothing if they are unknown or take long to compute."""
    if log_bytes(run.reader.paths) > _MAX_LOG_BYTES:
        return [f"goodput    see hpcelastic goodput {run.name}; the event logs are large"]
    try:
        found = run.goodput()
    except StoreError:
        return []
    rows = []
    if found.goodput is not None:
        rows.append(f"goodput    {percent(found.goodput)} of {duration(found.allocated)} of allocated node time")
    if found.faults:
        fault = found.faults[-1]
        ago = duration(max(0.0, time.time() - fault.time))
        cost = duration(sum(fault.node_seconds.values()))
        rows.append(f"last fault round {fault.round}, {ago} ago, {cost} of node time: see hpcelastic why {run.name}")
    return rows


def _coloured(row: str, phase: str) -> str:
    """Return a line in colour if it is shown on a terminal: the phase, and what needs the attention of the user."""
    if not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        return row
    name = row.partition(" ")[0]
    colour = _PHASE_COLOURS.get(phase) if name == "phase" else _COLOURS.get(name)
    return row if colour is None else f"\033[{colour}m{name}\033[0m{row[len(name) :]}"


def _job(job: str, state: str) -> str:
    return f"{job} [{state}]" if " " in state else f"{job} {state}"


def _jobs(status: RunStatus) -> dict[str, str]:
    try:
        return live_jobs(RunPaths(status.directory)) if status.jobs else {}
    except SlurmError as error:
        return dict.fromkeys(status.jobs, f"unknown ({error})")
