"""A strict site: IPv6 only, ten open ports, a second network for workers, a read-only home, no sbatch on nodes."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import hpcelastic
from hpcelastic.storage.leases import read_leases
from tests.cluster import SlurmCluster

pytestmark = pytest.mark.slow

NODES, ENDED = 3, 120.0
FIRST, LAST = 29500, 29509

SETUP = f"""
network=${{address%::*}}:: number=${{address##*::}}
for protocol in tcp udp; do
  for side in sport dport; do
    for ports in {FIRST}-{LAST} 6817-6818 60001-60200; do
      ip -6 rule add pref 10 ipproto $protocol $side $ports lookup main
    done
  done
  ip -6 rule add pref 20 to $network/64 ipproto $protocol lookup 100
done
ip -6 neigh replace fe80::dead lladdr 02:00:00:00:00:00 dev eth0 nud permanent
ip -6 route add $network/64 via fe80::dead dev eth0 table 100
ip link add link eth0 name ib0 type macvlan mode bridge
ip -6 addr add fd01::$number/64 dev ib0 nodad
ip link set ib0 up
mount --bind "$HOME" "$HOME"
mount -o remount,bind,ro "$HOME"
printf '#!/bin/sh\\necho "$*" >>%s/refused\\nexit 1\\n' "$dir" >"$dir/sbatch.$name"
chmod 755 "$dir/sbatch.$name"
mount --bind "$dir/sbatch.$name" "$(command -v sbatch)"
"""
"""A firewall without replies: packets to other ports go to a hardware address that nobody has. SLURM has its ports."""

SITE = f"""
defaults:
  network: {{interface: eth0, ports: {FIRST}-{LAST}}}
  environment: {{GLOO_SOCKET_IFNAME: ib0}}
submit_from_nodes: false
"""
JOB = """\
run: {name: job}
entrypoint: {script: train.py}
nodes: 1..3
workers: {per_node: 2}
"""
TRAIN = """\
import os
from pathlib import Path
import torch
import torch.distributed as dist
from hpcelastic.training import context, resumable, should_stop

torch.set_num_threads(1)

def main():
    dist.init_process_group("gloo")
    try:
        (Path.home() / "of a test").touch()
    except OSError as error:
        Path("home").write_text(error.strerror)
    number = 0
    while not should_stop():
        done = torch.tensor([float(Path("enough").exists())])
        dist.all_reduce(done)
        number += 1
        Path(f"step.{context().round}.{context().rank}").write_text(f"{number} {os.environ['MASTER_ADDR']}")
        if done.item():
            break
    dist.destroy_process_group()

resumable(main)()
"""


@pytest.fixture
def site(fresh_cluster: Callable[..., SlurmCluster], monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    cluster = fresh_cluster(nodes=NODES, ipv6=True, setup=SETUP, extra_conf="SrunPortRange=60001-60200")
    monkeypatch.chdir(cluster.path)
    (cluster.path / "site.yaml").write_text(SITE)
    for name, value in {**cluster.env, "HPCELASTIC_SITE_CONFIG": str(cluster.path / "site.yaml")}.items():
        monkeypatch.setenv(name, value)
    return cluster


def test_it_trains_and_continues_without_a_lost_node(site: SlurmCluster) -> None:
    Path("job.yaml").write_text(JOB)
    Path("train.py").write_text(TRAIN)
    run = hpcelastic.submit("job.yaml")
    until(lambda: run.status().world_size == 2 * NODES and trained(run.status().round) == 2 * NODES, run)
    first = run.status().round
    members = [lease.member for lease in read_leases(run.directory / "rendezvous/nodes").values()]
    assert len(members) == NODES
    assert all(":" in member.address and FIRST <= member.notification_port <= LAST for member in members)
    assert ":" in Path(f"step.{first}.0").read_text()
    site.fail_node(2)
    until(lambda: run.status().world_size == 2 * (NODES - 1) and trained(run.status().round) == 2 * (NODES - 1), run)
    Path("enough").touch()
    assert run.wait(ENDED).phase == "succeeded"
    assert {FIRST <= e["master_port"] <= LAST for e in run.events() if e["event"] == "workers started"} == {True}
    assert Path("home").read_text() == "Read-only file system"
    assert not Path("refused").exists(), "an agent has called sbatch"
    site.run("srun", "-N1", f"--chdir={site.path}", "sbatch", "job", check=False)
    assert Path("refused").read_text() == "job\n"


def trained(round: int) -> int:
    """Return how many ranks have made more than ten steps in the round."""
    return sum(int(path.read_text().partition(" ")[0] or 0) > 10 for path in Path().glob(f"step.{round}.*"))


def until(look: Callable[[], object], run: hpcelastic.Run) -> None:
    deadline = time.monotonic() + ENDED
    while not look():
        assert time.monotonic() < deadline, f"{run}\n" + "\n".join(run.logs())
        time.sleep(0.1)


def test_the_doctor_names_the_setting_for_the_firewall(site: SlurmCluster) -> None:
    (site.path / "runs").mkdir(mode=0o700)
    closed = doctor(site)
    assert "NOT FIT" in closed, closed
    assert "n1 cannot connect to n2 by TCP: timed out" in closed
    assert "set network.ports to them" in unwrapped(closed)
    half = doctor(site, f"--ports={FIRST}-{LAST}")
    assert "6 connections between nodes work, by TCP and UDP" in half, half
    assert "no connection by TCP at ports that the kernel chooses" in half and "NOT FIT" in half
    assert "environment.GLOO_SOCKET_IFNAME" in unwrapped(half)
    fit = doctor(site, f"--ports={FIRST}-{LAST}", GLOO_SOCKET_IFNAME="ib0")
    assert "The nodes are fit." in fit, fit
    assert "at the interface of GLOO_SOCKET_IFNAME" in unwrapped(fit)


def doctor(site: SlurmCluster, *flags: str, **environ: str) -> str:
    """Return the report of the doctor on all nodes."""
    command = [sys.executable, "-m", "hpcelastic", "doctor", "--quick", "--dir=runs", *flags]
    export = ",".join(["ALL", *(f"{name}={value}" for name, value in environ.items())])
    srun = ["srun", f"-N{NODES}", "--ntasks-per-node=1", f"--export={export}", f"--chdir={site.path}"]
    return site.run(*srun, *command, check=False, timeout=ENDED)


def unwrapped(report: str) -> str:
    return " ".join(report.split())
