"""A worker that prints a greeting and waits for the file ``finish``. With ``ignore-sigterm`` it ignores SIGTERM."""

import os
import signal
import sys
import time
from pathlib import Path

if "ignore-sigterm" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(f"hello from rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} on {os.environ['HPCELASTIC_NODE']}")
while not Path(os.environ["HPCELASTIC_RUN_DIR"], "finish").exists():
    time.sleep(0.02)
print("bye")
