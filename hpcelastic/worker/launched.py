"""What a worker calls where `hpcelastic.pytorch.launch` was given a function: that function, as torch would call it."""

import os
import sys
from collections.abc import Sequence
from string import Template
from typing import Any

from hpcelastic import values


def call(argv: Sequence[str], pickled: bytes) -> Any:
    """Call the function in ``pickled`` under torch's ``@record``, with whatever error handler the user has.

    In its arguments ``${local_rank}`` is replaced. ``argv`` becomes sys.argv before the function's module is loaded,
    as multiprocessing does it: a function may parse the arguments of the process that has launched it.
    """
    from torch.distributed.elastic.multiprocessing.errors import record

    sys.argv = list(argv)
    function, args = values.loaded_call(pickled)
    rank = os.environ["LOCAL_RANK"]
    given = [Template(arg).safe_substitute(local_rank=rank) if isinstance(arg, str) else arg for arg in args]
    return record(function)(*given)
