"""The context of a worker: its place in the round, from the environment variables that its agent sets."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.errors import ConfigError


@dataclass(frozen=True)
class Context:
    """This worker's place in the run; 0 <= rank < world_size."""

    rank: int
    """Number of this worker in the round; the ranks of a round are 0 to ``world_size - 1``."""

    local_rank: int
    """Number of this worker on its node, which is also the number of its GPU."""

    world_size: int
    """Workers in this round; another round may have more or fewer."""

    round: int
    """The fencing token. It grows by one whenever a new worker group forms; 0 outside hpcelastic."""

    node: str
    """Name of this worker's node."""

    run_dir: Path | None
    """The run's directory on the shared filesystem; None outside hpcelastic."""


def context() -> Context:
    """Return the context of this worker; without an agent, that of a single process of rank 0.

    Raises ``ConfigError`` if a variable that must be a number is not one.
    """
    run_dir = os.environ.get("HPCELASTIC_RUN_DIR")
    return Context(
        rank=_number("RANK", 0),
        local_rank=_number("LOCAL_RANK", 0),
        world_size=_number("WORLD_SIZE", 1),
        # Not TORCHELASTIC_RESTART_COUNT: agents of torchrun may disagree on it, and it starts again at 0.
        round=_number("HPCELASTIC_ROUND", 0),
        node=os.environ.get("HPCELASTIC_NODE") or socket.gethostname(),
        run_dir=Path(run_dir) if run_dir else None,
    )


def local_index() -> int:
    """Return the number of this worker on its node. LOCAL_RANK differs from it if each worker sees only its own GPU."""
    return _number("HPCELASTIC_LOCAL_RANK", context().local_rank)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name) or str(default)
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"{name} is {text!r} in the environment; it must be a whole number: set or unset it")
    return int(text)
