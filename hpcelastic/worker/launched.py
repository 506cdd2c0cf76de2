"""The call of a worker whose entry point is a function given to `hpcelastic.pytorch.launch`, as torch would call it."""

import os
import sys
from collections.abc import Sequence
from string import Template
from typing import Any

from hpcelastic import values


def call(argv: Sequence[str], pickled: bytes) -> Any:
    """Call the function in ``pickled`` under torch's ``@record``, with the user's error handler.

    ``${local_rank}`` is replaced in its arguments. ``argv`` becomes sys.argv before the function's module is loaded, as
    in multiprocessing: a function may parse the arguments of the process that has launched it.
    """
    from torch.distributed.elastic.multiprocessing.errors import record

    sys.argv = list(argv)
    function, args = values.loaded_call(pickled)
    rank = os.environ["LOCAL_RANK"]
    arguments = [Template(arg).safe_substitute(local_rank=rank) if isinstance(arg, str) else arg for arg in args]
    return record(function)(*arguments)
