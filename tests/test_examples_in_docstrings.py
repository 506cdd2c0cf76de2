"""The examples in docstrings of public names have the documented results."""

import doctest
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path

import pytest

import hpcelastic
from hpcelastic import training
from hpcelastic.api import launch
from tests.cli.shell import JOB, MARK, shell_in
from tests.training.workers import become_nobody


def run_examples(of: object, name: str, names: Mapping[str, object]) -> None:
    (found,) = doctest.DocTestFinder(recurse=False).find(of, name, module=False, globs=dict(names))
    assert found.examples, f"{name} has no examples"
    output: list[str] = []
    assert doctest.DocTestRunner(verbose=False).run(found, out=output.append).failed == 0, "".join(output)


FOR_SCRIPTS = [
    "Checkpoints",
    "Checkpoints.snapshot",
    "Elastic",
    "Elastic.parts",
    "GlobalBatches",
    "SequentialShards",
    "ShardedBatches",
    "publish",
]


@pytest.mark.parametrize("name", FOR_SCRIPTS)
def test_an_example_for_training_scripts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    become_nobody(monkeypatch)
    monkeypatch.chdir(tmp_path)
    public = {each: getattr(training, each) for each in training.__all__}
    run_examples(attrgetter(name)(training), name, {**public, "Path": Path})


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("submit", marks=pytest.mark.nightly), "Run"])
def test_an_example_for_notebooks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine: the agents that SLURM would start are started here."""
    serve = launch._start_agents
    monkeypatch.setattr(launch, "_start_agents", lambda config, paths, _: serve(config, paths, "local"))
    monkeypatch.chdir(tmp_path)
    with shell_in(tmp_path) as shell:
        monkeypatch.setenv(MARK, shell.mark)
        shell.write({"job.yaml": JOB, "train.py": "print('trained')\n"})
        if name == "Run":
            hpcelastic.submit("job.yaml", run__name="digits").wait()
        run_examples(getattr(hpcelastic, name), name, {"hpcelastic": hpcelastic})
