"""Different times for the nodes of a run, which would do the same thing all at once otherwise.

Pure. The names of the nodes determine the times, so that a test or a simulation can repeat them.
"""

from zlib import crc32

_SPREAD = 0.2
"""The part of the usual interval by which a node acts earlier than another one, at most."""


def share(node: str) -> float:
    """Return the share of all nodes that come before this one, in an order that their names determine."""
    return crc32(node.encode()) / 2**32


def part_of_interval(node: str) -> float:
    """Return the part of the usual interval after which a node renews its lease, and polls.

    All nodes publish something at the same moments, such as the beginning of a round or the end of a pause of the
    filesystem. With equal intervals they would act together from then on, and whatever happens at such a moment would
    wait behind them.
    """
    return 1 - _SPREAD * share(node)


def until_moment(node: str, now: float, interval: float) -> float:
    """Return the seconds from ``now`` until the moment of a node, which returns after each ``interval``; more than 0.

    Each node has another moment. So of many nodes, one has its moment soon.
    """
    return interval - (now - share(node) * interval) % interval
