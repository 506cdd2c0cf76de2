"""A worker for the benchmarks that does not train: it imports modules, writes a note and sleeps.

``sleeps.py NOTES [MODULE...]``
"""

import importlib
import os
import sys
import time


def main(notes: str, *modules: str) -> None:
    for name in modules:
        importlib.import_module(name)
    with open(os.path.join(notes, f"{os.getpid()}.up"), "w") as file:
        file.write(str(time.monotonic()))
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(*sys.argv[1:])
