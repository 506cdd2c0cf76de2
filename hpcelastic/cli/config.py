"""``hpcelastic config show``: check a job file, and print the resolved configuration with the origin of each value."""

import argparse
import os
import sys

from hpcelastic.cli.job import add_job
from hpcelastic.cli.json_output import add_json, print_json
from hpcelastic.config import choose_profile, load, read_site, show
from hpcelastic.config.codec import encode
from hpcelastic.config.shortages import shortages


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    what = "print the resolved configuration with the origin of each value"
    shown = actions.add_parser("show", help=what, description=what[0].upper() + what[1:] + ".")
    add_job(shown)
    add_json(shown, "the configuration and the origins as a JSON object")


def run(args: argparse.Namespace) -> int:
    profile, site = choose_profile(args.profile, os.environ), read_site(os.environ)
    resolved = load(args.file, args.overrides, profile=profile, site=site)
    for line in [*resolved.warnings, *shortages(resolved.config)]:
        print(f"hpcelastic config: {line}", file=sys.stderr)
    if args.json:
        print_json({"config": encode(resolved.config), "origins": resolved.origins})
    else:
        print(show(resolved), end="")
    return 0
