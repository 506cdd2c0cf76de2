"""Runs of a copy of the code: a worker that is started later runs the code as it was submitted."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import JOB, Shell, eventually, shell_in
from tests.e2e.test_local_runs import LocalRun

MAIN = """
import os, pathlib, time
from parts import model
print("round", os.environ["HPCELASTIC_ROUND"], "main 1", "model", model.VERSION, flush=True)
while not (pathlib.Path(os.environ["HPCELASTIC_RUN_DIR"]) / "finish").exists():
    time.sleep(0.02)
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("preload", ["[argparse]", "[]"], ids=["forked", "fresh"])
def test_a_worker_that_is_started_later_runs_the_code_as_it_was_submitted(shell: Shell, preload: str) -> None:
    shell.write({"job.yaml": JOB, "main.py": MAIN, "parts/model.py": "VERSION = 1\n"})
    code = ("run.code=[main.py, parts]", f"workers.preload={preload}", "restarts.max=1")
    local = LocalRun(shell, *code, script="main.py", nodes="1")
    eventually(lambda: "round 1 main 1 model 1" in "".join(local.run.logs()))
    shell.write({"main.py": MAIN.replace("main 1", "main 2"), "parts/model.py": "VERSION = 2\n"})
    (pids,) = [event["pids"] for event in local.run.events() if event["event"] == "workers started"]
    os.kill(pids["0"], signal.SIGKILL)
    eventually(lambda: "round 2 main 1 model 1" in "".join(local.run.logs()))
    local.finish()
