"""``hpcelastic doctor`` on all clients of a filesystem finds the anomalies of each filesystem."""

from __future__ import annotations

import json
import secrets
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import pytest

from hpcelastic.doctor.verdict import FilesystemReport, Severity
from hpcelastic.protocol.codec import decode
from tests.filesystems.clients import Client, MountSet, started
from tests.filesystems.shared import Shared, on, shared, started_filesystems

pytestmark = pytest.mark.slow

__all__ = ["shared", "started_filesystems"]

TIMEOUT = 280.0
"""Time limit for a doctor on a busy machine, in seconds. Otherwise it takes less than a minute."""

HANDLED, WARNING = Severity.HANDLED, Severity.WARNING


@dataclass(frozen=True)
class Expected:
    """The expected findings of doctor about a filesystem."""

    severities: dict[str, Severity]
    lag: float = 0.0
    """Minimum lag in seconds that it must find."""

    attempts: int = 1
    """Number of examinations, of which one must have these findings. A watcher measures a lag too short if it learns of
    a change late, which a filesystem with several anomalies can cause."""


EXPECTED = {
    "ext4": Expected({"mount": WARNING, "nodes": WARNING}),
    "tmpfs": Expected({"mount": WARNING, "nodes": WARNING}),
    "FUSE, local locks": Expected({}),
    "FUSE, stale caches": Expected(
        {
            "replaced content": HANDLED,
            "names polled by open": HANDLED,
            "names polled by stat": HANDLED,
            "modification times": HANDLED,
            "removed names": HANDLED,
        },
        lag=3.0,
    ),
    "FUSE, lost replies": Expected({}),
    "FUSE, no hard links": Expected({"links": HANDLED}),
    "FUSE, no locks": Expected({}),
    "FUSE, errors": Expected({}),
    "FUSE, late listings": Expected({}, lag=0.5),
    "FUSE, combined": Expected({"replaced content": HANDLED, "names polled by open": HANDLED}, lag=3.0, attempts=3),
    "NFSv3": Expected({"names polled by open": HANDLED}),
    "NFSv3 nolock": Expected({"names polled by open": HANDLED}),
    "NFSv4.2": Expected({"names polled by open": HANDLED}),  # late modification times depend on the load
    "MooseFS": Expected({}),
    "GlusterFS": Expected({}),
    "CephFS": Expected({}),
}


QUICK = ("ext4", "FUSE, local locks", "FUSE, stale caches", "NFSv4.2")
"""Filesystems that are examined in each test run."""


@pytest.mark.parametrize("shared", on(lambda source: source.name not in QUICK), indirect=True)
def test_doctor_finds_the_anomalies_of_a_filesystem(shared: Shared) -> None:
    if shared.source.name not in EXPECTED:
        pytest.fail(f"say in EXPECTED what doctor should find on {shared.source.name}")
    expected = EXPECTED[shared.source.name]
    for _ in range(expected.attempts):
        verdict = examined(shared.mounts, shared.folder)
        found = {finding.check: finding for finding in verdict.findings}
        assert verdict.safe, verdict.reason
        assert verdict.nodes == len(shared.mounts.clients)
        severities = {check: found[check].severity for check in expected.severities}
        if severities == expected.severities:
            break
    assert severities == expected.severities, found
    assert found["exclusive creation"].severity is Severity.OK, found["exclusive creation"]
    assert verdict.lag >= expected.lag


def examined(mounts: MountSet, folder: str) -> FilesystemReport:
    """Return the verdict of doctors on all clients, in a folder of the shared directory."""
    for client in mounts.clients[:1]:
        run(client, ["chmod", "700", str(client.directory / folder)])
    id = secrets.token_hex(4)
    flags = ["--nodes", str(len(mounts.clients)), "--id", id, "--json"]
    with ExitStack() as stack:
        doctors = [
            stack.enter_context(started(client, [*doctor(client.directory / folder), *flags, "--node-rank", str(rank)]))
            for rank, client in enumerate(mounts.clients)
        ]
        codes = [process.wait(TIMEOUT) for process in doctors]
        printed = [process.output() for process in doctors]
    assert codes == [0] * len(codes), "\n".join(printed)
    return decode(FilesystemReport, document(printed[0])["verdict"])


def doctor(directory: PurePath) -> list[str]:
    return [sys.executable, "-m", "hpcelastic", "doctor", "--dir", str(directory)]


def run(client: Client, argv: list[str]) -> None:
    """Run a command to its end. On a filesystem with lost replies it may report a failure."""
    for _ in range(20):
        with started(client, argv) as process, suppress(TimeoutError):
            if process.wait(60) == 0:
                return


def document(output: str) -> dict[str, Any]:
    """Return the JSON in the output or the error output of a doctor."""
    start = output.index("{")
    found, _ = json.JSONDecoder().raw_decode(output[start:])
    assert isinstance(found, dict)
    return found
