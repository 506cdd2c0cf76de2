"""``hpcelastic doctor``: examine the filesystem of a directory for runs, and one or more nodes."""

import argparse
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from hpcelastic.agent.address import explain_address
from hpcelastic.api.doctor import FULL, LIMIT, QUICK, Diagnosis, check_id, examine, run_in_child, save_verdict
from hpcelastic.cli.json_output import add_json, print_json
from hpcelastic.doctor.coordination import Members
from hpcelastic.doctor.node_report import LocalNode
from hpcelastic.doctor.verdict import Conclusion, FilesystemReport, Severity, advise, describe_changes, format_seconds
from hpcelastic.errors import ConfigError
from hpcelastic.network.settings import NetworkSettings
from hpcelastic.protocol.settings import Settings
from hpcelastic.slurm.environment import slurm_task, step_rank
from hpcelastic.storage.home import expand_home

_WIDTH = 100
_CHECK = 22
"""Width of the report, and of its column of check names."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Examine the filesystem of a directory for runs, and the nodes themselves. Each finding says what was seen, "
        "what it means, and what to do. The verdict is kept in the directory, and runs in the directory use it. "
        "Several nodes together also measure caches and visibility between nodes: "
        "srun -N4 hpcelastic doctor --dir DIR"
    )
    parser.epilog = (
        "The exit status is 0 if the directory is safe and the nodes are fit, 1 if not, 2 for invalid input."
    )
    parser.add_argument("--dir", required=True, metavar="DIR", help="the directory in which runs are, or will be")
    parser.add_argument("--quick", action="store_true", help="wait 3 s for late changes instead of 35 s")
    parser.add_argument(
        "--benchmark",
        action="store_true",
        help="also measure the speed of the nodes and of the connections between them",
    )
    parser.add_argument(
        "--interface", metavar="NAME", help="as network.interface: a name such as ib0, or a network such as 10.1.0.0/16"
    )
    parser.add_argument(
        "--ports", metavar="A-B", help="as network.ports: test the connections between these ports, such as 29500-29600"
    )
    add_json(parser, "all measurements and the verdict as a JSON object")
    group = parser.add_argument_group("several nodes without SLURM: start doctor on each node")
    group.add_argument("--nodes", type=int, metavar="N", help="number of nodes")
    group.add_argument(
        "--node-rank", type=int, metavar="I", help="rank of this node, 0 to N-1; rank 0 prints the report"
    )
    group.add_argument("--id", metavar="X", help="name of the examination: the same on all nodes, a new one each time")


def run(args: argparse.Namespace) -> int:
    members = _members(args)
    return run_in_child(lambda: _run(args, members), LIMIT)


def _run(args: argparse.Namespace, members: Members) -> int:
    directory = Path(os.path.abspath(expand_home(args.dir)))
    depth, progress = QUICK if args.quick else FULL, _report_progress if members.rank == 0 else _ignore_progress
    here = _local_node(args.interface, args.ports)
    diagnosis = examine(directory, members, here, depth, progress, benchmark=args.benchmark)
    if diagnosis is None:
        return 0
    if args.json:
        print_json(diagnosis)
    else:
        print("\n".join([*report(directory, diagnosis.verdict), *node_report(diagnosis)]), flush=True)
    path = save_verdict(directory, diagnosis.verdict)
    _report_progress(f"the verdict is in {path}")
    return 0 if diagnosis.fit else 1


def _local_node(interface: str | None, ports: str | None) -> LocalNode:
    task = slurm_task(os.environ)
    try:
        network = NetworkSettings(interface, ports)
        chosen, reason = explain_address(interface, task.launcher if task else "")
    except (ConfigError, ValueError) as error:
        raise ConfigError(str(error).replace("network.", "--", 1)) from error
    return LocalNode(chosen.address, chosen.name, reason, os.environ, network, _gloo_address())


def _gloo_address() -> str:
    name = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]  # gloo accepts several; source: torch, init.py
    try:
        return explain_address(name)[0].address if name else ""
    except ConfigError as error:
        raise ConfigError(str(error).replace("network.interface", "GLOO_SOCKET_IFNAME", 1)) from error


def _members(args: argparse.Namespace) -> Members:
    """Return the members from the options, else from the SLURM step, else only this process."""
    step = step_rank(os.environ)
    if args.nodes is None and args.node_rank is None and args.id is None:
        return Members(step.tasks, step.rank, step.step) if step and step.tasks > 1 else Members()
    if args.nodes is None:
        raise ConfigError("--nodes is missing: --node-rank and --id are for several nodes; add --nodes N")
    if args.nodes > 1 and (args.node_rank is None or args.id is None):
        missing = "--node-rank" if args.node_rank is None else "--id"
        raise ConfigError(
            f"{missing} is missing: give each of the {args.nodes} nodes its own --node-rank, 0 to {args.nodes - 1}, "
            "and all of them the same --id"
        )
    try:
        return Members(args.nodes, args.node_rank or 0, "alone" if args.id is None else check_id(args.id))
    except ValueError as error:
        raise ConfigError(f"--nodes and --node-rank: {error}; ranks are 0 to N-1") from error


def report(directory: Path, verdict: FilesystemReport) -> list[str]:
    """Format the verdict on the filesystem."""
    members = f"{verdict.nodes} members" if verdict.nodes > 1 else "1 node"
    mount = verdict.mount
    head = [f"{directory}: {members}"]
    head += textwrap.wrap(f"{mount.kind} {mount.source} ({', '.join(mount.options)})", _WIDTH, subsequent_indent="  ")
    rows = [line for finding in verdict.findings for line in _row(finding)]
    return [*head, "", *rows, "", *_conclusion(verdict)]


def node_report(diagnosis: Diagnosis) -> list[str]:
    """Format the findings on the nodes."""
    rows = [line for finding in diagnosis.nodes for line in _row(finding)]
    bad = sum(finding.severity is Severity.BAD for finding in diagnosis.nodes)
    conclusion = f"NOT FIT: {bad} of these findings would make a run fail." if bad else "The nodes are fit."
    return ["", *rows, "", conclusion]


def _row(finding: Conclusion) -> Iterator[str]:
    """Format a finding: its result, and below it its meaning and the action, if it is not OK."""
    head = f"{finding.severity.value:8} {finding.check:{_CHECK}} "
    yield from textwrap.wrap(finding.result, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
    if finding.severity is Severity.OK:
        return
    for text in (finding.meaning and f"means:  {finding.meaning}", finding.remedy and f"action: {finding.remedy}"):
        yield from textwrap.wrap(text, _WIDTH, initial_indent=" " * 12, subsequent_indent=" " * 20)


def _conclusion(verdict: FilesystemReport) -> Iterator[str]:
    if not verdict.safe:
        yield "UNSAFE: runs in this directory are refused. Fix the findings that are marked unsafe."
        return
    times = f"{_format_lag(verdict)}it takes {format_seconds(verdict.latency)} to publish a file."
    yield from textwrap.wrap(f"SAFE: {times}", _WIDTH)
    defaults = Settings()
    change = describe_changes(defaults, advise(defaults, verdict), verdict)
    yield from textwrap.wrap(f"Settings: {change or 'the default settings fit; none is raised'}.", _WIDTH)


def _format_lag(verdict: FilesystemReport) -> str:
    if verdict.nodes <= 1:
        return ""
    return f"changes by other nodes are visible within {format_seconds(max(verdict.lag, 0.01))}; "


def _report_progress(line: str) -> None:
    print(f"doctor: {line}", file=sys.stderr, flush=True)


def _ignore_progress(_line: str) -> None:
    """Print nothing, because only member 0 reports progress."""
