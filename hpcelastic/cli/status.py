"""``hpcelastic status``: show the status of a run."""

import argparse
import time

from hpcelastic.api.figures import duration
from hpcelastic.api.jobs import live_jobs
from hpcelastic.api.status import RunStatus
from hpcelastic.cli.find import add_run, find_run
from hpcelastic.cli.json_output import add_json, print_json
from hpcelastic.errors import SlurmError
from hpcelastic.health.known_causes import explain
from hpcelastic.health.verdict import format_duration
from hpcelastic.protocol.state import Phase, name_of
from hpcelastic.storage.paths import RunPaths


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
        print("\n".join(lines(status, _jobs(status))))
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


def _job(job: str, state: str) -> str:
    return f"{job} [{state}]" if " " in state else f"{job} {state}"


def _jobs(status: RunStatus) -> dict[str, str]:
    try:
        return live_jobs(RunPaths(status.directory)) if status.jobs else {}
    except SlurmError as error:
        return dict.fromkeys(status.jobs, f"unknown ({error})")
