"""The verdict that a run stands on: found once, when the run is created, and the same for all of its agents."""

import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from hpcelastic.doctor.measurements import Measurements
from hpcelastic.doctor.race import meet_at_start
from hpcelastic.doctor.verdict import Verdict, locks_stay_local
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.protocol.codec import DecodeError, decode, encode
from hpcelastic.store import files
from hpcelastic.store.locks import LockKind
from hpcelastic.store.mounts import mount_of
from hpcelastic.store.paths import RunPaths, doctors_verdict

_RACED_FOR = 5
"""Names that agents race for when they start."""

_PATIENCE = 10.0
"""Seconds within which a name that is taken must show."""


def established(paths: RunPaths) -> Verdict:
    """The verdict of the run, found and published by whoever comes first.

    It is what `hpcelastic doctor` has found out in the directory above, if the run is on the same mount, else what a
    short probe on this node finds. Raises ConfigError if the directory cannot be safe, StoreError if it does not work.
    """
    verdict = _published(paths)
    if verdict is None:
        found = _doctors(paths) or _probed(paths)
        _refuse_unsafe(paths, found)
        document = {**encode(found), "nonce": secrets.token_hex(8)}
        files.publish_new(paths.filesystem, files.to_json(document))
        verdict = _awaited(paths)
    _refuse_unsafe(paths, verdict)
    return verdict


def check_race(paths: RunPaths, node: str) -> None:
    """Race with the agents of other nodes that start now; ConfigError if a name had two winners."""
    wrong = meet_at_start(paths.race, node, _RACED_FOR)
    if wrong:
        raise ConfigError(f"exclusive creation: {wrong}; use another filesystem for the run's directory")


def remarks(paths: RunPaths, verdict: Verdict, *, nodes: int) -> Iterator[str]:
    """What a person should know of this node's mount, in lines; ``nodes`` is how many the run may have."""
    here = mount_of(paths.root)
    if here.local and nodes > 1:
        yield (
            f"warning: {paths.root} is on {here.kind}, a filesystem of this machine; agents of other nodes cannot see "
            "it: name a directory that all nodes share"
        )
    if not here.same_as(verdict.mount):
        yield (
            f"warning: this node mounts {here.point} otherwise than it was when it was examined: {here}, then "
            f"{verdict.mount}; see hpcelastic doctor"
        )
    if verdict.lock is LockKind.NATIVE and (reason := locks_stay_local(here)):
        yield f"locks exclude on this node only ({reason}); nothing rests on them"


def read_verdict(path: Path) -> Verdict | None:
    """The verdict in ``path``; None where there is none, or none that can be understood."""
    try:
        data = files.read_json(path)
        return None if data is None else decode(Verdict, data)
    except (DecodeError, StoreError):
        return None


def _published(paths: RunPaths) -> Verdict | None:
    """By listing: a name that was asked for before it is there may stay absent for half a minute."""
    return read_verdict(paths.filesystem) if paths.filesystem.name in files.names(paths.root) else None


def _awaited(paths: RunPaths) -> Verdict:
    deadline = time.monotonic() + _PATIENCE
    while (verdict := _published(paths)) is None:
        if time.monotonic() > deadline:
            raise StoreError(f"{paths.filesystem}: is there but cannot be read; was it damaged? remove it")
        time.sleep(0.05)
    return verdict


def _doctors(paths: RunPaths) -> Verdict | None:
    """What doctor has found in the directory above, if nobody else can have written it and it is the same mount."""
    path = doctors_verdict(paths.root.parent)
    try:
        found = path.stat()
        ours = found.st_uid == paths.root.stat().st_uid and not found.st_mode & 0o022
    except OSError:
        return None
    verdict = read_verdict(path) if ours else None
    return verdict if verdict is not None and verdict.mount.same_as(mount_of(paths.root)) else None


def _probed(paths: RunPaths) -> Verdict:
    """What a short probe on this node finds."""
    # Loaded here: all agents but the first of a run only read what it has found.
    from hpcelastic.doctor.probe import SHORT, measure_node
    from hpcelastic.doctor.rules import judge

    return judge(Measurements((measure_node(paths.root, os.uname().nodename, SHORT),)))


def _refuse_unsafe(paths: RunPaths, verdict: Verdict) -> None:
    if not verdict.safe:
        raise ConfigError(
            f"{paths.root.parent}: the directory cannot be safe: {verdict.reason}; once that is put right, or for "
            f"details: hpcelastic doctor --dir {paths.root.parent}"
        )
