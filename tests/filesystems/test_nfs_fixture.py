"""The NFS fixture: clients that are separate machines, which start, share files, have faults and end correctly."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import processes
from tests.cluster.waiting import wait_until
from tests.filesystems.availability import require, why_no_nfs
from tests.filesystems.clients import CHECKOUT, started
from tests.filesystems.nfs import MOUNTS, NfsClient, NfsMountSet, nfs_mounts

pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("nfs")]

TIMEOUT = 240.0
NAMES = [mount.name for mount in MOUNTS]


def output(client: NfsClient, script: str) -> str:
    """Return the output of shell commands in the shared directory."""
    return client.guest.run(f"cd {client.directory}\n{script}", TIMEOUT)


def try_lock(client: NfsClient) -> int:
    return client.start(["flock", "--nonblock", f"{client.directory}/lock", "true"]).wait(TIMEOUT)


# Mounts


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_one_client_is_read_by_the_other(nfs: dict[str, NfsMountSet], name: str) -> None:
    one, other = nfs[name].clients
    output(one, "echo hello >greeting")
    assert output(other, "ls >/dev/null; cat greeting") == "hello\n"


@pytest.mark.parametrize("name", NAMES)
def test_the_mount_has_the_options_of_its_name(nfs: dict[str, NfsMountSet], name: str) -> None:
    for client in nfs[name].clients:
        options = output(client, "findmnt --noheadings --output OPTIONS --target .").split(",")
        assert set(client.mount.options.split(",")) - {"nolock"} <= {*options, "mountproto=tcp", "actimeo=60"}


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_excludes_the_other_client_unless_locks_are_local(nfs: dict[str, NfsMountSet], name: str) -> None:
    one, other = nfs[name].clients
    holder = one.start(["flock", f"{one.directory}/lock", "sh", "-c", "echo held; sleep 60"])
    try:
        wait_until("the lock", holder.output, bool, TIMEOUT, one.guest.console)
        assert (try_lock(other) == 0) == ("nolock" in name)
        assert try_lock(one) != 0
    finally:
        holder.kill()
        holder.wait(TIMEOUT)
    wait_until("the lock's release", lambda: try_lock(other), lambda status: status == 0, TIMEOUT, str)


# Programs


def test_a_program_runs_in_the_checkout_with_its_environment(nfs: dict[str, NfsMountSet]) -> None:
    client = nfs["NFSv4.2"].clients[0]
    script = "import os, tests, hpcelastic; print(os.getcwd(), os.environ['WORD'], os.uname().nodename)"
    process = client.start([sys.executable, "-c", script], env={"WORD": "näive words"})
    assert process.wait(TIMEOUT) == 0
    assert process.output() == f"{CHECKOUT} näive words {client.name}\n"


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        pytest.param(["true"], 0, id="success"),
        pytest.param(["sh", "-c", "exit 3"], 3, id="failure"),
        pytest.param(["sh", "-c", "kill -TERM $$"], -signal.SIGTERM, id="signal"),
        pytest.param(["/no/such/program"], 127, id="no such program"),
    ],
)
def test_a_program_ends_with_its_status(nfs: dict[str, NfsMountSet], argv: list[str], status: int) -> None:
    assert nfs["NFSv4.2"].clients[0].start(argv).wait(TIMEOUT) == status


def test_output_arrives_early_and_a_kill_reaches_the_children(nfs: dict[str, NfsMountSet]) -> None:
    client = nfs["NFSv4.2"].clients[0]
    with started(client, ["sh", "-c", "sleep 1000 & echo $!; wait"]) as process:
        child = int(wait_until("output", process.output, bool, TIMEOUT, client.guest.console))
        with pytest.raises(TimeoutError):
            process.wait(0.01)
        process.kill()
        assert process.wait(TIMEOUT) == -signal.SIGKILL
    gone = client.start(["sh", "-c", f"while kill -0 {child}; do sleep 0.05; done"])
    assert gone.wait(TIMEOUT) == 0


def test_a_guest_without_its_command_server_ends(nfs: dict[str, NfsMountSet]) -> None:
    client = nfs["NFSv4.2"].clients[0]
    killer = client.start(["sh", "-c", "kill $PPID; sleep 1000"])
    assert killer.wait(TIMEOUT) == -signal.SIGKILL
    client.reboot()


def test_long_output_is_complete(nfs: dict[str, NfsMountSet]) -> None:
    process = nfs["NFSv4.2"].clients[0].start(["seq", "300000"])
    assert process.wait(TIMEOUT) == 0
    assert process.output() == "".join(f"{number}\n" for number in range(1, 300001))


def test_a_guest_cannot_write_on_this_machine(nfs: dict[str, NfsMountSet]) -> None:
    client = nfs["NFSv4.2"].clients[0]
    assert client.start(["touch", str(CHECKOUT / "written-by-a-guest")]).wait(TIMEOUT) != 0
    output(client, "touch /tmp/x-guest /dev/shm/x-guest /run/x-guest")
    assert not any(Path(folder, "x-guest").exists() for folder in ("/tmp", "/dev/shm", "/run"))


# Faults of a client


def test_a_frozen_client_does_nothing_until_it_thaws(nfs: dict[str, NfsMountSet]) -> None:
    client, _ = nfs["NFSv4.2"].clients
    client.freeze()
    try:
        process = client.start(["true"])
        with pytest.raises(TimeoutError):
            process.wait(1)
    finally:
        client.thaw()
    assert process.wait(TIMEOUT) == 0


def test_a_client_without_network_waits_and_continues_afterwards(nfs: dict[str, NfsMountSet]) -> None:
    client, other = nfs["NFSv4.2"].clients
    client.cut()
    try:
        process = client.start(["sh", "-c", f"echo late >{client.directory}/late"])
        with pytest.raises(TimeoutError):
            process.wait(2)
    finally:
        client.heal()
    assert process.wait(TIMEOUT) == 0
    assert output(other, "ls >/dev/null; cat late") == "late\n"


def test_a_client_unmounts_and_mounts_again(nfs: dict[str, NfsMountSet]) -> None:
    client = nfs["NFSv4.2"].clients[0]
    output(client, "touch here")
    client.unmount()
    assert not client.guest.run(f"ls {client.directory}")
    client.remount("ro")
    assert "here" in output(client, "ls")
    assert client.start(["touch", f"{client.directory}/here"]).wait(TIMEOUT) != 0
    client.remount()
    output(client, "touch here")


def test_a_killed_client_ends_its_programs_and_can_be_booted_again(nfs: dict[str, NfsMountSet]) -> None:
    client, other = nfs["NFSv4.2"].clients
    output(other, "touch before")
    process = client.start(["sleep", "1000"])
    client.kill()
    assert process.wait(TIMEOUT) == -signal.SIGKILL
    client.reboot()
    for mount_set in nfs.values():
        assert output(mount_set.clients[0], "findmnt --noheadings --output SOURCE --target .").startswith("server:")
    assert "before" in output(client, "ls")


# End

_MOUNT_AND_WAIT = """
import sys
from tests.filesystems.nfs import MOUNTS, nfs_mounts
with nfs_mounts(MOUNTS[:1]) as mounts:
    print(mounts["NFSv3"].clients[0].guest.address, flush=True)
    sys.stdin.read()
"""


def started_by(mark: str) -> set[int]:
    """Return the processes that have inherited the mark."""
    found = {int(entry.name) for entry in Path("/proc").glob("[0-9]*")}
    return {pid for pid in found if processes.environment(pid).get("STARTED_BY") == mark}


def test_two_sets_share_the_machine_and_end_with_their_starter(nfs: dict[str, NfsMountSet]) -> None:
    mark = f"{os.getpid()}-nfs-lifeline"
    another = subprocess.Popen(
        [sys.executable, "-c", _MOUNT_AND_WAIT],
        cwd=CHECKOUT,
        env={**os.environ, "STARTED_BY": mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert another.stdout
        address = another.stdout.readline().strip()
        assert address and address != nfs["NFSv3"].clients[0].guest.address
        assert len(started_by(mark)) > 3
    finally:
        another.kill()
        another.communicate()
    wait_until("its guests' end", lambda: started_by(mark), lambda left: not left, TIMEOUT, str)
    assert output(nfs["NFSv3"].clients[0], "echo fine") == "fine\n"


def test_guests_boot_with_the_library_for_large_xsave_areas() -> None:
    require(why_no_nfs())
    require(None if shutil.which("cc") else "cc not found: run tests/install_system.sh as root")
    with nfs_mounts(MOUNTS[-1:], shim=True) as mounts:
        for mount_set in mounts.values():
            assert output(mount_set.clients[0], "echo fine") == "fine\n"


# The agent


@pytest.mark.parametrize("name", ["NFSv3", "NFSv4.2"])
def test_agents_on_two_clients_run_their_workers_together(nfs: dict[str, NfsMountSet], name: str) -> None:
    clients = nfs[name].clients
    worker = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
    output(clients[0], f'echo "{worker}" >worker.py')
    agent = [sys.executable, "-m", "hpcelastic", "agent", "--nnodes=2", "--rdzv-id=run", "--tee=out"]
    agents = [
        client.start([*agent, f"--rdzv-endpoint={client.directory}", f"{client.directory}/worker.py"])
        for client in clients
    ]
    for process in agents:
        assert process.wait(TIMEOUT) == 0, process.output()
    outputs = "".join(process.output() for process in agents)
    assert "rank 0 of 2" in outputs and "rank 1 of 2" in outputs
