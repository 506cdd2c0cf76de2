"""The run check: one verdict on the filesystem for each run, made at its creation and used by all its agents."""

import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from hpcelastic.doctor.measurements import Measurements
from hpcelastic.doctor.race import race_at_start
from hpcelastic.doctor.verdict import FilesystemReport
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.protocol.codec import DecodeError, decode, encode
from hpcelastic.storage import files
from hpcelastic.storage.mounts import mount_of
from hpcelastic.storage.paths import RunPaths, doctor_verdict

_RACE_NAMES = 5
"""Number of names for which agents race when they start."""

_TIMEOUT = 10.0
"""Seconds until a published verdict must be visible."""


def ensure_verdict(paths: RunPaths) -> FilesystemReport:
    """Return the verdict of the run. The first agent makes and publishes it.

    It is the verdict of `hpcelastic doctor` on the parent directory, if the run is on the same mount, else that of a
    short probe on this node. Raises ConfigError if the directory cannot be safe, StoreError if it does not work.
    """
    verdict = _read_published(paths)
    if verdict is None:
        found = _read_doctor_verdict(paths) or _probe(paths)
        _refuse_unsafe(paths, found)
        document = {**encode(found), "nonce": secrets.token_hex(8)}
        files.publish_new(paths.filesystem, files.to_json(document))
        verdict = _wait_for_verdict(paths)
    _refuse_unsafe(paths, verdict)
    return verdict


def check_race(paths: RunPaths, node: str) -> None:
    """Race with the agents that start now on other nodes. Raises ConfigError if exclusive creation fails."""
    wrong = race_at_start(paths.race, node, _RACE_NAMES)
    if wrong:
        raise ConfigError(f"exclusive creation: {wrong}; use another filesystem for the run's directory")


def mount_remarks(paths: RunPaths, verdict: FilesystemReport, *, nodes: int) -> Iterator[str]:
    """Yield warnings and notes on this node's mount, a line each; ``nodes`` is the maximum number of nodes."""
    here = mount_of(paths.root)
    if here.local and nodes > 1:
        yield (
            f"warning: {paths.root} is on {here.kind}, a filesystem of this machine; agents on other nodes cannot see "
            "it; use a directory that all nodes share"
        )
    if not here.same_as(verdict.mount):
        yield (
            f"warning: {here.point} is mounted differently on this node ({here}) than when it was examined "
            f"({verdict.mount}); run hpcelastic doctor again on all nodes"
        )


def read_verdict(path: Path) -> FilesystemReport | None:
    """Return the verdict in the file ``path``; None if there is no file, or if it is not a valid verdict."""
    try:
        data = files.read_json(path)
        return None if data is None else decode(FilesystemReport, data)
    except (DecodeError, StoreError):
        return None


def _read_published(paths: RunPaths) -> FilesystemReport | None:
    """Read the verdict if it is listed. An open before it exists would cache that it is absent for up to 30 s."""
    return read_verdict(paths.filesystem) if paths.filesystem.name in files.names(paths.root) else None


def _wait_for_verdict(paths: RunPaths) -> FilesystemReport:
    deadline = time.monotonic() + _TIMEOUT
    while (verdict := _read_published(paths)) is None:
        if time.monotonic() > deadline:
            raise StoreError(f"{paths.filesystem}: the file exists but cannot be read; if it is damaged, remove it")
        time.sleep(0.05)
    return verdict


def _read_doctor_verdict(paths: RunPaths) -> FilesystemReport | None:
    """Return doctor's verdict on the parent directory, if no other user can have written it and the mount is the same.

    None otherwise.
    """
    path = doctor_verdict(paths.root.parent)
    try:
        found = path.stat()
        ours = found.st_uid == paths.root.stat().st_uid and not found.st_mode & 0o022
    except OSError:
        return None
    verdict = read_verdict(path) if ours else None
    return verdict if verdict is not None and verdict.mount.same_as(mount_of(paths.root)) else None


def _probe(paths: RunPaths) -> FilesystemReport:
    """Return the verdict of a short probe on this node."""
    # Imported here, because only the first agent of a run needs it; the others read the verdict.
    from hpcelastic.doctor.probe import SHORT, measure_node
    from hpcelastic.doctor.rules import judge

    return judge(Measurements((measure_node(paths.root, os.uname().nodename, SHORT),)))


def _refuse_unsafe(paths: RunPaths, verdict: FilesystemReport) -> None:
    if not verdict.safe:
        raise ConfigError(
            f"{paths.root.parent}: the directory cannot be safe: {verdict.reason}; after the problem is fixed, and for "
            f"details, run: hpcelastic doctor --dir {paths.root.parent}"
        )
