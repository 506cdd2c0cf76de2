"""Fixtures for tests on a real SLURM cluster. Tests that use them have the mark `slurm`."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack

import pytest

from tests.cluster import SlurmCluster, why_unavailable

_FIXTURES = {"cluster", "fresh_cluster"}
_CLUSTERS = pytest.StashKey[list[SlurmCluster]]()


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slurm)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the SLURM logs of its clusters if a test fails."""
    report = yield
    if report.failed and report.when == "call":
        for cluster in item.stash.get(_CLUSTERS, []):
            report.sections.append((f"SLURM logs of cluster {cluster.uplink}", cluster.logs()))
    return report


@pytest.fixture
def fresh_cluster(request: pytest.FixtureRequest) -> Iterator[Callable[..., SlurmCluster]]:
    """Start clusters for one test: `fresh_cluster(nodes=2, extra_conf="...")`, with the arguments of SlurmCluster."""
    _require_slurm()
    clusters = request.node.stash.setdefault(_CLUSTERS, [])
    with ExitStack() as running:

        def start(**arguments: object) -> SlurmCluster:
            cluster = running.enter_context(SlurmCluster(**arguments))  # type: ignore[arg-type]  # passed through
            clusters.append(cluster)
            return cluster

        yield start


@pytest.fixture
def cluster(fresh_cluster: Callable[..., SlurmCluster]) -> SlurmCluster:
    """A cluster of 4 nodes. Each test has a new one, because it starts and stops in half a second."""
    return fresh_cluster(nodes=4)


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Callable[[SlurmCluster], SlurmCluster]:
    """A function that lets this process use a cluster, in a directory that all nodes share, and returns the cluster."""

    def entered(cluster: SlurmCluster) -> SlurmCluster:
        for name, value in cluster.env.items():
            monkeypatch.setenv(name, value)
        work = cluster.path / "work"
        work.mkdir()
        monkeypatch.chdir(work)
        return cluster

    return entered


@pytest.fixture
def desk(cluster: SlurmCluster, enter: Callable[[SlurmCluster], SlurmCluster]) -> SlurmCluster:
    """The cluster of four nodes, in a directory that all of them share."""
    return enter(cluster)


def _require_slurm() -> None:
    if reason := why_unavailable():
        if os.environ.get("CI"):
            pytest.fail(f"CI must run the SLURM tests: {reason}", pytrace=False)
        pytest.skip(reason)
