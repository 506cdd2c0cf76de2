"""Records what a rendezvous handler does as torch's events, which torch passes to its handler ``dynamic_rendezvous``.

Source: DynamicRendezvousHandler._record in torch/distributed/elastic/rendezvous/dynamic_rendezvous.py.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.distributed.elastic.events import construct_and_record_rdzv_event
from torch.distributed.elastic.events.api import NodeState

from hpcelastic.exporters import call_handler
from hpcelastic.protocol.assignment import Assignment


@dataclass(frozen=True)
class RendezvousEvents:
    """Records the events of a rendezvous handler. An exception in a handler of events has no effect."""

    run_id: str
    source: str
    """Name of the handler's class."""

    def record(
        self,
        action: str,
        node: str,
        deed: str,
        node_state: NodeState = NodeState.RUNNING,
        part: Assignment | None = None,
    ) -> None:
        """Record that ``node`` does a ``deed``, such as "has joined", during the call of the method ``action``."""
        facts: dict[str, Any] = {}
        if part is not None:
            facts = {"rank": part.group_rank, "master_endpoint": f"{part.master_addr}:{part.master_port}"}
        self._record(action, f"The node '{node}' {deed} the rendezvous '{self.run_id}'.", node_state, **facts)

    @contextlib.contextmanager
    def errors(self, action: str) -> Iterator[None]:
        """Record an error within the block, which is the method ``action``. SystemExit is no error."""
        try:
            yield
        except Exception as error:
            self._record(action, f"{type(error).__name__}: {error}", NodeState.FAILED)
            raise

    def _record(self, action: str, message: str, node_state: NodeState, **facts: Any) -> None:
        name = f"{self.source}.{action}"
        # In a lambda: the function of torch reads the file name of its caller.
        call_handler(lambda: construct_and_record_rdzv_event(self.run_id, message, node_state, name=name, **facts))
