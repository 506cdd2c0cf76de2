"""What of a node its workers are bound to: they inherit it from the agent, which has it from SLURM.

Or they are bound to a part of that; see `hpcelastic.agent.numa`.
"""

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping


def binding(environ: Mapping[str, str]) -> dict[str, str]:
    """The processors that this process may use, ``0-3,8``, and its GPUs in the order of LOCAL_RANK, if it is told."""
    gpus = environ.get("CUDA_VISIBLE_DEVICES")
    return {"cpus": ranges(os.sched_getaffinity(0)), **({} if gpus is None else {"gpus": gpus})}


@contextlib.contextmanager
def bound(cpus: Collection[int]) -> Iterator[None]:
    """Who is started within the block may use ``cpus`` alone; as before where there are none.

    Processes inherit it from the thread that starts them, and no other thread of ours is touched.
    """
    before = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        if cpus:
            os.sched_setaffinity(0, before)


def ranges(numbers: Collection[int]) -> str:
    """As SLURM and ``taskset -c`` write it: ``0-3,8``."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][-1] == number - 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ",".join("-".join(map(str, ends)) for ends in found)
