"""The runner as a subprocess, as an agent starts it."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hpcelastic import values
from hpcelastic.agent.failure_texts import describe_failure
from hpcelastic.storage.paths import RunPaths

ROUND, RANK = 2, 3
MODULE = """
import os, sys, threading

def train(*args):
    return {"args": list(args), "rank": int(os.environ["RANK"])}

def pair(*args):
    return tuple(args)

def fail(text):
    raise ValueError(text)

def leave(status):
    sys.exit(status)

def lock():
    return threading.Lock()

def own_directory():
    return [os.getcwd(), __name__]
"""


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "run")
    paths.round_logs(ROUND).mkdir(parents=True)
    paths.root.chmod(0o700)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "my_training.py").write_text(MODULE)
    return paths


def work(paths: RunPaths, *arguments: str) -> "subprocess.CompletedProcess[str]":
    env = {
        **os.environ,
        "HPCELASTIC_RUN_DIR": str(paths.root),
        "HPCELASTIC_ROUND": str(ROUND),
        "RANK": str(RANK),
        "TORCHELASTIC_ERROR_FILE": str(paths.error_file(ROUND, RANK)),
    }
    command = [sys.executable, "-u", "-m", "hpcelastic.worker", *arguments]
    return subprocess.run(command, env=env, cwd=paths.root.parent / "work", capture_output=True, text=True, timeout=60)


def result(paths: RunPaths) -> Any:
    return values.load(paths.result(ROUND, RANK))


def test_a_function_is_called_and_its_result_is_kept(paths: RunPaths) -> None:
    ended = work(paths, "my_training:train", '[1, 0.5, "a b", true]')
    assert (ended.returncode, ended.stderr) == (0, "")
    assert result(paths) == {"args": [1, 0.5, "a b", True], "rank": RANK}
    assert (paths.results / "round-0002.rank-00003.json").exists()
    assert paths.results.stat().st_mode & 0o777 == 0o700
    assert not paths.error_file(ROUND, RANK).exists()


def test_a_tuple_stays_a_tuple(paths: RunPaths) -> None:
    assert work(paths, "my_training:pair", "[1, 2]").returncode == 0
    assert result(paths) == (1, 2)


def test_a_function_in_the_working_directory_is_found(paths: RunPaths) -> None:
    assert work(paths, "my_training:own_directory", "[]").returncode == 0
    assert result(paths) == [str(paths.root.parent / "work"), "my_training"]


def test_a_pickled_function_is_called_with_its_arguments(paths: RunPaths) -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec("import os\ndef train(a, b):\n    return a * b + int(os.environ['RANK'])", scope)
    values.save_call(paths.function, scope["train"], (6, 7))
    ended = work(paths, "--pickled")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert result(paths) == 42 + RANK


def test_a_pickled_function_may_lie_elsewhere(paths: RunPaths) -> None:
    (paths.root / "mine").mkdir(mode=0o700)
    values.save_call(paths.root / "mine" / "call.pkl", max, (6, 7))
    assert work(paths, "--pickled", str(paths.root / "mine" / "call.pkl")).returncode == 0
    assert result(paths) == 7


def test_what_the_function_has_recorded_itself_is_left_alone(paths: RunPaths) -> None:
    own = (
        "import os\ndef train():\n    open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('own')\n    raise OSError"
    )
    (paths.root.parent / "work" / "records.py").write_text(own)
    assert work(paths, "records:train", "[]").returncode == 1
    assert paths.error_file(ROUND, RANK).read_text() == "own"


FAILURES = {
    "exception": (["my_training:fail", '["too\\nbad"]'], "ValueError: too", "in fail"),
    "no such module": (["no_such_module:train", "[]"], "ModuleNotFoundError: No module named 'no_such_module'", "load"),
    "no such function": (
        ["my_training:nothing", "[]"],
        "AttributeError: module 'my_training' has no attribute 'nothing'",
        "",
    ),
    "wrong arguments": (
        ["my_training:fail", "[]"],
        "TypeError: fail() missing 1 required positional argument: 'text'",
        "",
    ),
    "no pickle": (["--pickled"], "FileNotFoundError: [Errno 2] No such file or directory", ""),
    "value that cannot be kept": (["my_training:lock", "[]"], "ConfigError: the return value cannot be pickled", ""),
}


@pytest.mark.parametrize(("arguments", "message", "where"), FAILURES.values(), ids=FAILURES.keys())
def test_what_goes_wrong_is_recorded_and_printed(
    paths: RunPaths, arguments: list[str], message: str, where: str
) -> None:
    before = time.time()
    ended = work(paths, *arguments)
    assert ended.returncode == 1
    found, traceback, when = describe_failure(1, paths.error_file(ROUND, RANK), None)
    assert found.startswith(message)
    assert where in traceback and message.removeprefix("ConfigError: ") in traceback
    assert ended.stderr.endswith(traceback) and "hpcelastic/worker" not in ended.stderr
    assert before - 1 <= when <= time.time() + 1
    with pytest.raises(KeyError):
        result(paths)


def test_the_error_file_has_torchs_format(paths: RunPaths) -> None:
    work(paths, "my_training:fail", '["x"]')
    content = json.loads(paths.error_file(ROUND, RANK).read_text())
    assert content["message"]["message"] == "ValueError: x"
    assert set(content["message"]["extraInfo"]) == {"py_callstack", "timestamp"}
    assert all(type(value) is str for value in content["message"]["extraInfo"].values())


def test_an_exit_status_of_the_function_is_the_workers(paths: RunPaths) -> None:
    assert work(paths, "my_training:leave", "[3]").returncode == 3
    assert not paths.error_file(ROUND, RANK).exists()


def test_a_pickle_that_others_could_have_written_is_not_called(paths: RunPaths) -> None:
    values.save_pickle(paths.function, (threading.get_ident, (), {}))
    paths.function.chmod(0o666)
    ended = work(paths, "--pickled")
    assert ended.returncode == 1
    message, _, _ = describe_failure(1, paths.error_file(ROUND, RANK), None)
    assert "other users can write to it, so its pickle is not loaded" in message
