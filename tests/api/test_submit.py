"""`submit` from Python, with agents on this machine."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from hpcelastic import ConfigError, Run, RunFailed, submit
from hpcelastic.protocol.state import Failure
from tests.api.jobs import KEYWORDS, WAITS, job
from tests.cli.shell import TIMEOUT, Shell, eventually


@pytest.mark.slow
def test_mapping_with_a_script(shell: Shell) -> None:
    shell.write({"train.py": "print('trained')\n"})
    run = submit(job(nodes=2), executor="local")
    assert run.result(timeout=TIMEOUT) == [None, None]
    status = run.status()
    assert (status.phase, status.world_size, status.ended) == ("succeeded", 2, True)
    assert run.directory == shell.directory / "runs" / "r"
    assert list(run.logs(rank=1)) == [f"[{status.round}.1] trained"]
    eventually(lambda: shell.processes() == {})


@pytest.mark.slow
def test_job_file_and_keywords(shell: Shell) -> None:
    shell.write({"job.yaml": "entrypoint: {script: train.py}\nnodes: 3\n", "train.py": ""})
    run = submit("job.yaml", nodes="1..2", run__name="other", workers__per_node=2, executor="local")
    assert run.result(timeout=TIMEOUT)
    assert run.name == "other"
    assert run.status().world_size in (2, 4)


@pytest.mark.slow
def test_function_gives_each_ranks_result(shell: Shell) -> None:
    base = 40

    def train(step: int, *, scale: int = 1) -> Any:
        rank = int(os.environ["RANK"])
        return {"rank": rank, "value": base + step * scale} if rank else (rank, {1, 2})

    run = submit(train, 2, executor="local", nodes=2, **KEYWORDS)
    assert run.name.startswith("train-")
    assert run.result(timeout=TIMEOUT) == [(0, {1, 2}), {"rank": 1, "value": 42}]
    again = Run(os.path.relpath(run.directory))
    assert again.result() == run.result()
    assert again.directory == run.directory


@pytest.mark.slow
def test_function_that_raises(shell: Shell) -> None:
    def train() -> None:
        raise ValueError("<b>no data</b> & no hope")

    run = submit(train, executor="local", **KEYWORDS)
    with pytest.raises(RunFailed, match="has failed: rank 0 failed on node0: ValueError: <b>no data") as raised:
        run.result(timeout=TIMEOUT)
    (failure,) = raised.value.failures
    assert isinstance(failure, Failure)
    assert (failure.rank, failure.exit_code) == (0, 1)
    assert "in train" in failure.traceback
    html = run._repr_html_()
    assert "&lt;b&gt;no data&lt;/b&gt; &amp; no hope" in html
    assert "<b>no data" not in html
    assert "failed" in repr(run)


@pytest.mark.slow
def test_wait_ends_after_its_timeout_and_the_run_continues(shell: Shell) -> None:
    shell.write({"train.py": WAITS})
    run = submit(job(), executor="local")
    with pytest.raises(TimeoutError, match=r"r has not ended after 0\.2 s: "):
        run.wait(timeout=0.2)
    with pytest.raises(TimeoutError):
        run.result(timeout=0)
    shell.write({"finish": ""})
    assert run.wait(timeout=TIMEOUT).phase == "succeeded"


@pytest.mark.slow
@pytest.mark.parametrize(
    "ask", [lambda run: run.wait(TIMEOUT), lambda run: list(run.logs(follow=True))], ids=["wait", "logs"]
)
def test_a_run_without_agents_is_detected(shell: Shell, ask: Callable[[Run], object]) -> None:
    shell.write({"train.py": WAITS})
    run = submit(job(), executor="local")
    eventually(lambda: list(run.logs()))
    shell.close()
    with pytest.raises(RunFailed, match="no agent and no SLURM job is left"):
        ask(run)


@pytest.mark.slow
def test_cancelled_run_has_no_result_and_can_be_resumed(shell: Shell) -> None:
    shell.write({"train.py": WAITS})
    run = submit(job(), executor="local")
    eventually(lambda: list(run.logs()))
    with pytest.raises(ConfigError, match="has not ended: process"):
        submit(job(), executor="local", resume=True)
    assert run.cancel().phase == "closed"
    with pytest.raises(RunFailed, match="has closed: cancelled by"):
        run.result(timeout=TIMEOUT)
    eventually(lambda: shell.processes() == {})
    shell.write({"finish": ""})
    resumed = submit(job(), executor="local", resume=True)
    assert resumed.wait(timeout=TIMEOUT).phase == "succeeded"
    assert resumed.status().round == run.status().round == 2


def test_directory_without_a_run(shell: Shell) -> None:
    with pytest.raises(ConfigError, match="contains no run"):
        Run(shell.directory)
