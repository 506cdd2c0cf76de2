"""Races for names: several racers create the same names, and of each name exactly one racer must succeed.

A race is judged by the results that each racer got and by the content of the names afterwards, because either of them
may be wrong alone.
"""

import json
import random
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from hpcelastic.doctor.bounded_calls import retry_transient
from hpcelastic.errors import StoreError
from hpcelastic.storage import files

_VISIBILITY_TIMEOUT, _POLL_INTERVAL = 25.0, 0.1
"""Seconds for which a listed name that cannot be opened is tried again, and between two attempts."""


def race(directory: Path, racer: str, names: Sequence[str]) -> list[str]:
    """Try to create every name exclusively. Return the names whose creation by ``racer`` was reported."""
    return [name for name in names if retry_transient(partial(files.publish_new, directory / name, racer.encode()))]


def contents(directory: Path, names: Sequence[str], timeout: float = _VISIBILITY_TIMEOUT) -> dict[str, str]:
    """Return the content of each name; an empty string if the name does not exist.

    A listed name that cannot be opened is tried again, for ``timeout`` seconds in all: this client may have cached that
    the name is absent, above all if the reply to its creation was lost.
    """
    deadline = time.monotonic() + timeout
    held = {name: retry_transient(partial(files.read, directory / name)) for name in names}
    while time.monotonic() < deadline and (hidden := _hidden(directory, held)):
        time.sleep(_POLL_INTERVAL)
        held |= {name: retry_transient(partial(files.read, directory / name)) for name in hidden}
    return {name: (content or b"").decode(errors="replace") for name, content in held.items()}


def _hidden(directory: Path, held: Mapping[str, bytes | None]) -> set[str]:
    """Return the names that are listed and cannot be opened."""
    absent = {name for name, content in held.items() if content is None}
    return absent & set(retry_transient(lambda: files.names(directory))) if absent else absent


def violation(claims: Mapping[str, Sequence[str]], held: Mapping[str, str]) -> str:
    """Describe what is wrong with a race; empty if each name has one winner and holds the content of that winner.

    ``claims`` are the names that each racer got reported as created by itself, ``held`` is the content of every name.
    """
    for name, content in held.items():
        winners = sorted(racer for racer, won in claims.items() if name in won)
        if len(winners) > 1:
            return f"{len(winners)} racers created the same name: {', '.join(winners)}"
        if not winners:
            return "a name exists, but no racer got success for its creation" if content else "no racer created a name"
        if content != winners[0]:
            actual = f"the content of {content}" if content else "no content"
            return f"a name that {winners[0]} created holds {actual}"
    return ""


def race_of_threads(directory: Path, racers: int, names: Sequence[str]) -> str:
    """Run a race between threads of this process. Return what is wrong with it."""
    claims: dict[str, Sequence[str]] = {}
    errors: list[Exception] = []
    gate = threading.Barrier(racers)

    def run(racer: str) -> None:
        gate.wait()
        try:
            claims[racer] = race(directory, racer, names)
        except (OSError, StoreError) as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(f"racer-{i}",), daemon=True) for i in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return violation(claims, contents(directory, names))


def race_of_processes(directory: Path, racers: int, names: Sequence[str]) -> str:
    """Run a race between processes on this node. Return what is wrong with it."""
    command = [sys.executable, "-m", "hpcelastic.doctor.race", str(directory)]
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen([*command, f"racer-{i}", *names], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        for i in range(racers)
    ]
    try:
        for process in started:
            _pipe(process.stdout).readline()  # the process has imported its modules
        for process in started:
            _pipe(process.stdin).close()
        lines = [_pipe(process.stdout).read() for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
            _pipe(process.stdout).close()
    if not all(lines):
        raise StoreError(f"{lines.count(b'')} of {racers} processes could not create names")
    return violation({f"racer-{i}": json.loads(line) for i, line in enumerate(lines)}, contents(directory, names))


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    """Return a stream of a process that was started with pipes, so that it is never None."""
    assert stream is not None
    return stream


def race_at_start(directory: Path, node: str, count: int) -> str:
    """Race with the agents that start at the same time. Return what is wrong with the race.

    No agent waits for another. An agent must find its own content in each name that it created according to the reply,
    and other content in each name that it did not create.
    """
    names = [f"start-{number:02d}" for number in range(count)]
    files.make_directory(directory)
    absent = sorted(set(names) - set(files.names(directory)))
    random.shuffle(absent)  # in the same order, the first agent would win every name
    me = f"{node} {secrets.token_hex(4)}"
    won = race(directory, me, absent)
    held = contents(directory, absent, timeout=0.0)  # a name that is not visible yet cannot be judged
    for name in absent:
        if name in won and held[name] not in ("", me):
            other = held[name].partition(" ")[0]
            return (
                f"the reply says that {directory / name} was created by this node, but it holds the content of {other}"
            )
        if name not in won and held[name] == me:
            return (
                f"the reply says that {directory / name} was created by another node, but it holds this node's content"
            )
    return ""


def main(arguments: Sequence[str]) -> None:
    """Run one racer of `race_of_processes`: DIRECTORY RACER NAME ...; it starts at the end of its standard input."""
    directory, racer, *names = arguments
    print("ready", flush=True)
    sys.stdin.read()
    print(json.dumps(race(Path(directory), racer, names)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
