"""The categories of node time. Pure."""

from enum import Enum


class Category(str, Enum):
    """The categories of node time. Each instant of each node belongs to exactly one."""

    QUEUE = "queue"
    """A node that was requested does not run: its job waits in SLURM's queue, or the node has failed."""

    SPARE = "spare"
    """The node stands by while a round runs without it."""

    START = "start"
    """From the start of the job to that of the agent, and until the agent takes part."""

    HANG = "hang"
    """A round made no progress, from its last step to its end."""

    DETECTION = "detection"
    """From the first sign of a fault to the end of the round; for a lost node, from the last renewal that was seen."""

    STOP = "stop"
    """The node stops or parks its workers, or waits for the end of the others."""

    RENDEZVOUS = "rendezvous"
    """The node waits for the next round."""

    LAUNCH = "launch"
    """Workers start, and create their process group; also compilation."""

    RESTORE = "restore"
    """Workers get the state with which they continue."""

    CHECKPOINT = "checkpoint"
    """The training waits for saves."""

    REDONE = "redone"
    """Steps that were made before, and the part of a step that a fault has cut off."""

    USEFUL = "useful"
    """Steps that count."""

    UNKNOWN = "unknown"
    """The logs do not tell."""
