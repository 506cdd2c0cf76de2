"""The store of torchrun's agents in one round: they exchange the ranks of their workers there, and report success."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from hpcelastic.pytorch.store import RunStore

T = TypeVar("T")

_EXIT_BARRIER_PREFIX = "torchelastic/agent/terminal_state"
"""Prefix of the keys of the exit barrier. An agent enters the barrier only after its workers have succeeded.

Source: ``SimpleElasticAgent._exit_barrier`` in torch/distributed/elastic/agent/server/api.py.
"""

_ROLE_PREFIX, _RANKS_PREFIX = "torchelastic/role_info/", "torchelastic/assigned_ranks/"
"""Prefixes of the keys by which agents exchange the ranks of their workers, before the group rank of an agent.

Source: ``SimpleElasticAgent._assign_worker_ranks`` in the same file.
"""


class _RoundEndedError(Exception):
    """The round has ended, and the values that an agent waits for may never be there."""


@dataclass(frozen=True)
class AgentRound:
    """The round of a store, as the agent of this process knows it."""

    group_rank: int
    ended: Callable[[], bool]
    """Returns whether the round has ended, so that the agent must stop the workers that it is about to start."""

    succeeded: Callable[[], None]
    """Called when the agent reports that its workers have succeeded."""


class AgentStore(RunStore):
    """A store of one round, in ``directory``.

    - torch's agent reports to a rendezvous handler that it ends, but not whether its workers have succeeded. Entering
      the exit barrier is the only sign of success.
    - An agent waits for the ranks of the workers of all others. A round may end before all agents have seen it, and
      those that have not never enter it. Then the agent gets ranks as if no other agent were there. It starts its
      workers with them, learns that it has to ask for the next round, and stops them.
    """

    def __init__(self, directory: str | os.PathLike[str], round: AgentRound) -> None:
        super().__init__(directory)
        self._round = round

    def add(self, key: str | bytes, amount: int) -> int:
        """Like `RunStore.add`."""
        if _name(key).startswith(_EXIT_BARRIER_PREFIX):
            self._round.succeeded()
        return super().add(key, amount)

    def get(self, key: str | bytes) -> bytes:
        """Like `RunStore.get`."""
        try:
            return super().get(key)
        except _RoundEndedError:
            return self._value_alone(_name(key))

    def wait(self, keys: Sequence[str | bytes], timeout: timedelta | None = None) -> None:
        """Like `RunStore.wait`."""
        try:
            super().wait(keys, timeout)
        except _RoundEndedError:
            return  # `get` returns a value for each of the keys

    def _wait_for(
        self, keys: Sequence[str | bytes], poll: Callable[[], T | None], timeout: timedelta | None = None
    ) -> T:
        needed = all(_name(key).startswith((_ROLE_PREFIX, _RANKS_PREFIX)) for key in keys)

        def poll_in_round() -> T | None:
            found = poll()
            if found is None and needed and self._round.ended():
                raise _RoundEndedError
            return found

        return super()._wait_for(keys, poll_in_round, timeout)

    def _value_alone(self, key: str) -> bytes:
        """Return the value for ``key`` that another agent would have written, if it were like this one."""
        ours = json.loads(super().get(f"{_ROLE_PREFIX}{self._round.group_rank}"))
        if key.startswith(_ROLE_PREFIX):
            return json.dumps({**ours, "rank": int(key.removeprefix(_ROLE_PREFIX))}).encode()
        workers = ours["local_world_size"]
        return json.dumps([0, workers, 0, workers]).encode()  # first rank and number, among all and in the role


def _name(key: str | bytes) -> str:
    return key if isinstance(key, str) else key.decode(errors="replace")
