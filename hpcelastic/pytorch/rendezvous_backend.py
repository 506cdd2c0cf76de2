"""The state of torch's own `DynamicRendezvousHandler` in files, and ``torchrun --rdzv-backend=hpcelastic-dynamic``.

For those who want torch's protocol as it is, without a server. The backend ``hpcelastic`` does more: it fences, hears
of a death at once, and forms a round as soon as nobody else can come.
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
from hpcelastic.pytorch.errors import translated
from hpcelastic.pytorch.store import RunStore
from hpcelastic.storage import files
from hpcelastic.storage.register import Register

DYNAMIC = "hpcelastic-dynamic"

_KEEP = 16
"""Versions that stay: every sign of life of every agent makes one."""


class FileRendezvousBackend(RendezvousBackend):
    """The state, bytes that torch alone understands, in the versions of a register in ``directory``.

    A token is the number of the version that was read: whoever has read version N can write N + 1 and nothing else.
    torch pickles the state, so whoever may write there may run code in its agents: the directory is its owner's alone.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        with translated():
            files.make_directory(Path(directory))
        self._register = Register(Path(directory), f"{socket.gethostname()}:{os.getpid()}", keep=_KEEP)

    @property
    def name(self) -> str:
        """What ``--rdzv-backend`` calls it."""
        return DYNAMIC

    def get_state(self) -> tuple[bytes, int] | None:
        """The state and its token; None if there is none yet.

        Raises RendezvousConnectionError where the directory can't be used, RendezvousStateError where what it holds is
        no state.
        """
        with translated():
            version = self._register.read()
        return None if version.number == 0 else (self._decoded(version.value), version.number)

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, int, bool] | None:
        """Write ``state`` if ``token`` is that of the newest one, or None and there is none yet.

        The newest state then, its token, and whether it is ours; None if there is none. Raises as `get_state`.
        """
        after = 0 if token is None else token
        if type(after) is int and after >= 0:
            with translated(), self._register.lock():
                newest = self._register.read().number == after
                if newest and self._register.commit(after, base64.b64encode(state).decode()):
                    return state, after + 1, True
        found = self.get_state()
        return None if found is None else (*found, False)

    def _decoded(self, value: Any) -> bytes:
        try:
            return base64.b64decode(value, validate=True)
        except (TypeError, ValueError, binascii.Error) as error:
            raise RendezvousStateError(f"{self._register.directory}: holds no state of a rendezvous") from error


def create_dynamic_handler(params: RendezvousParameters) -> RendezvousHandler:
    """torch's DynamicRendezvousHandler, its state and its store in the directory ``params.endpoint``."""
    # torch's agents would go on using the store that the first rank 0 has served, when that node is long dead.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    directory = run_directory(params)
    backend = FileRendezvousBackend(directory / "dynamic" / "versions")
    return create_handler(RunStore(directory / "dynamic" / "store"), backend, params)
