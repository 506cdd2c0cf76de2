"""docs/python.md: every snippet is executed in order on a real cluster."""

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import hpcelastic
from tests.cluster import SlurmCluster

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def snippets(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


async def execute(code: str, names: dict[str, Any]) -> None:
    """Execute code like a notebook, which allows `await` outside of functions."""
    done = eval(compile(code, PAGE.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)  # noqa: S307  # our page
    if inspect.isawaitable(done):
        await done


@pytest.mark.slow
def test_every_snippet_has_the_documented_result(
    cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    work = cluster.path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    (job,) = snippets("yaml")
    Path("job.yaml").write_text(job)
    Path("train.py").write_text("print('trained')\n")
    names: dict[str, Any] = {"__name__": "__main__"}

    async def main() -> None:
        for code in snippets("python"):
            await execute(code, names)

    asyncio.run(main())
    shown = capsys.readouterr().out
    for words in (
        "succeeded 1 2\n",
        "--- succeeded, round 1, world size 2",
        "[1.0] trained\n",
        "<class 'FileNotFoundError'>\n",
        ", in fails\n",
    ):
        assert words in shown
    assert names["losses"] == [2, 2]
    assert names["returned"] == {0: {"rank": 0, "loss": 2}, 1: {"rank": 1, "loss": 2}}
    assert (names["first"][0]["loss"], names["second"][0]["loss"]) == (10, 5)
    assert [value[0]["loss"] for value in names["values"]] == [10, 2]
    assert [status.phase for status in names["runs"].status()] == ["succeeded", "succeeded"]
    assert isinstance(names["runs"], hpcelastic.Runs)
