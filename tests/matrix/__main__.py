"""Runs the tests with other versions of SLURM, Python and PyTorch: ``python -m tests.matrix [--only TEST ...] [SUITE
...]``.

A suite is a Debian release (``bookworm``, ``trixie``, ``sid``), an interpreter of this machine (``python3.10``) or a
PyTorch (``torch2.10``). Each is built or updated, and runs its pieces in turn. Results are kept in results.json, from
which the table of docs/compatibility.md is made; with ``--only`` no results are kept. It needs only Python's standard
library; a Debian release needs root.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import asdict
from datetime import date
from pathlib import Path

from tests.matrix import results
from tests.matrix.environments import CHECKOUT, Environment, environment

SUITES = ("bookworm", "trixie", "sid")
_PASSED, _FAILED = 0, 1
"""The exit statuses of pytest after a complete run."""

_PYTEST = ("-n", "2", "--dist", "loadgroup", "-m", "not weekly")
"""Selects nightly tests too; a later -m replaces this one."""


def main() -> int:
    arguments, commit = _arguments(), _commit()  # of now: each result changes a file
    failed = []
    for name in arguments.suites or SUITES:
        there = environment(name, arguments.directory, arguments.torch)
        try:
            there.build()
            versions = there.versions()
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{name}: could not be built: {error}", file=sys.stderr)
            failed.append(name)
            continue
        print(f"{name}: {versions}", flush=True)
        if arguments.build:
            continue
        if arguments.only:
            if subprocess.run(there.pytest(*_PYTEST, *arguments.only), cwd=CHECKOUT).returncode:
                failed.append(name)
            continue
        for piece in arguments.pieces or there.pieces:
            found = _run(there, piece, commit)
            print(f"{name}: {piece}: {found}", flush=True)
            known = results.read()
            results.with_result(known, name, asdict(versions), piece, found)
            results.write(known)
            if found.failed:
                failed.append(f"{name}: {piece}")
    for what in failed:
        print(f"failed: {what}", file=sys.stderr)
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE")
    parser.add_argument(
        "--only", nargs=argparse.REMAINDER, metavar="TEST", help="run these, with options for pytest; keep no result"
    )
    parser.add_argument("--build", action="store_true", help="build what is missing, and run nothing")
    parser.add_argument("--pieces", nargs="+", metavar="PIECE", help="not all pieces, but these")
    parser.add_argument("--torch", default="torch", help="which PyTorch, as pip is told")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpcelastic-matrix"
    parser.add_argument("--directory", type=Path, default=cache, help=f"where it is built; {cache}")
    return parser.parse_args()


def _run(there: Environment, piece: str, commit: str) -> results.Piece:
    today = date.today().isoformat()
    selection = there.pieces[piece]
    if not selection:
        status = subprocess.run(there.demo(), cwd=CHECKOUT).returncode
        return results.Piece(today, commit, **({"failed": ("make demo",)} if status else {"passed": 1}))
    inside, report = there.path("report.xml")
    report.unlink(missing_ok=True)
    status = subprocess.run(there.pytest(*_PYTEST, f"--junitxml={inside}", *selection), cwd=CHECKOUT).returncode
    if status not in (_PASSED, _FAILED) or not report.exists():
        return results.Piece(today, commit, failed=(f"pytest, which did not come to its end (status {status})",))
    return results.read_report(report.read_text(), today, commit)


def _commit() -> str:
    """Return the commit, with a mark if the checkout differs from it."""
    output = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=CHECKOUT, capture_output=True, text=True)
    return output.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
