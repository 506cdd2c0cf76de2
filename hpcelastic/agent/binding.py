"""Binding of workers to processors and GPUs. By default they inherit the agent's, which SLURM has set.

Workers may also be bound to a part of these processors; see `hpcelastic.agent.numa`.
"""

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping


def binding(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the processors that this process may use, such as ``0-3,8``, and its GPUs in the order of LOCAL_RANK.

    GPUs are left out if CUDA_VISIBLE_DEVICES is not set.
    """
    gpus = environ.get("CUDA_VISIBLE_DEVICES")
    return {"cpus": format_ranges(os.sched_getaffinity(0)), **({} if gpus is None else {"gpus": gpus})}


@contextlib.contextmanager
def cpu_affinity(cpus: Collection[int]) -> Iterator[None]:
    """Restrict processes that are started within the block to ``cpus``. Without ``cpus`` nothing changes.

    A process inherits the affinity of the thread that starts it. Other threads are not changed.
    """
    before = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        if cpus:
            os.sched_setaffinity(0, before)


def format_ranges(numbers: Collection[int]) -> str:
    """Format numbers as SLURM and ``taskset -c`` do, such as ``0-3,8``."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][-1] == number - 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ",".join("-".join(map(str, ends)) for ends in found)


def name_ranks(ranks: Collection[int]) -> str:
    """Describe ranks, such as ``rank 3`` and ``ranks 0-3,8``."""
    return f"rank{'s' * (len(ranks) != 1)} {format_ranges(ranks)}"
