"""``--json``: what each command prints, and its description in docs/reference/json.md."""

import argparse
import importlib
import json
import math
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.accounting.evidence import Link
from hpcelastic.api.goodput import FaultCost, Goodput
from hpcelastic.api.progress import Progress
from hpcelastic.api.status import NodeStatus, RunStatus
from hpcelastic.api.why import Why
from hpcelastic.backends.files import FileBackend
from hpcelastic.cli import COMMANDS, main
from hpcelastic.cli.json_output import print_json
from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Failure, Phase
from hpcelastic.rendezvous.run import open_run
from hpcelastic.storage.paths import RunPaths
from hpcelastic.storage.register import Register

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "json.md").read_text()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """A run that has failed, in the directory of runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    paths = RunPaths(tmp_path / "runs" / "r")
    for directory in (paths.register, paths.leases, paths.logs / "round-0001"):
        directory.mkdir(parents=True)
    state = open_run(FileBackend(paths), "r", Settings(), "test")
    failure = Failure(1, "n1@a", 3, 0, 1, "ValueError: no", log="/log")
    ended = replace(state, phase=Phase.FAILED, round=1, reason="it has failed", failures=(failure,))
    Register(paths.register, "test").commit(1, encode(ended))
    (paths.logs / "round-0001" / "rank-00003.out").write_text("one\n[two] {}\n")
    return paths


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    main([*arguments])
    return json.loads(capsys.readouterr().out)


def test_the_status(run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    status = printed(capsys, "status", "r", "--json")
    assert (status["name"], status["directory"], status["phase"]) == ("r", str(run.root), "failed")
    assert status["failures"][0]["message"] == "ValueError: no"
    assert {*status} == {field.name for field in fields(RunStatus)}


def test_a_number_that_json_cannot_express_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"losses": (1.5, math.nan, math.inf), "progress": Progress(7, None, None, math.nan, 0.0)})
    shown = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert shown["losses"] == [1.5, None, None] and shown["progress"]["loss"] is None


def test_the_list(run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    expected = {
        "name": "r",
        "directory": str(run.root),
        "phase": "failed",
        "round": 1,
        "reason": "it has failed",
        "progress": "",
    }
    assert printed(capsys, "list", "--json") == [expected]
    (run.root.parent / "empty").mkdir()
    assert printed(capsys, "list", "--json", str(run.root.parent / "empty")) == []


def test_the_logs(run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "r", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [{"round": 1, "rank": 3, "line": text} for text in ("one", "[two] {}")]


def test_the_configuration(run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").touch()
    Path("job.yaml").write_text("entrypoint: {script: train.py}\nnodes: 2..4\n")
    shown = printed(capsys, "config", "show", "--json", "job.yaml")
    assert shown["config"]["nodes"]["max"] == 4
    assert shown["origins"]["nodes.max"].endswith("job.yaml:2")


def keys_of(section: str) -> set[str]:
    """Return the keys that the table of a section describes."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return {name for cell in re.findall(r"^\| (`[^|]+) \|", text, re.M) for name in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize(
    ("section", "kind"),
    [("Status", RunStatus), ("Explanations", Why), ("Accounts", Goodput)],
    ids=lambda each: str(each),
)
def test_each_key_is_described(section: str, kind: type) -> None:
    assert keys_of(section) == {field.name for field in fields(kind)}


@pytest.mark.parametrize(
    ("key", "kind"),
    [("nodes", NodeStatus), ("progress", Progress), ("chain", Link), ("faults", FaultCost)],
    ids=["nodes", "progress", "chain", "faults"],
)
def test_each_key_of_an_inner_object_is_described(key: str, kind: type) -> None:
    (row,) = re.findall(rf"^\| `{key}` .*$", PAGE, re.M)
    assert {field.name for field in fields(kind)} <= {*re.findall(r"`(\w+)`", row)}


def test_each_command_with_the_option_is_described() -> None:
    def accepts(name: str) -> bool:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"hpcelastic.cli.{name}").add_arguments(parser)
        return "--json" in parser.format_help() or name == "config"

    described = set(re.findall(r"^\| `hpcelastic (\w+)", PAGE, re.M))
    assert described == {name for name in COMMANDS if accepts(name)}
