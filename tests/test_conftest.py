"""A test session does not depend on how it was started."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

INHERITED = """
import json, signal, sys
for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
    signal.signal(signum, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1])
import tests.conftest, subprocess
fields = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout.splitlines()
print(json.dumps([line.split() for line in fields if line.startswith(("SigBlk", "SigIgn"))]))
signal.raise_signal(signal.SIGINT)
"""

_OF_THE_C_LIBRARY = 1 << 31 | 1 << 32
"""The signals 32 and 33, which Python cannot set and which no program of ours uses."""


def test_children_of_the_session_inherit_no_ignored_and_no_blocked_signal() -> None:
    session = subprocess.run([sys.executable, "-c", INHERITED], capture_output=True, text=True)
    masks = {name: int(mask, 16) & ~_OF_THE_C_LIBRARY for name, mask in json.loads(session.stdout)}
    assert masks == {"SigBlk:": 0, "SigIgn:": 0}
    assert session.stderr.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.slow
@pytest.mark.parametrize("third", [0, 1, 2])
def test_three_nights_run_all_tests(third: int) -> None:
    """A night selects from what the marks select, and two other nights run the rest."""

    def selected(*arguments: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/test_periodic.py", "-m", "nightly"]
        output = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True, cwd=ROOT).stdout
        return [line for line in output.splitlines() if "::" in line]

    assert selected(f"--third={third}") == selected()[third::3] != []
