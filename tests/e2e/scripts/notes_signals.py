"""A worker that records each signal in the given directory and continues.

With ``bye`` it takes a moment to save its work on SIGTERM, then ends. With ``family`` it has children: one in its
process group and one in its own session.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

directory, *manners = sys.argv[1:]


def note(word: str) -> None:
    Path(directory, f"{os.environ['RANK']}.{word}").touch()


def noted(signum: int, _frame: FrameType | None) -> None:
    note(signal.Signals(signum).name)
    if signum == signal.SIGTERM and "bye" in manners:
        time.sleep(0.5)
        note("saved")
        sys.exit(0)


for caught in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(caught, noted)
if "family" in manners:
    subprocess.Popen(["sleep", "600"])
    subprocess.Popen(["sleep", "601"], start_new_session=True)
note("ready")
while not Path(directory, "finish").exists():
    time.sleep(0.02)
