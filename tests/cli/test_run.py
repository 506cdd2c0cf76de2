"""``hpcelastic run`` depends neither on its output nor on its terminal."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO
from unittest import mock

import pytest

from hpcelastic.agent.nonblocking_output import nonblocking_stdio
from hpcelastic.api.display import display
from hpcelastic.api.registry import holds_run
from hpcelastic.api.run import Run
from hpcelastic.backends.files import FileBackend
from hpcelastic.cli import main
from hpcelastic.cli.run import _Interrupts
from hpcelastic.protocol.settings import Settings
from hpcelastic.rendezvous.run import open_run
from hpcelastic.storage.paths import RunPaths
from tests.cli.shell import JOB, TIMEOUT, Shell, eventually


def full_disk() -> TextIO:
    return open("/dev/full", "w")


def closed_pipe() -> TextIO:
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


def closed_terminal() -> TextIO:
    terminal, ours = os.openpty()
    os.close(terminal)
    return os.fdopen(ours, "w")


OUTPUTS = pytest.mark.parametrize("output", [full_disk, closed_pipe, closed_terminal])


@OUTPUTS
def test_a_run_ends_with_its_status_if_its_output_cannot_be_written(
    shell: Shell, output: Callable[[], TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.write({"train.py": "print('hello')", "job.yaml": JOB})
    monkeypatch.chdir(shell.directory)
    for name, value in shell.environ.items():
        monkeypatch.setenv(name, value)
    with output() as broken:
        monkeypatch.setattr(sys, "stdout", broken)
        monkeypatch.setattr(sys, "stderr", broken)
        status = main(["run", "job.yaml"])
        monkeypatch.undo()
    assert status == 0


def test_all_output_reaches_a_slow_reader(shell: Shell) -> None:
    shell.write({"train.py": "for n in range(40_000):\n    print('line', n, 'x' * 80)", "job.yaml": JOB})
    process = shell.start("-m", "hpcelastic", "run", "job.yaml")
    directory = shell.directory / "runs/r"
    eventually(lambda: holds_run(directory) and Run(directory).status().ended)
    printed = process.communicate(timeout=TIMEOUT)[0]
    assert process.returncode == 0
    assert "could not be written" not in printed
    assert printed.count(" line ") == 40_000


@OUTPUTS
def test_a_signal_stops_the_agents_if_the_terminal_is_gone(
    output: Callable[[], TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = mock.Mock()
    with output() as broken, _Interrupts(nodes) as interrupts:
        monkeypatch.setattr(sys, "stderr", broken)
        os.kill(os.getpid(), signal.SIGHUP)
        interrupts.enable_forwarding()
        monkeypatch.undo()
    nodes.signal.assert_called_once_with(signal.SIGTERM)


def test_the_display_finds_the_terminal_behind_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = RunPaths(tmp_path / "r")
    for directory in (paths.register, paths.leases):
        directory.mkdir(parents=True)
    open_run(FileBackend(paths), "r", Settings(), "test")
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal, ours = os.openpty()
    with os.fdopen(ours, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        with nonblocking_stdio(), display(Run(paths.root), sys.stdout) as show:
            assert sys.stdout is not output
            show()
            show()
        monkeypatch.undo()
    shown = b""
    while b"\x1b[1A" not in shown:  # it is drawn in place
        shown += os.read(terminal, 65536)  # it fails after the last byte
    os.close(terminal)
    assert b"joining" in shown
