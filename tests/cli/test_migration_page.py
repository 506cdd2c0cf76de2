"""docs/migration.md: the examples that a reader would copy are parsed, loaded or run."""

import importlib
import os
import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hpcelastic
from hpcelastic.api.launch import resolve
from hpcelastic.cli import agent
from hpcelastic.cli.parser import Parser
from hpcelastic.protocol.settings import NodeRange
from tests.cli.shell import TIMEOUT, Shell

PAGE = (Path(__file__).parents[2] / "docs/migration.md").read_text()


def blocks(which: str, language: str) -> list[str]:
    """Return the content of the fences below each **Before** or **After**."""
    parts = re.split(r"^(?=\*\*(?:Before|After)\*\*)", PAGE, flags=re.MULTILINE)
    wanted = [part for part in parts if part.startswith(f"**{which}**")]
    fence = rf"^```{language}\n(.*?)^```"
    return [block for part in wanted for block in re.findall(fence, part, re.MULTILINE | re.DOTALL)]


def lines(block: str, command: str) -> Iterator[list[str]]:
    """Return the words after ``command`` on a line of a script."""
    for line in block.replace("\\\n", " ").splitlines():
        words = [os.path.expandvars(word) for word in shlex.split(line, comments=True)]
        if command in words:
            yield words[words.index(command) + 1 :]


def parsed(words: list[str]) -> Any:
    """Return the result of our command's parser."""
    command, *arguments = words
    module, parser = importlib.import_module(f"hpcelastic.cli.{command}"), Parser()
    module.add_arguments(parser)
    return parser.parse_args(arguments) if command == "agent" else parser.parse_intermixed_args(arguments)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, value in {"SCRATCH": str(tmp_path / "scratch"), "SLURM_JOB_ID": "7", "head": "n1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HPCELASTIC_CONFIG", "")
    Path("train.py").write_text("")
    return tmp_path


def test_the_page_is_read_completely() -> None:
    fences = len(re.findall(r"^```\w", PAGE, re.MULTILINE))
    found = [blocks(which, language) for which in ("Before", "After") for language in ("bash", "python", "yaml")]
    assert sum(map(len, found)) == fences > 10
    assert len(re.findall(r"^\*Gained:\*", PAGE, re.MULTILINE)) == len(re.findall(r"^## ", PAGE, re.MULTILINE)) == 5


def test_every_script_is_valid_shell() -> None:
    for block in (*blocks("Before", "bash"), *blocks("After", "bash")):
        assert subprocess.run(["bash", "-n"], input=block, text=True).returncode == 0, block


def test_the_commands_are_valid(directory: Path) -> None:
    found = [words for block in blocks("After", "bash") for words in lines(block, "hpcelastic")]
    assert [words[0] for words in found] == ["agent", "submit", "status", "logs", "cancel", "agent"]
    for words in found:
        args = parsed(words)
        if words[0] == "agent":
            task = agent.task_of(args)
            assert (task.settings.nodes, task.agent.workers.per_node) == (NodeRange(2, 4), 8)
            assert (task.paths.root, task.slurm.warning) == (directory / "scratch/runs/7", 120)
            assert (task.agent.entrypoint.script, task.agent.entrypoint.args) == ("train.py", ("--lr", "0.1"))
    spans = re.findall(r"`hpcelastic ([a-z].*?)`", PAGE)
    assert len(spans) >= 5
    for span in spans:
        parsed(shlex.split(span))


def test_the_lines_of_torch_distributed_launch_are_valid() -> None:
    launch = pytest.importorskip("torch.distributed.launch")
    (theirs, ours) = re.findall(r"`(?:python -m torch.distributed.launch|hpcelastic agent)( --use-env)`", PAGE)
    assert launch.parse_args([*theirs.split(), "train.py"]).use_env
    assert parsed(["agent", *ours.split(), "train.py"]).script == "train.py"


def test_the_lines_of_torchrun_are_valid() -> None:
    run = pytest.importorskip("torch.distributed.run")
    (words,) = (words for block in blocks("Before", "bash") for words in lines(block, "torchrun"))
    assert run.get_args_parser().parse_args(words).training_script == "train.py"


def test_the_job_files_load(directory: Path) -> None:
    found = blocks("After", "yaml")
    assert len(found) == 3
    for text in found:
        Path("job.yaml").write_text(text)
        config = resolve("job.yaml", ())
        assert (config.nodes, config.workers.per_node) == (NodeRange(2, 4), 8)
        assert (config.slurm.time, config.slurm.gpus_per_node) == ("8:00:00", 8)


def test_a_function_is_submitted_with_keys_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Run:
        def result(self) -> list[float]:
            return [0.1]

    def submit(function: Any, *args: Any, **overrides: Any) -> Run:
        calls.append((args, resolve(function, hpcelastic.config.overrides_from_keywords(overrides))))
        return Run()

    monkeypatch.setattr(hpcelastic, "submit", submit)
    (snippet,) = (text for text in blocks("After", "python") if "hpcelastic.submit" in text)
    exec(snippet, {"train": lambda lr: lr})
    ((args, config),) = calls
    assert args == (0.1,)
    assert (config.nodes, config.run.total_time, config.slurm.warning) == (NodeRange(2, 4), "2-00:00:00", 120)


STUBS = """\
import torch
from torch import optim

model, lr, steps, first = torch.nn.Linear(1, 1), 0.1, 3, 0
data = torch.utils.data.TensorDataset(torch.randn(12, 1), torch.randn(12, 1))


def train_step(*_): ...


"""


@pytest.mark.slow
def test_the_training_loops_run(shell: Shell) -> None:
    loops = [text for text in blocks("After", "python") if "should_stop" in text or "Elastic(" in text]
    assert len(loops) == 2
    flags = ("-m", "hpcelastic", "agent", "--standalone", "--nproc-per-node=2")
    agents = []
    for number, loop in enumerate(loops):
        shell.write({f"loop{number}.py": f"{STUBS}{textwrap.dedent(loop)}print('trained')\n"})
        place = shell.directory / f"tmp{number}"
        place.mkdir()
        agents.append(shell.start(*flags, f"loop{number}.py", environ={"TMPDIR": str(place)}))
    for process in agents:
        stdout, stderr = process.communicate(timeout=4 * TIMEOUT)
        assert process.returncode == 0, stderr
        assert stdout.count("trained") == 2
    assert [path.name for path in shell.directory.glob("tmp*/*/*/checkpoints/*")]
