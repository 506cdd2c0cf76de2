"""The store of torchrun's agents. Each agent reports there that its workers have succeeded."""

import os
from collections.abc import Callable

from hpcelastic.pytorch.store import RunStore

_EXIT_BARRIER_PREFIX = "torchelastic/agent/terminal_state"
"""Prefix of the keys of the exit barrier. An agent enters the barrier only after its workers have succeeded.

Source: ``SimpleElasticAgent._exit_barrier`` in torch/distributed/elastic/agent/server/api.py.
"""


class AgentStore(RunStore):
    """A store of one round, in ``directory``. It calls ``on_success`` when this process enters the exit barrier.

    torch's agent reports to a rendezvous handler that it ends, but not whether its workers have succeeded. Entering the
    barrier is the only sign of success.
    """

    def __init__(self, directory: str | os.PathLike[str], on_success: Callable[[], None]) -> None:
        super().__init__(directory)
        self._on_success = on_success

    def add(self, key: str | bytes, amount: int) -> int:
        """Like `RunStore.add`."""
        if isinstance(key, str) and key.startswith(_EXIT_BARRIER_PREFIX):
            self._on_success()
        return super().add(key, amount)
