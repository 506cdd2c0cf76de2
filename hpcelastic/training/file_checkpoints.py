"""Checkpoints on disk: which of them are undamaged, and how they are loaded.

All ranks call these functions together. Each rank checks some of the files of a checkpoint, and reads what it needs.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcelastic.errors import StoreError

from .context import context
from .process_groups import gather_objects, place_in_group
from .publish import publication_error
from .retention import CheckpointName, Retention
from .seals import GONE_ERRORS, find_damage
from .shards import merge_parts, require_like
from .state_files import read_state

log = logging.getLogger(__name__)

Loaded = tuple[CheckpointName, dict[str, Any]]


def load_newest(
    directory: Path, names: Sequence[CheckpointName], map_location: Any, like: dict[str, Any] | None
) -> Loaded | None:
    """Return the name and the state of the first undamaged one of ``names``, the newest first; None if there is none.

    Raises ``StoreError`` if all are damaged.
    """
    remedy = "put an undamaged checkpoint there, or remove the directory to train from the beginning"
    return _load_first(directory, names, map_location, like, "next older", "", remedy)


def load_best(
    directory: Path,
    names: Sequence[CheckpointName],
    retention: Retention,
    map_location: Any,
    like: dict[str, Any] | None,
) -> Loaded | None:
    """Return the name and the state of the first undamaged one of ``names``, the best first; None if there is none.

    Raises ``StoreError`` if all are damaged.
    """
    remedy = "load the newest checkpoint instead"
    return _load_first(directory, names, map_location, like, "next best", f" with {retention.best}", remedy)


def _load_first(
    directory: Path,
    names: Sequence[CheckpointName],
    map_location: Any,
    like: dict[str, Any] | None,
    following: str,
    which: str,
    remedy: str,
) -> Loaded | None:
    rank, world_size = place_in_group()
    for name in names:
        damages = gather_objects(_find_damage(directory, name.files()[rank::world_size]))
        if not any(damages):
            return name, _read(directory, name, map_location, like)
        if rank == 0:
            log.warning("checkpoint %s; loading the %s one", next(filter(None, damages)), following)
    if names:
        raise StoreError(
            f"all {len(names)} checkpoints{which} in {directory} are damaged; check that filesystem, then {remedy}"
        )
    return None


def _find_damage(directory: Path, files: Sequence[CheckpointName]) -> str:
    """Return a description of the first damage in ``files``; empty if they are whole."""
    for name in files:
        path = directory / str(name)
        try:
            if damage := find_damage(path):
                return f"{path} is damaged ({damage})"
        except OSError as error:
            if error.errno not in GONE_ERRORS:
                raise publication_error("read", path, error) from error
            return f"{path} was removed"
    return ""


def _read(directory: Path, name: CheckpointName, map_location: Any, like: dict[str, Any] | None) -> dict[str, Any]:
    path = directory / str(name)
    require_like(path, like, sharded=name.parts > 0)
    try:
        if like is None or not name.parts:
            state: dict[str, Any] = read_state(path, map_location)
            return state
        return merge_parts([read_state(directory / str(file), "cpu", mmap=True) for file in name.files()], like)
    except FileNotFoundError as error:
        raise StoreError(
            f"rank 0 resumes from {path.absolute()}, which does not exist on node {context().node}; "
            "put the checkpoints on a filesystem that all nodes share"
        ) from error
    except OSError as error:
        raise publication_error("read", path, error) from error
