"""Functions that workers of `test_launch` run; torch's own agent imports them by name."""

import os
import signal
import subprocess
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


def passes() -> None:
    pass


def raises() -> None:
    raise ArithmeticError(f"rank {rank()} has diverged")


def raises_on_odd_ranks(notes: str) -> None:
    """Fail on every second rank. Each start of a rank creates a file in ``notes``."""
    Path(notes, f"{os.environ['TORCHELASTIC_RESTART_COUNT']}.{rank()}").touch()
    if rank() % 2:
        raises()


def is_killed_on(killed: int, signum: int) -> int:
    """Be killed by a signal on one rank. The other ranks wait until they are stopped."""
    if rank() == killed:
        os.kill(os.getpid(), signum)
    time.sleep(100)
    return rank()


def is_killed_once(killed: int) -> int:
    """Be killed on one rank in the first round."""
    if (rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]) == (killed, "0"):
        os.kill(os.getpid(), signal.SIGKILL)
    return rank()


def sums(up: str = "", go: str = "") -> int:
    """Add the ranks of all workers with a collective, once the file ``go`` exists. Before, create a file in ``up``."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    if up:
        Path(up, f"{os.environ['WORLD_SIZE']}.{rank()}").touch()
    while go and not Path(go).exists():
        time.sleep(0.05)
    total = torch.tensor(rank())
    distributed.all_reduce(total)
    distributed.destroy_process_group()
    return int(total)


def ranks() -> dict[str, int]:
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "ROLE_WORLD_SIZE", "LOCAL_WORLD_SIZE")
    return {name: int(os.environ[name]) for name in names}


def leaves_a_child(notes: str) -> None:
    """Leave a process behind, in a session of its own."""
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path(notes, str(child.pid)).touch()


def calls_the_other(message: str) -> str:
    """Call a function on the other worker, which runs `answers_calls`."""
    rpc = joined_rpc("caller")
    answer: str = rpc.rpc_sync("callee", str.upper, (message,))
    rpc.shutdown()
    return answer


def answers_calls() -> None:
    joined_rpc("callee").shutdown()


def joined_rpc(name: str) -> Any:
    from torch.distributed import rpc

    rpc.init_rpc(name, rank=rank(), world_size=int(os.environ["WORLD_SIZE"]))
    return rpc
