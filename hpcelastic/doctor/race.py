"""Races for names: many try to create the same ones, and of each name exactly one may be told that it has.

Judged by what each racer was told, and by what the names hold afterwards, since either may lie alone.
"""

import json
import os
import random
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from hpcelastic.doctor.trials import persistently
from hpcelastic.errors import StoreError
from hpcelastic.store import files
from hpcelastic.store.errnos import repeated

Create = Callable[[Path, bytes], bool]
"""Creates a name with a content unless it is taken; True for who did."""


_SIGHT, _PACE = 25.0, 0.1
"""Seconds for which a name that is listed is asked for, and between two times."""


def create_exclusively(path: Path, data: bytes) -> bool:
    """By O_EXCL, as lock files are: the name is there before its content."""
    try:
        fd = repeated(lambda: os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
    return True


def race(directory: Path, racer: str, names: Sequence[str], create: Create) -> list[str]:
    """Try to create every name; those that ``racer`` was told it created."""
    return [name for name in names if persistently(partial(create, directory / name, racer.encode()))]


def contents(directory: Path, names: Sequence[str], patience: float = _SIGHT) -> dict[str, str]:
    """What each name holds; empty where it is not there.

    A name that is listed is asked for again for ``patience`` seconds in all: this client may remember that it was
    absent, above all where the reply to its creation was lost.
    """
    deadline = time.monotonic() + patience
    held = {name: persistently(partial(files.read, directory / name)) for name in names}
    while time.monotonic() < deadline and (hidden := _hidden(directory, held)):
        time.sleep(_PACE)
        held |= {name: persistently(partial(files.read, directory / name)) for name in hidden}
    return {name: (content or b"").decode(errors="replace") for name, content in held.items()}


def _hidden(directory: Path, held: Mapping[str, bytes | None]) -> set[str]:
    """Names that are listed and cannot be opened."""
    absent = {name for name, content in held.items() if content is None}
    return absent & set(persistently(lambda: files.names(directory))) if absent else absent


def violation(claims: Mapping[str, Sequence[str]], held: Mapping[str, str]) -> str:
    """What is wrong with a race, in words; empty if each name has one winner, whom it names.

    ``claims`` are the names that each racer was told it created, ``held`` is what every name holds.
    """
    for name, content in held.items():
        winners = sorted(racer for racer, won in claims.items() if name in won)
        if len(winners) > 1:
            return f"{len(winners)} were told that they had created one name: {', '.join(winners)}"
        if not winners:
            return "nobody was told that it had created a name that is there" if content else "nobody created a name"
        if content != winners[0]:
            return f"a name that {winners[0]} created holds what {content or 'nobody'} wrote"
    return ""


def race_of_threads(directory: Path, racers: int, names: Sequence[str]) -> str:
    """A race on this node, quickly; what is wrong with it."""
    claims: dict[str, Sequence[str]] = {}
    errors: list[Exception] = []
    gate = threading.Barrier(racers)

    def run(racer: str) -> None:
        gate.wait()
        try:
            claims[racer] = race(directory, racer, names, files.publish_new)
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
    """A race on this node between processes; what is wrong with it."""
    command = [sys.executable, "-m", "hpcelastic.doctor.race", str(directory)]
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen([*command, f"racer-{i}", *names], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        for i in range(racers)
    ]
    try:
        for process in started:
            _pipe(process.stdout).readline()  # it has loaded what it needs
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
    """A stream that was asked for as a pipe, and so is one."""
    assert stream is not None
    return stream


def meet_at_start(directory: Path, node: str, count: int) -> str:
    """The race that agents have when they start: those who come at once compete; what is wrong with it, in words.

    Nobody waits for anybody. Who was told that it created a name must find itself there, and who was told that it did
    not, another.
    """
    names = [f"start-{number:02d}" for number in range(count)]
    files.make_directory(directory)
    absent = sorted(set(names) - set(files.names(directory)))
    random.shuffle(absent)  # or the first to come would win them all
    me = f"{node} {secrets.token_hex(4)}"
    won = race(directory, me, absent, files.publish_new)
    held = contents(directory, absent, patience=0.0)  # what does not show cannot be judged
    for name in absent:
        if name in won and held[name] not in ("", me):
            other = held[name].partition(" ")[0]
            return f"{directory / name} was created by this node, as it was told, and holds what {other} wrote"
        if name not in won and held[name] == me:
            return (
                f"{directory / name} was created by another node, as this one was told, and holds what this one wrote"
            )
    return ""


def main(arguments: Sequence[str]) -> None:
    """One racer among processes: DIRECTORY RACER NAME ...; starts when its standard input ends."""
    directory, racer, *names = arguments
    print("ready", flush=True)
    sys.stdin.read()
    print(json.dumps(race(Path(directory), racer, names, files.publish_new)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
