"""``hpcelastic nodes``: show the record of bad nodes that runs of several users share, and forgive nodes."""

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.cli.json_output import add_json, print_json
from hpcelastic.cli.parser import number_of
from hpcelastic.config import read_site
from hpcelastic.errors import ConfigError
from hpcelastic.health.node_record import Entry, NodeRecord
from hpcelastic.health.settings import HealthSettings
from hpcelastic.health.verdict import format_age, format_duration, verdicts

_DAY = 86400.0
_DAYS = 30.0


@dataclass(frozen=True)
class RecordedNode:
    """A node in the record."""

    node: str
    excluded_for: float
    """Seconds for which jobs with the default half-life exclude it; 0 if they do not exclude it."""

    incidents: tuple[Entry, ...]
    """Its incidents, the newest first."""

    @property
    def line(self) -> str:
        users, runs = ({getattr(entry, name) for entry in self.incidents} for name in ("user", "run"))
        newest = self.incidents[0]
        return (
            f"{f'out for {format_duration(self.excluded_for)}' if self.excluded_for else 'admitted':15}  "
            f"incidents: {len(self.incidents)}, users: {len(users)}, runs: {len(runs)}; "
            f"{newest.cause.value} {format_age(time.time() - newest.time)}: {newest.message}{_forgiven(newest)}"
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("nodes", nargs="*", metavar="NODE", help="show all incidents of these nodes")
    parser.add_argument(
        "--record", metavar="DIR", help="directory of the record (default: health.shared_record of the site's file)"
    )
    parser.add_argument(
        "--days",
        type=number_of("days"),
        default=_DAYS,
        metavar="DAYS",
        help=f"show the incidents of the last days (default: {_DAYS:g})",
    )
    parser.add_argument("--forgive", action="store_true", help="allow the nodes again for the runs of all users")
    add_json(parser, "an array of JSON objects, one for each node")


def run(args: argparse.Namespace) -> int:
    directory = Path(args.record) if args.record else _record_of_site()
    record = NodeRecord(directory)
    record.check()
    if args.forgive:
        _forgive(record, args.nodes)
    found = [
        node for node in _recorded(record.entries(), args.days * _DAY) if node.node in args.nodes or not args.nodes
    ]
    if args.json:
        print_json(found)
        return 0
    width = max((len(each.node) for each in found), default=0)
    for each in found:
        print(f"{each.node:{width}}  {each.line}")
        for entry in each.incidents if args.nodes else ():
            print(f"{'':{width}}  {_describe(entry)}")
    if not found:
        print(f"{directory.absolute()}: no incidents in {args.days:g} days")
    return 0


def _record_of_site() -> Path:
    site = read_site(os.environ)
    health = site.defaults.value.get("health") if site else None
    directory = health.get("shared_record") if isinstance(health, dict) else None
    if not directory:
        raise ConfigError("the site's file names no record of nodes (health.shared_record); use --record DIR")
    return Path(directory)


def _forgive(record: NodeRecord, nodes: Sequence[str]) -> None:
    if not nodes:
        raise ConfigError("--forgive: write the nodes that are repaired; without --forgive, all nodes are shown")
    if unknown := sorted(set(nodes) - record.forgive(nodes)):
        raise ConfigError(f"{', '.join(unknown)}: no incident is recorded; hpcelastic nodes shows the nodes")


def _recorded(entries: Sequence[Entry], age: float) -> list[RecordedNode]:
    """Return the nodes with incidents that are at most ``age`` seconds old; excluded nodes and the newest first."""
    now = time.time()
    judged = verdicts((e.incident for e in entries if not e.forgiven_by), now, HealthSettings.half_life)
    by_node: dict[str, list[Entry]] = {}
    for entry in reversed(entries):
        if entry.time >= now - age:
            by_node.setdefault(entry.node, []).append(entry)
    nodes = [
        RecordedNode(node, judged[node].back_in if node in judged else 0.0, tuple(incidents))
        for node, incidents in by_node.items()
    ]
    return sorted(nodes, key=lambda node: (-node.excluded_for, -node.incidents[0].time))


def _describe(entry: Entry) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.time))
    origin = f"user {entry.user}, run {entry.run}, round {entry.round}"
    return f"{when}  {entry.cause.value}: {entry.message}; {origin}{_forgiven(entry)}"


def _forgiven(entry: Entry) -> str:
    return f" (forgiven by {entry.forgiven_by})" if entry.forgiven_by else ""
