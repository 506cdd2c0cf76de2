"""The states of the random number generators: of this process, and of all ranks for a checkpoint."""

import ctypes
import random
import sys
from typing import Any

from .context import context
from .leaves import map_leaves
from .process_groups import gather_objects

_MT19937_BYTES = 625 * 4
"""Bytes of the state of numpy's generator in memory: 624 words, and the position in them."""


class RandomNumbers:
    """The global generators of this process: those of Python and torch, of its GPU, and of numpy if they are used.

    numpy needs about 100 microseconds for a copy, so the copy is kept while the generator is not used. Its words in
    memory show that, unless a normal deviate is held back: numpy makes two at a time.
    """

    def __init__(self) -> None:
        self._numpy: Any = None
        """The last copy of the state of numpy's generator."""

        self._words: bytes | None = None
        """The words of the generator when the copy was made; None if they cannot tell whether it has been used."""

    def states(self) -> dict[str, Any]:
        """Return the states, by the name of the library."""
        import torch

        states = {"python": random.getstate(), "torch": torch.get_rng_state()}
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch has not annotated it
            states["cuda"] = torch.cuda.get_rng_state()
        if "numpy.random" in sys.modules:
            states["numpy"] = self._state_of_numpy(sys.modules["numpy"])
        return states

    @staticmethod
    def restore(states: dict[str, Any]) -> None:
        import torch

        random.setstate(states["python"])
        torch.set_rng_state(states["torch"])
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(states["cuda"])
        if "numpy" in states and "numpy.random" in sys.modules:
            sys.modules["numpy"].random.set_state(states["numpy"])

    def _state_of_numpy(self, numpy: Any) -> Any:
        words = _words_of(numpy)
        if self._numpy is None or words is None or words != self._words:
            self._numpy = numpy.random.get_state(legacy=False)
            self._words = None if self._numpy["has_gauss"] else words
        return self._numpy


def gather_random_states() -> list[dict[str, Any]]:
    """Return the states of all ranks as plain data. Every rank calls this."""
    states = RandomNumbers().states()
    if "numpy" in states:  # its arrays could not be loaded again
        states["numpy"] = map_leaves(
            lambda path, leaf: leaf.tolist() if hasattr(leaf, "tolist") else leaf, states["numpy"]
        )
    return gather_objects(states)


def restore_random_state(states: list[dict[str, Any]]) -> None:
    """Restore the state of this rank. A rank that was not there when ``states`` were gathered keeps its own."""
    rank = context().rank
    if rank < len(states):
        RandomNumbers.restore(states[rank])


def _words_of(numpy: Any) -> bytes | None:
    if not hasattr(numpy.random, "get_bit_generator"):  # numpy is older than 1.24
        return None
    generator = numpy.random.get_bit_generator()
    if type(generator) is not numpy.random.MT19937:
        return None
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
