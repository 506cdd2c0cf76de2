"""A worker that trains nothing: rank 0 dies in the first round of two, then all wait; the last one may finish.

It needs only the standard library, and uses only listings, because an absent name may be cached.
"""

import os
import signal
import time
from pathlib import Path

RUN = Path(os.environ["HPCELASTIC_RUN_DIR"])
ROUND, RANK, WORLD = (int(os.environ[name]) for name in ("HPCELASTIC_ROUND", "RANK", "WORLD_SIZE"))


def there(name: str) -> bool:
    while True:
        try:
            return name in os.listdir(RUN)
        except OSError:
            time.sleep(0.1)  # a filesystem with random errors


def mark(name: str) -> None:
    while not there(name):
        try:
            (RUN / name).touch()
        except OSError:
            time.sleep(0.1)


def main() -> None:
    print(f"rank {RANK} of {WORLD} in round {ROUND}, whole: {there('died')}", flush=True)
    if WORLD == 2 and RANK == 0 and not there("died"):
        mark("died")
        os.kill(os.getpid(), signal.SIGKILL)
    while WORLD == 2 or not there("finish"):
        time.sleep(0.2)
    print("finished", flush=True)


if __name__ == "__main__":
    main()
