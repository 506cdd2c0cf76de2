"""The kinds of progress marks, and the meaning of their values."""

import struct
from enum import IntEnum

_DOUBLE, _NUMBER = struct.Struct("d"), struct.Struct("q")


class MarkKind(IntEnum):
    """The kinds of marks."""

    STEP = 1
    """The worker has called ``should_stop()``. The value is the number of its calls in this round."""

    SAVED = 2
    """The worker has saved its state. The value is the number of steps that the state contains."""

    RESTORED = 3
    """The worker continues from a state. The value is the number of steps that the state contains."""

    STOPPING = 4
    """The worker has read a request to stop. The value is that of `STEP`."""

    PARKED = 5
    """The worker has left its round, and waits for the next one. The value is the round."""

    RESUMED = 6
    """The worker has entered another round. The value is the round."""

    ENTERED = 7
    """The worker has called the function that is called in each round. The value is the round."""

    GROUP = 8
    """The worker has created a process group. The value is the round."""

    SAVING = 9
    """The worker has begun to save its state. The value is 0."""

    COMPILING = 10
    """The worker has begun to compile. The value is the time limit in seconds; 0 for the default."""

    EVALUATING = 11
    """The worker has begun to evaluate. The value is that of `COMPILING`."""

    PHASE = 12
    """The worker has begun a phase of another kind. The value is that of `COMPILING`."""

    PHASE_ENDED = 13
    """The worker has ended the newest phase that had not ended. The value is 0."""

    DONE = 14
    """The worker has no further step to make. The value is the number of steps that are complete."""

    POISONED = 15
    """The worker has found its state to be poisoned. The value is the number of steps that are complete. `ROLLBACK`
    follows."""

    ROLLBACK = 16
    """The worker demands that training returns to an older state. The value is the number of steps in that state."""

    SOURCE = 17
    """The worker has found the state with which it continues. The value is a `Source`. `RESTORED` follows."""

    TOTAL = 18
    """The worker has told how many steps the training has in all. The value is this number."""

    LOSS = 19
    """The worker has told the loss of its newest step. The value is that of `loss_bits`."""


class Source(IntEnum):
    """The place from which a worker has its state at the beginning of a round."""

    UNKNOWN = 0
    KEPT = 1
    """The process has kept its state over the end of the last round."""

    PEER = 2
    """Another rank has sent the state."""

    MEMORY = 3
    """A snapshot in the memory of this node's agent."""

    DISK = 4
    BEGINNING = 5
    """There was no state yet: the training begins."""

    BUDDY = 6
    """A snapshot of which a part was in the memory of another node's agent."""


PHASES = (MarkKind.SAVING, MarkKind.COMPILING, MarkKind.EVALUATING, MarkKind.PHASE)
"""The marks that begin a phase, in which the worker makes no steps."""


def loss_bits(loss: float) -> int:
    """Return the value of a mark of a loss."""
    bits: int = _NUMBER.unpack(_DOUBLE.pack(loss))[0]
    return bits


def loss_of(bits: int) -> float:
    """Return the loss in the value of a mark."""
    loss: float = _DOUBLE.unpack(_NUMBER.pack(bits))[0]
    return loss
