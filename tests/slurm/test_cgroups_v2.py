"""The tests of cgroups with version 2, in a machine that has a kernel of its own."""

import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.cluster.network import Switch
from tests.filesystems.availability import require, why_no_nfs
from tests.filesystems.uml import Guest, needs_shim

pytestmark = pytest.mark.nightly

TIMEOUT = 280.0  # s; both tests take 70 s on a machine that is not busy


@pytest.fixture
def guest() -> Iterator[Guest]:
    require(why_no_nfs())
    with closing(Switch()) as switch:
        made = Guest("guest", {"guest": switch.address(1)}, switch, shim=needs_shim(), memory="3G")
        try:
            made.boot()
            made.wait_booted()
            yield made
        finally:
            made.kill()


@pytest.mark.timeout(TIMEOUT + 20)
def test_the_tests_of_cgroups_pass_with_version_2(guest: Guest) -> None:
    guest.run("mount -t cgroup2 cgroup2 /sys/fs/cgroup; modprobe bridge; modprobe veth")
    command = f"CI=true {sys.executable} -m pytest -p no:cacheprovider -m '' tests/slurm/test_cgroups.py"
    assert " 2 passed" in guest.run(command, TIMEOUT)
