import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcelastic.agent import failure_texts
from hpcelastic.agent.failure_texts import describe_exit, describe_failure
from hpcelastic.agent.failures import within

NOW = 5000.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_texts, "time", SimpleNamespace(time=lambda: NOW))


def recorded(tmp_path: Path, content: bytes) -> tuple[str, str, float]:
    """Return the description of a worker with this error file and an empty log."""
    (tmp_path / "error.json").write_bytes(content)
    return describe_failure(1, tmp_path / "error.json", None)


def logged(tmp_path: Path, text: str, exit_code: int = 1) -> tuple[str, str, float]:
    """Return the description of a worker with this log and no error file."""
    (tmp_path / "log").write_text(text)
    return describe_failure(exit_code, tmp_path / "error.json", tmp_path / "log")


EXITS = [
    (1, "exit status 1"),
    (255, "exit status 255"),
    (-9, "killed by SIGKILL"),
    (-signal.SIGSEGV, "killed by SIGSEGV"),
    (-signal.SIGTERM, "killed by SIGTERM"),
    (-50, "killed by signal 50"),
]


@pytest.mark.parametrize(("exit_code", "words"), EXITS, ids=[words for _, words in EXITS])
def test_the_description_of_an_exit_status(tmp_path: Path, exit_code: int, words: str) -> None:
    assert describe_exit(exit_code) == words
    assert describe_failure(exit_code, tmp_path / "none", None) == (words, "", NOW)


# Error files


def test_the_content_of_torchs_record_is_used(tmp_path: Path) -> None:
    extra = {"py_callstack": "Traceback\n  File\nValueError: x\n", "timestamp": "1234"}
    content = json.dumps({"message": {"message": "ValueError: x", "extraInfo": extra}}).encode()
    assert recorded(tmp_path, content) == ("ValueError: x", "Traceback\n  File\nValueError: x\n", 1234.0)


def test_only_the_end_of_a_long_traceback_is_kept(tmp_path: Path) -> None:
    longest = 16 * 1024
    for callstack in ("x" * longest + "end", "y" * (longest - 1) + "z"):
        content = {"message": {"message": "E: x", "extraInfo": {"py_callstack": callstack}}}
        assert recorded(tmp_path, json.dumps(content).encode()) == ("E: x", callstack[-longest:], NOW)
    assert recorded(tmp_path, json.dumps({"message": "x" * longest + "\nE: y"}).encode())[1].endswith("x\nE: y")


def test_an_error_file_precedes_the_log(tmp_path: Path) -> None:
    (tmp_path / "error.json").write_text('{"message":{"message":"ValueError: x"}}')
    message, _, _ = logged(tmp_path, TRACEBACK)
    assert message == "ValueError: x"


ERROR_FILES = {
    "message of many lines": (b'{"message":{"message":"ValueError: a\\nb\\n"}}', "ValueError: a", ""),
    "plain text": (
        b'{"message":"Traceback\\n  File\\nRuntimeError: y\\n"}',
        "RuntimeError: y",
        "Traceback\n  File\nRuntimeError: y\n",
    ),
    "more fields": (
        b'{"message":{"message":"E: x","errorCode":3,"extraInfo":{"py_callstack":"t"}},"v":2}',
        "E: x",
        "t",
    ),
    "no extra": (b'{"message":{"message":"E: x"}}', "E: x", ""),
    "odd characters": ('{"message":{"message":"E: ü\\ud800"}}'.encode(), "E: ü\ud800", ""),
}


@pytest.mark.parametrize(("content", "message", "traceback"), ERROR_FILES.values(), ids=ERROR_FILES.keys())
def test_error_files_that_are_read(tmp_path: Path, content: bytes, message: str, traceback: str) -> None:
    assert recorded(tmp_path, content) == (message, traceback, NOW)


NONSENSE = {
    "empty": b"",
    "incomplete": b'{"message":{"mess',
    "binary": bytes(range(256)),
    "null": b"null",
    "number": b"7",
    "list": b"[]",
    "no message": b"{}",
    "empty text": b'{"message":""}',
    "blank": b'{"message":{"message":" \\n "}}',
    "message is a list": b'{"message":[]}',
    "message is a number": b'{"message":7}',
    "message is null": b'{"message":null}',
    "nothing in message": b'{"message":{}}',
    "extra is null": b'{"message":{"message":"x","extraInfo":null}}',
    "extra is a list": b'{"message":{"message":"x","extraInfo":[]}}',
    "time is text": b'{"message":{"message":"x","extraInfo":{"timestamp":"noon"}}}',
    "time is null": b'{"message":{"message":"x","extraInfo":{"timestamp":null}}}',
    "time is huge": b'{"message":{"message":"x","extraInfo":{"timestamp":1' + b"0" * 400 + b"}}}",
}


@pytest.mark.parametrize("content", NONSENSE.values(), ids=NONSENSE.keys())
def test_an_invalid_error_file_is_ignored(tmp_path: Path, content: bytes) -> None:
    assert recorded(tmp_path, content) == ("exit status 1", "", NOW)
    assert logged(tmp_path, TRACEBACK)[0] == "ValueError: x (exit status 1)"


def test_a_directory_in_place_of_an_error_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "error.json").mkdir()
    assert describe_failure(1, tmp_path / "error.json", None) == ("exit status 1", "", NOW)


def test_torchs_record_is_read(tmp_path: Path) -> None:
    """The file is written by the real decorator for a script that raises."""
    script = tmp_path / "train.py"
    script.write_text(
        "from torch.distributed.elastic.multiprocessing.errors import record\n\n"
        "@record\ndef main():\n    raise ValueError('no such class: ü')\n\nmain()\n"
    )
    env = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")}
    before = int(time.time())
    ended = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True)
    assert ended.returncode == 1
    message, traceback, when = describe_failure(1, tmp_path / "error.json", None)
    assert message == "ValueError: no such class: ü"
    assert traceback.startswith("Traceback (most recent call last):\n")
    assert "line 5, in main" in traceback
    assert traceback.rstrip().endswith("ValueError: no such class: ü")
    assert before <= when <= time.time(), "the worker's own time"


# Logs

TRACEBACK = (
    'epoch 1\nTraceback (most recent call last):\n  File "t.py", line 3, in f\n    f()\n    ^^^\nValueError: x\n'
)
CHAINED = (
    TRACEBACK + "\nDuring handling of the above exception, another exception occurred:\n\n"
    'Traceback (most recent call last):\n  File "t.py", line 9\n    g()\npkg.mod.CustomError: y\n'
)
LOGS = {
    "traceback": (TRACEBACK, "ValueError: x (exit status 1)"),
    "chained": (CHAINED, "pkg.mod.CustomError: y (exit status 1)"),
    "output after it": (TRACEBACK + "bye\n", "ValueError: x (exit status 1)"),
    "no newline at the end": (TRACEBACK[:-1], "ValueError: x (exit status 1)"),
    "message of many lines": (TRACEBACK[:-1] + " of\n  many\nlines\n", "ValueError: x of (exit status 1)"),
    "without a message": (TRACEBACK.replace("ValueError: x", "KeyboardInterrupt"), "KeyboardInterrupt (exit status 1)"),
    "no traceback": ("epoch 1\nbye\n", "exit status 1"),
    "prefix of torch": (
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "t.py", line 9\n[rank3]:     g()\n'
        "[rank3]: ValueError: y\n",
        "ValueError: y (exit status 1)",
    ),
    "a class within a function": (
        'Traceback (most recent call last):\n  File "t.py", line 9\n    g()\n__main__.main.<locals>.Bad: y\n',
        "__main__.main.<locals>.Bad: y (exit status 1)",
    ),
    "a traceback without its beginning": (
        '    g()\n  File "t.py", line 9, in g\nOSError: y\n',
        "OSError: y (exit status 1)",
    ),
    "a launcher's prefix": (
        'n1: Traceback (most recent call last):\nn1:   File "t.py", line 9\nn1: ValueError: y\nn1: killing 7\n',
        "ValueError: y (exit status 1)",
    ),
    "an exception that was ignored": (
        'Traceback (most recent call last):\n  File "t.py"\nValueError: y\n'
        'Exception ignored in: <f>\nTraceback (most recent call last):\n  File "t.py"\nOSError: z\n',
        "ValueError: y (exit status 1)",
    ),
    "traceback that was cut off": ("Traceback (most recent call last):\n  File\n    f()\n", "exit status 1"),
    "empty": ("", "exit status 1"),
}


@pytest.mark.parametrize(("text", "message"), LOGS.values(), ids=LOGS.keys())
def test_without_an_error_file_the_end_of_the_log_is_used(tmp_path: Path, text: str, message: str) -> None:
    found, tail, when = logged(tmp_path, text)
    assert found == message
    assert tail == text.rstrip("\n")
    assert when == NOW


def test_a_signal_is_reported_with_the_last_line(tmp_path: Path) -> None:
    assert logged(tmp_path, TRACEBACK, -6)[0] == "ValueError: x (killed by SIGABRT)"


def test_only_the_end_of_a_long_log_is_kept(tmp_path: Path) -> None:
    message, tail, _ = logged(tmp_path, "".join(f"line {i}\n" for i in range(100_000)) + TRACEBACK)
    assert message == "ValueError: x (exit status 1)"
    assert tail.endswith("ValueError: x")
    assert len(tail.splitlines()) == 40
    _, tail, _ = logged(tmp_path, "x" * 1_000_000)
    assert len(tail) <= 16 * 1024


def test_a_log_of_any_bytes_is_shown(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\xff\xfe\0ok\n")
    _, tail, _ = describe_failure(1, tmp_path / "none", tmp_path / "log")
    assert "ok" in tail
    assert describe_failure(1, tmp_path / "none", tmp_path / "missing") == ("exit status 1", "", NOW)


# Late descriptions


def test_a_result_in_time_is_returned() -> None:
    late: list[str] = []
    assert within(60.0, lambda: "described", late.append) == "described"
    assert late == []


def test_a_late_result_is_delivered_once() -> None:
    answers, late = threading.Event(), queue.SimpleQueue[str]()
    assert within(0.01, lambda: "described" if answers.wait(60.0) else "", late.put) is None
    answers.set()
    assert late.get(timeout=60.0) == "described"
    assert late.empty()
