"""What a worker calls where `hpcelastic.pytorch.launch` was given a function: that function, as torch would call it."""

import os
from collections.abc import Callable, Sequence
from string import Template
from typing import Any


def call(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Call it under torch's ``@record``, with whatever error handler the user has, and ``${local_rank}`` replaced."""
    from torch.distributed.elastic.multiprocessing.errors import record

    rank = os.environ["LOCAL_RANK"]
    given = [Template(arg).safe_substitute(local_rank=rank) if isinstance(arg, str) else arg for arg in args]
    return record(function)(*given)
