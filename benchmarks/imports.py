"""A worker for the benchmarks that imports what a script often needs, writes a note and sleeps. ``imports.py NOTES``"""

import os
import sys
import time

import sklearn.datasets  # its import is what takes time
import sklearn.linear_model  # noqa: F401
import torch  # noqa: F401


def main(notes: str) -> None:
    with open(os.path.join(notes, f"{os.getpid()}.up"), "w") as file:
        file.write(str(time.monotonic()))
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(*sys.argv[1:])
