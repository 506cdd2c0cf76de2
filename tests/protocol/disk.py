"""The shared filesystem of a simulation: what `hpcelastic.store.files` offers, in memory.

A file that was created exclusively is seen by all at once. A file that is replaced is seen by each reader as it was
up to ``staleness`` seconds ago, anew at each read, as a client's attribute cache would have it.
"""

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

Content = tuple[float, Any]
"""When it was published, and what: parsed once, since all readers treat it as frozen."""


_KEPT = 50
"""Contents of one file that a late reader may still see: more than are written within any staleness."""


class Disk:
    """All files of a run. ``clock`` is the simulated time, ``staleness`` draws how far a read lags, both in seconds."""

    def __init__(self, clock: Callable[[], float], staleness: Callable[[], float]) -> None:
        self._clock = clock
        self._staleness = staleness
        self._directories: dict[Path, dict[str, list[Content]]] = defaultdict(dict)

    def names(self, directory: Path) -> list[str]:
        return [name for name, contents in self._directories[directory].items() if contents[0][0] <= self._clock()]

    def read_json(self, path: Path) -> Any:
        seen_until = self._clock() - self._staleness()
        contents = self._directories[path.parent].get(path.name, ())
        return next((value for when, value in reversed(contents) if when <= seen_until), None)

    def to_json(self, value: Any) -> bytes:
        return json.dumps(value).encode()

    def publish(self, path: Path, data: bytes, *, durable: bool = True) -> None:
        contents = self._directories[path.parent].setdefault(path.name, [])
        contents.append((self._clock(), json.loads(data)))
        del contents[:-_KEPT]

    def publish_new(self, path: Path, data: bytes) -> bool:
        if path.name in self._directories[path.parent]:
            return False
        self._directories[path.parent][path.name] = [(float("-inf"), json.loads(data))]
        return True
