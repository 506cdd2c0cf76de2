"""A writer of one register for tests that disturb it: ``contender hold|commit DIRECTORY WHO [COUNT]``.

``hold`` takes the register's lock, reads, prints the version, and commits after that version when it gets SIGUSR1.
``commit`` makes so many commits. Both print one JSON document on each line.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from hpcelastic.storage.register import Register


def hold(directory: Path, who: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    register = Register(directory, who)
    with register.lock():
        read = register.read().number
        say(read=read)
        signal.sigwait({signal.SIGUSR1})
        say(committed=register.commit(read, who))
    say(newest=Register(directory, who).read().value)


def commit(directory: Path, who: str, count: int) -> None:
    register, numbers, seconds = Register(directory, who), list[int](), list[float]()
    for _ in range(count):
        begin = time.monotonic()
        numbers.append(register.update(lambda _: who).number)
        seconds.append(time.monotonic() - begin)
    say(numbers=numbers, seconds=seconds)


def say(**document: Any) -> None:
    print(json.dumps(document), flush=True)


def main(action: str, directory: str, who: str, count: str = "1") -> None:
    if action == "hold":
        hold(Path(directory), who)
    else:
        commit(Path(directory), who, int(count))


if __name__ == "__main__":
    main(*sys.argv[1:])
