"""The MooseFS fixture: clients with their own mounts that share files, have faults and end correctly."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.cluster.waiting import wait_until
from tests.filesystems.availability import require, why_no_moosefs
from tests.filesystems.clients import CHECKOUT, started
from tests.filesystems.fuse_hosts import FuseClient, FuseMountSet
from tests.filesystems.moosefs import LOCAL_LOCKS, moosefs_mounts

pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("moosefs")]

TIMEOUT = 60.0


def output(client: FuseClient, script: str) -> str:
    """Return the output of shell commands in the shared directory."""
    process = client.start(["bash", "-ec", f"cd {client.directory}\n{script}"])
    assert process.wait(TIMEOUT) == 0, process.output()
    return process.output()


def try_lock(client: FuseClient) -> int:
    return client.start(["flock", "--nonblock", f"{client.directory}/lock", "true"]).wait(TIMEOUT)


def locked_by_one_is_free_to_the_other(mounts: FuseMountSet) -> bool:
    one, other = mounts.clients
    with started(one, ["flock", f"{one.directory}/lock", "sh", "-c", "echo held; sleep 60"]) as holder:
        wait_until("the lock", holder.output, bool, TIMEOUT, str)
        assert try_lock(one) != 0
        return try_lock(other) == 0


def test_a_file_of_one_client_is_read_by_the_other(moosefs: FuseMountSet) -> None:
    one, other = moosefs.clients
    output(one, "echo hello >greeting")
    assert output(other, "cat greeting; hostname") == f"hello\n{other.name}\n"


def test_locks_exclude_the_other_client(moosefs: FuseMountSet) -> None:
    assert not locked_by_one_is_free_to_the_other(moosefs)


def test_local_locks_do_not_exclude_the_other_client() -> None:
    require(why_no_moosefs())
    with moosefs_mounts(LOCAL_LOCKS) as mounts:
        assert locked_by_one_is_free_to_the_other(mounts)


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        pytest.param(["sh", "-c", "exit 3"], 3, id="failure"),
        pytest.param(["sh", "-c", f"test $PWD = {CHECKOUT} && test $WORD = word"], 0, id="directory and environment"),
    ],
)
def test_a_program_runs_in_the_checkout_and_ends_with_its_status(
    moosefs: FuseMountSet, argv: list[str], status: int
) -> None:
    assert moosefs.clients[0].start(argv, env={"WORD": "word"}).wait(TIMEOUT) == status


def test_a_signal_reaches_only_the_program(moosefs: FuseMountSet) -> None:
    with started(moosefs.clients[0], ["bash", "-c", "trap 'exit 7' USR1; echo ready; sleep 60 & wait"]) as process:
        wait_until("its start", process.output, bool, TIMEOUT, str)
        process.kill(signal.SIGUSR1)
        assert process.wait(TIMEOUT) == 7


def test_a_frozen_mount_makes_programs_wait_until_it_thaws(moosefs: FuseMountSet) -> None:
    client = moosefs.clients[0]
    client.freeze()
    try:
        process = client.start(["touch", f"{client.directory}/late"])
        with pytest.raises(TimeoutError):
            process.wait(1)
    finally:
        client.thaw()
    assert process.wait(TIMEOUT) == 0


def test_without_its_daemon_a_mount_fails_until_the_host_starts_again(moosefs: FuseMountSet) -> None:
    client, other = moosefs.clients
    output(other, "touch before")
    client.kill_mount()
    assert client.start(["ls", str(client.directory)]).wait(TIMEOUT) != 0
    client.reboot()
    assert "before" in output(client, "ls")


def test_agents_on_two_clients_run_their_workers_together(moosefs: FuseMountSet) -> None:
    clients = moosefs.clients
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
