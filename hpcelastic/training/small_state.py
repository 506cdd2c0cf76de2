"""All that may change in a step before the optimizer's step: it is copied at each boundary, so it must be cheap."""

import copy
import ctypes
import random
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_MT19937_BYTES = 625 * 4
"""Bytes of the state of numpy's generator in memory: 624 words, and the position in them."""


class SmallState:
    """The user's values, the buffers of models, and the states of the random number generators."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state
        self._numpy = _NumpyRandom()
        self._all_buffers: list[torch.Tensor] = []

    def find_buffers(self, parts: Iterable[Any]) -> None:
        """Find the buffers of all models, which takes too long for each step."""
        self._all_buffers = [buffer for part in parts if hasattr(part, "buffers") for buffer in part.buffers()]

    def copy(self) -> None:
        """Copy the values, for `restore`."""
        import torch

        self._state_before = copy.deepcopy(self._state)
        self._buffers = [(buffer, buffer.clone()) for buffer in self._all_buffers]
        self._torch, self._python = torch.get_rng_state(), random.getstate()
        self._cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
        self._numpy.copy()

    def restore(self) -> None:
        import torch

        self._state.clear()
        self._state.update(copy.deepcopy(self._state_before))  # the same step may fail again
        with torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda)
        self._numpy.restore()


class _NumpyRandom:
    """The state of numpy's global generator, if the process uses numpy.

    numpy needs about 100 microseconds for a copy, so the copy is kept while the generator is not used. Its words in
    memory show that, unless a normal deviate is held back: numpy makes two at a time.
    """

    def __init__(self) -> None:
        self._state: Any = None
        self._words: bytes | None = None
        """The words of the generator when the copy was made; None if they cannot tell whether it has been used."""

    def copy(self) -> None:
        numpy = sys.modules.get("numpy")
        if numpy is None or "numpy.random" not in sys.modules:
            return
        words = self._read(numpy)
        if self._state is None or words is None or words != self._words:
            self._state = numpy.random.get_state(legacy=False)
            self._words = None if self._state["has_gauss"] else words

    def restore(self) -> None:
        if self._state is not None:
            sys.modules["numpy"].random.set_state(self._state)

    def _read(self, numpy: Any) -> bytes | None:
        if not hasattr(numpy.random, "get_bit_generator"):  # numpy is older than 1.24
            return None
        generator = numpy.random.get_bit_generator()
        if type(generator) is not numpy.random.MT19937:
            return None
        return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
