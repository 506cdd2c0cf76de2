"""Runs at a site with few open ports: agents and the stores of workers listen only there."""

import os
import random
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcelastic.storage.leases import read_leases
from tests.cli.shell import Shell, shell_in
from tests.e2e.rounds import Run
from tests.faults.kinds import SCRIPT

PORTS, ROUNDS = 6, 5
"""The number of ports is less than that of all stores of the run, so stores use ports of earlier rounds again."""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        yield made


@pytest.mark.slow
def test_all_ports_of_a_run_are_in_the_range(shell: Shell) -> None:
    first = free_range(PORTS)
    flags = ("--ports", f"{first}-{first + PORTS - 1}", "--max-restarts=20")
    run = Run(shell, SCRIPT, 2, *flags, script_arguments=("9", "5", ""))
    leases = read_leases(shell.directory / "runs/r/rendezvous/nodes").values()
    used = {lease.member.notification_port for lease in leases}
    for _ in range(ROUNDS):
        round = run.newest_round()
        os.kill(run.pids(round)[0], signal.SIGKILL)
        run.await_workers(2, after=round)
    used |= {event["master_port"] for event in run.events("workers started")}
    run.finish()
    assert used <= {*range(first, first + PORTS)}


def free_range(count: int) -> int:
    """Return the first of ``count`` ports that nobody has. They are below those that the kernel chooses."""
    while True:
        first = random.randrange(20000, 32000)
        try:
            for port in range(first, first + count):
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    with socket.socket(socket.AF_INET, kind) as sock:
                        sock.bind(("0.0.0.0", port))
            return first
        except OSError:
            continue
