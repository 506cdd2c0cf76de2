"""How commands are given a job: a file, and keys to set otherwise."""

import argparse


def add_job(parser: argparse.ArgumentParser) -> None:
    """The arguments that give a job."""
    parser.add_argument("file", metavar="FILE", help="the job file (YAML)")
    what = "settings of a cluster from your own file, none for none; chosen by the cluster's name if not given"
    parser.add_argument("--profile", metavar="NAME", help=what)
    what = "keys to set otherwise, such as nodes=2..4"
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help=what)


def add_resume(parser: argparse.ArgumentParser) -> None:
    """The flag that lets an ended run go on."""
    parser.add_argument("--resume", action="store_true", help="continue a run that has ended, in its directory")
