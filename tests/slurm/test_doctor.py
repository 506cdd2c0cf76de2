"""``hpcelastic doctor`` on all nodes of an allocation names the node that is not fit, and the reason."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster import SlurmCluster
from tests.health.fake_gpus import ECC, nvml

pytestmark = pytest.mark.slow

TIMEOUT = 120.0
"""Time limit for all doctors in seconds. It is long, because the machine may be busy with other tests."""

DOCTOR = f"{sys.executable} -m hpcelastic doctor --quick --dir"
IMPATIENT = f"""{sys.executable} -c "
import sys
from hpcelastic.api import doctor
from hpcelastic.cli import main
doctor._TIMEOUT = 4.0
sys.exit(main(['doctor', '--quick', '--dir', sys.argv[1]]))" """

Site = Callable[..., SlurmCluster]


@pytest.fixture
def site(fresh_cluster: Site) -> SlurmCluster:
    """A cluster of three nodes in which SLURM never calls a silent node down."""
    cluster = fresh_cluster(nodes=3, extra_conf="SlurmdTimeout=300")
    (cluster.path / "runs").mkdir(mode=0o700)
    return cluster


@contextmanager
def started(site: SlurmCluster, script: str) -> Iterator[None]:
    """Run a shell script as one task on each node. Its output and its status go to files: the network may be cut."""
    body = (
        f"({script}) >out.$SLURM_PROCID 2>&1; echo $? >rc.$SLURM_PROCID.new; mv rc.$SLURM_PROCID.new rc.$SLURM_PROCID"
    )
    command = ["srun", "-N3", "--ntasks-per-node=1", f"--chdir={site.path}", "bash", "-c", body]
    with subprocess.Popen(command, env=site.env) as srun:
        try:
            yield
        finally:
            srun.kill()


def ended(site: SlurmCluster) -> tuple[list[int], str]:
    """Return the status of each task and the output of the first, once all have ended."""
    codes = [site.path / f"rc.{rank}" for rank in range(3)]
    until(site, lambda: all(code.exists() for code in codes))
    return [int(code.read_text()) for code in codes], (site.path / "out.0").read_text()


def until(site: SlurmCluster, look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not look():
        output = "\n".join(path.read_text() for path in sorted(site.path.glob("out.*")))
        assert time.monotonic() < deadline, output
        time.sleep(0.1)


def test_a_healthy_cluster_is_fit(site: SlurmCluster) -> None:
    with started(site, f"{DOCTOR} runs"):
        codes, output = ended(site)
    assert codes == [0, 0, 0], output
    assert "3 members" in output
    assert "6 connections between nodes work, by TCP and UDP" in output
    assert "each node resolves its own host name" in output
    assert "The nodes are fit." in output
    assert "towards 198.1" in output and "where srun runs" in output


def test_a_node_without_a_name_and_one_with_a_broken_gpu_are_reported(site: SlurmCluster) -> None:
    hosts = (site.path / "hosts").read_text().splitlines()
    (site.path / "others").write_text("".join(f"{line}\n" for line in hosts if not line.endswith(" n2")))
    nvml(site.path / "nvml", ECC)
    spoil = "case $SLURMD_NODENAME in n2) mount --bind others /etc/hosts;; n3) export PYTHONPATH=$PWD/nvml;; esac"
    with started(site, f"export CUDA_VISIBLE_DEVICES=0,1; {spoil}; {DOCTOR} runs"):
        codes, output = ended(site)
    assert codes == [1, 0, 0], output
    words = " ".join(output.split())
    assert "bad host names n2 cannot resolve its own host name, n2: " in words
    assert "bad GPUs n3: GPU 1 has 3 uncorrected ECC errors" in words
    assert "\nSAFE: " in output, "the directory is not the cause"
    assert "NOT FIT: 2 of these findings would make a run fail." in output


def test_a_node_without_network_is_reported(site: SlurmCluster) -> None:
    wait = "touch here.$SLURM_PROCID; while [ ! -e go ]; do sleep 0.1; done"
    with started(site, f"{wait}; {DOCTOR} runs"):
        until(site, lambda: len(list(site.path.glob("here.*"))) == 3)
        site.cut(3)
        (site.path / "go").touch()
        codes, output = ended(site)
        site.heal(3)
    assert codes == [1, 0, 0], output
    assert "bad      ports                  n3: no TCP connection to or from any other node" in output


def test_a_node_with_another_directory_gets_an_error(site: SlurmCluster) -> None:
    (site.path / "other").mkdir(mode=0o700)
    where = "dir=runs; [ $SLURMD_NODENAME = n2 ] && dir=other"
    with started(site, f"{where}; {IMPATIENT} $dir"):
        codes, output = ended(site)
    assert codes == [1, 1, 1]
    assert "no message from member 1 within 4 s" in output and "in a directory that all of them share" in output
    assert "member 0 has not created it within 4 s" in Path(site.path / "out.1").read_text()
