"""``hpcelastic doctor``: examine the filesystem of a directory for runs, and the nodes, one or many at once."""

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from hpcelastic.agent.address import explained
from hpcelastic.api.doctor import FULL, LIMIT, QUICK, Diagnosis, check_id, examine, outlived, remember
from hpcelastic.doctor.meeting import Members
from hpcelastic.doctor.stock import Here
from hpcelastic.doctor.verdict import Finding, Severity, Verdict, advise, in_seconds, raised
from hpcelastic.errors import ConfigError
from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.settings import Settings
from hpcelastic.slurm.environment import slurm_task, step_rank

_WIDTH = 100
_CHECK = 22
"""Columns of the report, and of the names of its checks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Examine the filesystem of a directory for runs, and the nodes themselves: what they do, what that means, what "
        "hpcelastic does about it. "
        "The verdict stays in the directory, and runs that are started there use it. "
        "On several nodes at once it also sees what nodes hide from each other: srun -N4 hpcelastic doctor --dir DIR"
    )
    parser.epilog = (
        "The exit status is 0 if the directory is safe and the nodes are fit, 1 if not, 2 if the input was wrong."
    )
    parser.add_argument("--dir", required=True, metavar="DIR", help="the directory in which runs are, or will be")
    parser.add_argument("--quick", action="store_true", help="wait less for late changes: a few seconds, not 35")
    parser.add_argument("--interface", metavar="NAME", help="as network.interface: ib0, or a network: 10.1.0.0/16")
    parser.add_argument("--json", action="store_true", help="print all measurements and the verdict as JSON")
    group = parser.add_argument_group("several nodes without SLURM: start it on each of them")
    group.add_argument("--nodes", type=int, metavar="N", help="how many take part")
    group.add_argument(
        "--node-rank", type=int, metavar="I", help="which of them this is: 0 to N-1; 0 prints the report"
    )
    group.add_argument("--id", metavar="X", help="a word that all of them are given, a new one each time")


def run(args: argparse.Namespace) -> int:
    members = _members(args)
    return outlived(lambda: _run(args, members), LIMIT)


def _run(args: argparse.Namespace, members: Members) -> int:
    directory = Path(os.path.abspath(Path(args.dir).expanduser()))
    depth, tell = QUICK if args.quick else FULL, _tell if members.rank == 0 else _silent
    diagnosis = examine(directory, members, _here(args.interface), depth, tell)
    if diagnosis is None:
        return 0
    lines = [_json(diagnosis)] if args.json else [*report(directory, diagnosis.verdict), *node_report(diagnosis)]
    print("\n".join(lines), flush=True)
    kept = remember(directory, diagnosis.verdict)
    _tell(f"the verdict is in {kept}")
    return 0 if diagnosis.fit else 1


def _here(interface: str | None) -> Here:
    task = slurm_task(os.environ)
    try:
        chosen, why = explained(interface, task.launcher if task else "")
    except ConfigError as error:
        raise ConfigError(str(error).replace("network.interface", "--interface", 1)) from error
    return Here(chosen.address, chosen.name, why, os.environ)


def _members(args: argparse.Namespace) -> Members:
    """Who takes part: as the flags say, else as SLURM says, else this process alone."""
    step = step_rank(os.environ)
    if args.nodes is None and args.node_rank is None and args.id is None:
        return Members(step.tasks, step.rank, step.step) if step and step.tasks > 1 else Members()
    if args.nodes is None:
        raise ConfigError("--nodes is missing: --node-rank and --id are for doctors on several nodes; add --nodes N")
    if args.nodes > 1 and (args.node_rank is None or args.id is None):
        missing = "--node-rank" if args.node_rank is None else "--id"
        raise ConfigError(
            f"{missing} is missing: give each of the {args.nodes} doctors its own --node-rank, 0 to {args.nodes - 1}, "
            "and all of them the same --id"
        )
    try:
        return Members(args.nodes, args.node_rank or 0, "alone" if args.id is None else check_id(args.id))
    except ValueError as error:
        raise ConfigError(f"--nodes and --node-rank: {error}; ranks are 0 to N-1") from error


def report(directory: Path, verdict: Verdict) -> list[str]:
    """The verdict for a person."""
    members = f"{verdict.nodes} members" if verdict.nodes > 1 else "1 node"
    mount = verdict.mount
    head = [f"{directory}: {members}"]
    head += textwrap.wrap(f"{mount.kind} {mount.source} ({', '.join(mount.options)})", _WIDTH, subsequent_indent="  ")
    rows = [line for finding in verdict.findings for line in _row(finding)]
    return [*head, "", *rows, "", *_conclusion(verdict)]


def node_report(diagnosis: Diagnosis) -> list[str]:
    """What was found of the nodes, for a person."""
    rows = [line for finding in diagnosis.nodes for line in _row(finding)]
    bad = sum(finding.severity is Severity.BAD for finding in diagnosis.nodes)
    end = f"NOT FIT: {bad} of these checks would make a run fail." if bad else "The nodes are fit."
    return ["", *rows, "", end]


def _row(finding: Finding) -> Iterator[str]:
    """A line for what was found; two more for what that means and what is done, where it matters."""
    head = f"{finding.severity.value:8} {finding.check:{_CHECK}} "
    yield from textwrap.wrap(finding.result, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
    if finding.severity is Severity.FINE:
        return
    for text in (finding.meaning and f"means: {finding.meaning}", finding.remedy and f"so:    {finding.remedy}"):
        yield from textwrap.wrap(text, _WIDTH, initial_indent=" " * 12, subsequent_indent=" " * 19)


def _conclusion(verdict: Verdict) -> Iterator[str]:
    if not verdict.safe:
        yield "UNSAFE: runs are refused here. What has to change is marked above."
        return
    lock = {"native": "flock locks", "soft": "lock files", "none": "no locks"}[verdict.lock.value]
    times = f"{_late(verdict)}a file takes {in_seconds(verdict.latency)} to publish."
    yield from textwrap.wrap(f"SAFE. Runs here use {lock}; {times}", _WIDTH)
    defaults = Settings()
    change = raised(defaults, advise(defaults, verdict), verdict)
    yield from textwrap.wrap(
        f"Of the default settings, {change}" if change else "The default settings fit; none is raised.", _WIDTH
    )


def _late(verdict: Verdict) -> str:
    return f"others' changes are seen within {in_seconds(max(verdict.lag, 0.01))}; " if verdict.nodes > 1 else ""


def _json(diagnosis: Diagnosis) -> str:
    return json.dumps(encode(diagnosis), indent=2)


def _tell(line: str) -> None:
    print(f"doctor: {line}", file=sys.stderr, flush=True)


def _silent(_line: str) -> None:
    """Only member 0 speaks."""
