"""The exception of a failed run's function is raised again where the result is requested."""

from collections.abc import Callable

import pytest

from hpcelastic import Run, RunFailed, submit
from hpcelastic.storage.paths import RunPaths
from tests.api.jobs import KEYWORDS, job
from tests.cli.shell import TIMEOUT, Shell


class Diverged(Exception):
    """An exception of the user."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message, step)
        self.step = step


class Forgetful(Exception):
    """An exception that can be pickled but not unpickled, which is a common mistake."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)


def fails(raising: Callable[[], Exception]) -> RunFailed:
    """Return the failure of a run of two ranks of which rank 1 raises."""

    def train() -> str:
        import os

        if os.environ["RANK"] == "1":
            raise raising()
        return "fine"

    run = submit(train, executor="local", **{**KEYWORDS, "workers__per_node": 2})
    with pytest.raises(RunFailed) as raised:
        run.result(TIMEOUT)
    return raised.value


@pytest.mark.slow
def test_the_exception_itself_is_the_cause(shell: Shell) -> None:
    error = fails(lambda: Diverged("loss is NaN", 7))
    assert isinstance(error.__cause__, Diverged)
    assert (error.__cause__.args, error.__cause__.step) == (("loss is NaN", 7), 7)
    assert (error.rank, error.node, len(error.failures)) == (1, "node0", 1)
    lines = str(error).splitlines()
    assert "has failed: rank 1 failed on node0: Diverged: ('loss is NaN', 7)" in lines[0]
    assert any(", in train" in line for line in lines), "the remote traceback is shown"


@pytest.mark.slow
def test_an_exception_that_a_notebook_defines(shell: Shell) -> None:
    class Local(ValueError):
        pass

    error = fails(lambda: Local("here"))
    assert type(error.__cause__) is Local


@pytest.mark.slow
@pytest.mark.parametrize(
    ("raising", "why"),
    [
        pytest.param(lambda: Forgetful("no", 3), "its exception cannot be loaded here: TypeError", id="not-unpickled"),
        pytest.param(lambda: ValueError(__import__("threading").Lock()), None, id="not-pickled"),
    ],
)
def test_an_exception_that_cannot_be_pickled_is_shown_as_text(
    raising: Callable[[], Exception], why: str | None, shell: Shell
) -> None:
    error = fails(raising)
    assert error.__cause__ is None
    assert error.rank == 1
    assert "in train" in str(error)
    assert ("cannot be loaded" in str(error)) == (why is not None)
    assert why is None or why in str(error)


@pytest.mark.slow
def test_an_exception_in_a_file_writable_by_others_is_not_loaded(shell: Shell) -> None:
    shell.write({"mod.py": "def fail():\n    raise ValueError('no data')\n"})
    run = submit({**job(), "entrypoint": {"function": "mod:fail"}}, executor="local")
    run.wait(TIMEOUT)
    with pytest.raises(RunFailed) as raised:
        run.result()
    assert isinstance(raised.value.__cause__, ValueError)
    RunPaths(run.directory).results.chmod(0o770)
    with pytest.raises(RunFailed, match="other users can write to it") as raised:
        run.result()
    assert raised.value.__cause__ is None


@pytest.mark.slow
def test_a_script_that_fails_has_rank_and_node(shell: Shell) -> None:
    shell.write({"train.py": "raise ValueError('no data')\n"})
    with pytest.raises(RunFailed, match=r"\| ValueError: no data") as raised:
        submit(job(), executor="local").result(TIMEOUT)
    assert (raised.value.rank, raised.value.node, raised.value.__cause__) == (0, "node0", None)


@pytest.mark.slow
def test_the_results_of_other_ranks_are_kept(shell: Shell) -> None:
    def train() -> str:
        import os
        import pathlib
        import time

        done = pathlib.Path(os.environ["HPCELASTIC_RUN_DIR"], "results", "round-0001.rank-00000.json")
        while os.environ["RANK"] == "1" and not done.exists():
            time.sleep(0.01)
        if os.environ["RANK"] == "1":
            raise ValueError
        return "fine"

    run = submit(train, executor="local", **{**KEYWORDS, "workers__per_node": 2})
    with pytest.raises(RunFailed):
        run.result(TIMEOUT)
    assert (Run(run.directory).directory / "results" / "round-0001.rank-00000.json").read_text() == '"fine"\n'
