"""Run the nightly or the weekly check.

    python -m tests.periodic nightly            # every part, one after the other
    python -m tests.periodic weekly             # the parts that have not passed on the code as it is
    python -m tests.periodic weekly --report    # run nothing; show the last result of each part

Each part writes its output to a log of its own. The last lines are a table: part, result, time, budget. The exit status
is 0 if every part has passed. A part that takes longer than its budget is ended and has failed.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.periodic.parts import TIMES, Part, nightly, weekly
from tests.periodic.record import CHECKOUT, Record, Result, commit, content, holds

LOGS = CHECKOUT / "build" / "periodic"
RECORDS = {"nightly": LOGS / "nightly.jsonl", "weekly": CHECKOUT / "tests" / "periodic" / "weekly.jsonl"}
"""The weekly results are part of the checkout, so that the next machine continues with the remaining parts."""

_STEP = 30.0
"""Seconds between two lines of progress."""

_GRACE = 20.0
"""Seconds that a part has for its cleanup after the signal to end."""


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))  # the part ends too
    parts = nightly(_today().toordinal()) if arguments.check == "nightly" else weekly()
    chosen = [part for part in parts if not arguments.parts or part.name in arguments.parts]
    record = Record(RECORDS[arguments.check])
    if not arguments.report:
        for number, part in enumerate(chosen, 1):
            if arguments.check == "weekly" and holds(record.latest().get(part.name), part):
                continue
            record.add(run(part, f"{number}/{len(chosen)} {part.name}"))
    return report(chosen, record)


def run(part: Part, title: str) -> Result:
    """Run one part, with a line of progress from time to time."""
    LOGS.mkdir(parents=True, exist_ok=True)
    path = LOGS / f"{part.name}.log"
    began, base, sources = time.monotonic(), commit(), content(part.sources)
    print(f"{title}: {' '.join(part.command)}\n    output: {path}", flush=True)
    if TIMES in part.command:
        (CHECKOUT / TIMES).unlink(missing_ok=True)
    with path.open("wb") as log:
        process = subprocess.Popen(
            part.command, cwd=CHECKOUT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            over = _await(process, part, began, title)
        except BaseException:  # Ctrl-C or SIGTERM
            _end(process)
            raise
    seconds = time.monotonic() - began
    passed = process.returncode == 0 and not over
    outcome = "over its budget" if over else _last_line(path)
    if not passed:
        print(_tail(path, 60))
    print(f"{title}: {'passed' if passed else 'FAILED'} after {seconds:.0f} s: {outcome}", flush=True)
    now = _now().isoformat(timespec="seconds")
    return Result(part.name, passed, round(seconds, 1), now, base, sources, outcome)


def _await(process: subprocess.Popen[bytes], part: Part, began: float, title: str) -> bool:
    """Wait for the end of a part. Return whether it was ended because of its budget."""
    budget = 60 * part.budget or math.inf
    while True:
        left = began + budget - time.monotonic()
        try:
            process.wait(max(0.0, min(_STEP, left)))
            return False
        except subprocess.TimeoutExpired:
            if left <= _STEP:
                _end(process)
                return True
        limit = f" of {budget:.0f} s" if part.budget else ""
        print(f"{title}: {time.monotonic() - began:.0f} s{limit}", flush=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the part like Ctrl-C, then kill the rest of its process group."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def report(parts: list[Part], record: Record) -> int:
    """Print a table of the last result of each part. Return 0 if all of them have passed."""
    latest = record.latest()
    print(f"\n{'part':24} {'result':12} {'seconds':>8} {'budget':>7}  {'commit':10} {'date':20} outcome")
    held, seconds = 0, 0.0
    for part in parts:
        result = latest.get(part.name)
        if result is None:
            print(f"{part.name:24} not run")
            continue
        held += holds(result, part)
        seconds += result.seconds
        state = "passed" if holds(result, part) else "out of date" if result.passed else "FAILED"
        budget = f"{60 * part.budget:.0f}" if part.budget else "-"
        print(
            f"{part.name:24} {state:12} {result.seconds:8.0f} {budget:>7}  {result.commit:10} {result.date[:16]:20} "
            f"{result.outcome[:100]}"
        )
    print(f"{held} of {len(parts)} parts passed, {seconds / 60:.0f} minutes")
    return 0 if held == len(parts) else 1


def _tail(path: Path, lines: int) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip("= ")[:200] if lines else "no output"


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def _today() -> datetime.date:
    return _now().date()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.periodic", description=__doc__.partition("\n")[0])
    parser.add_argument("check", choices=["nightly", "weekly"])
    parser.add_argument("parts", nargs="*", help="only these parts; default: all")
    parser.add_argument("--report", action="store_true", help="run nothing; show the last result of each part")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
