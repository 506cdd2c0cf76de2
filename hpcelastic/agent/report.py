"""Reports of an agent to the user, on standard error."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

from hpcelastic.errors import RunFailed
from hpcelastic.protocol.state import Failure, name_of


def reporter(name: str, output: TextIO | None = None) -> Callable[[str], None]:
    """Return a function that prints one line with the time and the node's name, to ``output`` or standard error."""

    def report(line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} [{name}] {line}", file=output or sys.stderr, flush=True)

    return report


def print_failures(error: RunFailed) -> None:
    """Print the root cause in full and one line for each other failure."""
    for i, failure in enumerate(error.failures):
        if isinstance(failure, Failure):
            print(describe(failure, full=i == 0), file=sys.stderr)


def describe(failure: Failure, *, full: bool) -> str:
    """Describe a failure: rank, node, log path, and with ``full`` what is known about its cause, and the traceback."""
    head = f"rank {failure.rank} on {name_of(failure.node)} in round {failure.round}: {failure.message}"
    log = f"\n  log: {failure.log}" if failure.log else ""
    if not full:
        return f"then: {head}{log}"
    from hpcelastic.health.known_causes import explain  # here, because most agents end without a failure

    known = explain(failure.message, failure.traceback)
    advice = f"\n  cause: {known.text}\n  remedy: {known.remedy}" if known else ""
    text = "".join(f"\n  | {line}" for line in failure.traceback.splitlines())
    return f"root cause: {head}{log}{advice}{text}"
