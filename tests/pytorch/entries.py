"""Functions that workers of `test_launch` run; torch's own agent imports them by name."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

WHEN_LOADED = list(sys.argv)


def rank() -> int:
    return int(os.environ["RANK"])


def echoes(*args: Any) -> tuple[Any, ...]:
    return (rank(), *args)


def raises_on(failing: int, notes: str = "") -> int:
    """Fail on one rank. The other ranks wait until they are stopped. Each start creates a file in ``notes``."""
    if notes:
        Path(notes, f"{os.environ['TORCHELASTIC_RESTART_COUNT']}.{rank()}").touch()
    if rank() == failing:
        raise ArithmeticError(f"rank {failing} has diverged")
    time.sleep(100)
    return rank()


def is_killed(_: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def works_at_last(starts: int) -> int:
    """Fail until it has been started ``starts`` times."""
    count = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1
    if count < starts:
        sys.exit(9)
    return count


def environment(*names: str) -> list[str | None]:
    return [os.environ.get(name) for name in names]


def arguments() -> list[str]:
    """Return sys.argv at the import of this module, and sys.argv now."""
    return [*WHEN_LOADED, *sys.argv]


def speaks() -> None:
    print(f"out of {rank()}: loss", flush=True)
    print(f"err of {rank()}: acc", file=sys.stderr, flush=True)


def waits(up: str) -> None:
    Path(up, str(rank())).write_text(str(os.getpid()))
    time.sleep(100)


def takes(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def hangs_under_a_timer() -> None:
    from torch.distributed.elastic import timer

    client = timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"])
    with timer.expires(after=0.2, scope="save", client=client):
        time.sleep(100)
