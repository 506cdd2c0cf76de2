"""`hpcelastic stacks` shows what each worker of a run does, also a worker that cannot say so itself."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell, eventually, shell_in
from tests.e2e.rounds import Run

SCRIPT = """
import ctypes, os, signal, threading, time
from pathlib import Path

def note_that_it_is_up():
    Path(f"notes/{os.environ['HPCELASTIC_ROUND']}.{os.environ['RANK']}.up").write_text(str(os.getpid()))

def read_samples():
    time.sleep(1000)

def hold_the_interpreter_lock():
    ctypes.PyDLL(None).pause()

def compute():
    while True:
        pass

threading.Thread(target=read_samples, daemon=True).start()
note_that_it_is_up()
{"0": read_samples, "1": hold_the_interpreter_lock, "2": compute, "3": read_samples}[os.environ["RANK"]]()
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        yield made


def section(texts: dict[str, str], rank: int) -> str:
    """Return the lines about one rank."""
    parts = [part for text in texts.values() for part in re.split("\n(?=rank )", text)]
    (found,) = (part for part in parts if part.startswith(f"rank {rank},"))
    return found


@pytest.mark.slow
def test_the_stacks_of_all_ranks(shell: Shell) -> None:
    run = Run(shell, SCRIPT, 2, workers=2)
    pids = run.pids(1)
    os.kill(pids[3], signal.SIGSTOP)
    done = shell.hpcelastic("stacks", "r", "--json", "--timeout=60")
    assert done.returncode == 0, done.stderr
    texts = json.loads(done.stdout)
    assert sorted(texts) == ["n0", "n1"]
    for rank, place in ((0, "in read_samples"), (1, "in hold_the_interpreter_lock"), (2, "in compute")):
        first, *frames = section(texts, rank).splitlines()
        assert first.startswith(f"rank {rank}, local rank ") and f"process {pids[rank]} (" in first
        current = frames[next(i for i, line in enumerate(frames) if line.startswith("Stack")) :]
        assert any(line.endswith(place) for line in current), frames
        assert current[-1].endswith("in <module>") and "train.py" in current[-1]
    assert "(stopped by a signal)" in section(texts, 3) and "it has not reacted to the signal" in section(texts, 3)
    assert {event["request"] for event in run.events("stacks written")} == {1}
    os.kill(pids[3], signal.SIGCONT)
    again = shell.hpcelastic("stacks", "r", "--timeout=60").stdout
    assert "(stopped" not in again and again.count("in read_samples") == 2
    assert run.pids(1) == pids and run.newest_round() == 1  # the round continues
    files = sorted(
        path.relative_to(shell.directory / "runs/r/stacks") for path in shell.directory.glob("runs/r/stacks/*/*")
    )
    assert [str(path) for path in files] == ["0001/n0.txt", "0001/n1.txt", "0002/n0.txt", "0002/n1.txt"]
    for agent in run.agents:
        agent.send_signal(signal.SIGTERM)
    eventually(lambda: not shell.processes())


@pytest.mark.slow
def test_a_worker_in_a_fresh_interpreter_is_not_ended_by_the_signal(shell: Shell) -> None:
    shell.write({"job.yaml": "run: {name: r}\nentrypoint: {script: train.py}\nnodes: 1\nworkers: {preload: []}\n"})
    shell.write({"train.py": SCRIPT})
    (shell.directory / "notes").mkdir()
    started = shell.start("-m", "hpcelastic", "run", "job.yaml")
    eventually((shell.directory / "notes/1.0.up").exists)
    done = shell.hpcelastic("stacks", "r", "--timeout=60")
    assert "no stacks: it does not write stacks, because it was not forked from the fork server" in done.stdout
    assert started.poll() is None
    assert shell.hpcelastic("cancel", "r").returncode == 0
    started.communicate(timeout=60)
