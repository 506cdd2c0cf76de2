"""The store of torchrun's agents, in which each says that its workers have succeeded."""

import os
from collections.abc import Callable

from hpcelastic.pytorch.store import RunStore

_EXIT_BARRIER = "torchelastic/agent/terminal_state"
"""How the keys of the exit barrier begin, which an agent enters once its workers have succeeded, and only then.

Source: ``SimpleElasticAgent._exit_barrier`` in torch/distributed/elastic/agent/server/api.py.
"""


class AgentStore(RunStore):
    """A store of one round, in ``directory``. It calls ``succeeded`` when this process enters the exit barrier.

    torch's agent tells a rendezvous handler that it ends, never whether its workers have succeeded; the barrier does.
    """

    def __init__(self, directory: str | os.PathLike[str], succeeded: Callable[[], None]) -> None:
        super().__init__(directory)
        self._succeeded = succeeded

    def add(self, key: str, amount: int) -> int:
        """As `RunStore.add`."""
        if key.startswith(_EXIT_BARRIER):
            self._succeeded()
        return super().add(key, amount)
