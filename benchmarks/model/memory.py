"""The memory of a node, in a process that has the objects of all nodes."""

_SIZES = range(48, 513, 16)
"""The sizes of the objects that share pages of memory, in bytes. `bytes` has no smaller ones."""

_HOLES = 50_000
"""The number of places of each size that are filled. The changes of ten thousand nodes leave some for each node."""


def objects_in_holes() -> list[list[bytes]]:
    """Return objects in the places that other nodes have left free.

    As long as they exist, new objects lie one after the other, as those of an agent do in a process of its own. An
    agent with ten thousand leases needs twice as long if its objects are scattered among those of all others.
    """
    return [[bytes(size - bytes.__basicsize__) for _ in range(_HOLES)] for size in _SIZES]
