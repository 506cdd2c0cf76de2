"""The state of torch's own `DynamicRendezvousHandler` in files, for ``torchrun --rdzv-backend=hpcelastic-dynamic``.

This backend is torch's protocol without changes and without a server. The backend ``hpcelastic`` does more: it fences
workers, detects the death of a node at once, and forms a round as soon as no other node can join.
"""

import base64
import binascii
import os
import socket
from pathlib import Path
from typing import Any

from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters, RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend, create_handler

from hpcelastic.pytorch.endpoint import run_directory
from hpcelastic.pytorch.errors import torch_errors
from hpcelastic.pytorch.store import RunStore
from hpcelastic.storage import files
from hpcelastic.storage.register import Register

DYNAMIC = "hpcelastic-dynamic"

_KEPT_VERSIONS = 16
"""Number of versions to keep. Every heartbeat of every agent writes a version."""


class FileRendezvousBackend(RendezvousBackend):
    """The state of torch's handler, as bytes, in the versions of a register in ``directory``.

    A token is the number of a version: an agent that has read version N can write only version N + 1. torch pickles the
    state, so a user with write access to the directory can run code in the agents: only its owner may have access.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        with torch_errors():
            files.make_directory(Path(directory))
        self._register = Register(Path(directory), f"{socket.gethostname()}:{os.getpid()}", keep=_KEPT_VERSIONS)

    @property
    def name(self) -> str:
        """The value of ``--rdzv-backend``."""
        return DYNAMIC

    def get_state(self) -> tuple[bytes, int] | None:
        """Return the state and its token; None if there is no state yet.

        Raises RendezvousConnectionError if the directory cannot be used, and RendezvousStateError if its content is not
        a state.
        """
        with torch_errors():
            version = self._register.read()
        return None if version.number == 0 else (self._decoded(version.value), version.number)

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, int, bool] | None:
        """Write ``state`` if ``token`` is the token of the newest state, or is None and there is no state yet.

        Return the newest state after that, its token, and whether it is ``state``; None if there is no state. Raises
        the same errors as `get_state`.
        """
        version = 0 if token is None else token
        if type(version) is int and version >= 0:
            with torch_errors(), self._register.lock():
                newest = self._register.read().number == version
                if newest and self._register.commit(version, base64.b64encode(state).decode()):
                    return state, version + 1, True
        found = self.get_state()
        return None if found is None else (*found, False)

    def _decoded(self, value: Any) -> bytes:
        try:
            return base64.b64decode(value, validate=True)
        except (TypeError, ValueError, binascii.Error) as error:
            raise RendezvousStateError(f"{self._register.directory}: contains no state of a rendezvous") from error


def create_dynamic_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Create torch's DynamicRendezvousHandler, with its state and its store in the directory ``params.endpoint``."""
    # Otherwise torch's agents would use the store of the first rank 0 even after the death of that node.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    directory = run_directory(params)
    backend = FileRendezvousBackend(directory / "dynamic" / "versions")
    return create_handler(RunStore(directory / "dynamic" / "store"), backend, params)
