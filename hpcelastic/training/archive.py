"""The archive of a state: the bytes that ``torch.save`` would write, laid out without writing them.

torch can lay out an archive without the content of the tensors. Only these layout bytes, some kilobytes, are made here.
The content is copied once, from the tensors to its place in memory, as fast as the memory allows.
"""

import io
import mmap
import pickle
from contextlib import suppress
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from .seals import SEAL_LENGTH

if TYPE_CHECKING:
    import torch


_NAMED = (type, FunctionType, BuiltinFunctionType)
"""The types of objects that an archive stores by their names."""


_ALIGNMENT = 2**15
"""The size of an archive with its seal is a multiple of this number of bytes, at most half of a comment's length. So
states that differ in small values have archives of one size, and use the same memory."""


class CannotLayOut(Exception):
    """This state has no archive that is laid out beforehand."""


@dataclass(frozen=True)
class Archive:
    """An archive that ends with a comment, whose last `SEAL_LENGTH` bytes are not part of it yet."""

    size: int
    """Bytes, without these last bytes."""

    pieces: list[tuple[int, bytes]]
    """All but the content of tensors: the offset of each piece, and its bytes."""

    contents: list[tuple[int, "torch.UntypedStorage"]]
    """The offset of the content of each tensor, and the content."""

    types: frozenset[Any]
    """The classes and functions that a reader needs, apart from those that every archive may have."""

    def copy_to(self, memory: mmap.mmap) -> None:
        """Write the archive to the start of ``memory``, and wait until it is there."""
        import torch

        for offset, data in self.pieces:
            memory[offset : offset + len(data)] = data
        devices = set()
        for offset, content in self.contents:
            source = torch.empty(0, dtype=torch.uint8, device=content.device).set_(content)
            place = torch.frombuffer(memory, dtype=torch.uint8, count=content.nbytes(), offset=offset)
            place.copy_(source, non_blocking=True)
            devices.add(content.device)
        for device in devices - {torch.device("cpu")}:
            torch.accelerator.current_stream(device).synchronize()

    def check(self, memory: mmap.mmap) -> None:
        """Raise the errors of pickle if the state cannot be loaded from ``memory``."""
        check_loadable(_Window(memory, self.size + SEAL_LENGTH))


def check_loadable(file: Any) -> None:
    """Read the structure of an archive without the tensors. Raises the errors of pickle if it cannot be loaded.

    So a state that cannot be loaded is found when it is saved, not after a crash.
    """
    import torch

    with suppress(NotImplementedError):  # raised for a quantized tensor
        torch.load(file, map_location="meta", weights_only=True)


class _Window(io.RawIOBase):
    """The start of a memory, as a file."""

    def __init__(self, memory: mmap.mmap, size: int) -> None:
        self._memory, self._size, self._position = memory, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self._memory[self._position : min(self._size, self._position + len(buffer))]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def archive_of(state: dict[str, Any]) -> Archive:
    """Lay out the archive of ``state``. Raises `CannotLayOut`, and the errors of pickle if the state has no archive."""
    import torch
    from torch.serialization import skip_data

    contents: dict[int, torch.UntypedStorage] = {}
    types: set[Any] = set()

    class Pickler(pickle.Pickler):
        """Notes what torch's pickler, which is derived from it, meets: the contents are written in this order."""

        def reducer_override(self, value: Any) -> Any:
            types.add(value if isinstance(value, _NAMED) else type(value))
            if isinstance(value, torch.Tensor):
                with suppress(NotImplementedError, RuntimeError):  # it has no content of its own, as a sparse tensor
                    content = value.untyped_storage()
                    contents.setdefault(content._cdata, content)
            return NotImplemented

    layout: Any = _Layout()
    with skip_data():
        pickle_module = SimpleNamespace(__name__="pickle", Pickler=Pickler)
        torch.save(state, layout, pickle_module=pickle_module)
    gaps = layout.gaps()
    written = [content for content in contents.values() if content.nbytes()]
    if [size for _, size in gaps] != [content.nbytes() for content in written]:
        raise CannotLayOut("it has objects whose content torch lays out in another way")
    offset, end = layout.pieces[-1]
    # The end of an archive is the length of its comment, and torch writes no comment.
    padding = -(offset + len(end) + SEAL_LENGTH) % _ALIGNMENT
    end = end[:-2] + (padding + SEAL_LENGTH).to_bytes(2, "little") + bytes(padding)
    layout.pieces[-1] = offset, end
    places = [(place, content) for (place, _), content in zip(gaps, written, strict=True)]
    return Archive(offset + len(end), layout.pieces, places, frozenset(types))


class _Layout:
    """A file that keeps what is written to it, and the gaps between."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, bytes]] = []
        self._position = 0

    def write(self, data: memoryview) -> int:
        self.pieces.append((self._position, bytes(data)))
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset if whence == 0 else self._position + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def flush(self) -> None: ...

    def gaps(self) -> list[tuple[int, int]]:
        """Return the offset and the size of each gap."""
        found, end = [], 0
        for offset, data in self.pieces:
            if offset > end:
                found.append((end, offset - end))
            end = offset + len(data)
        return found
