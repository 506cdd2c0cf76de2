"""Random operations, each with its call, result and times: ``recorder OBJECT DIRECTORY WHO COUNT PROCESSES SEED``.

It writes a line of JSON before each call and one after it, so the call of a killed process is known too. An operation
that raised an exception has no answer: it may have taken effect or not.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from hpcelastic.backends.etcd import EtcdV2, EtcdV3
from hpcelastic.backends.record_values import RecordValues
from hpcelastic.errors import StoreError
from hpcelastic.storage.keyvalue import KeyValueStore
from hpcelastic.storage.register import Register, Version
from tests.filesystems.hammer import meet

SERVERS = {"etcd": EtcdV3, "etcd-v2": EtcdV2}

Work: TypeAlias = "Iterator[tuple[list[Any], Callable[[], Any]]]"


class RenamedRegister:
    """A wrong register, which compares in memory and then replaces. The checker must find the error."""

    def __init__(self, directory: Path, who: str) -> None:
        self._path = directory / "register.json"
        self._draft = directory / f"draft-{who}"

    def read(self) -> Version:
        return Version(*json.loads(self._path.read_text())) if self._path.exists() else Version(0, None)

    def commit(self, after: int, value: str) -> bool:
        if self.read().number != after:
            return False
        time.sleep(0.002)
        self._draft.write_text(json.dumps([after + 1, value]))
        os.replace(self._draft, self._path)
        return True


def of_register(register: Register | RenamedRegister, who: str, chance: random.Random) -> Work:
    """Reads, and commits after the version of the last read."""
    last = 0

    def read() -> list[Any]:
        nonlocal last
        version = register.read()
        last = version.number
        return [version.number, version.value]

    index = 0
    while True:
        index += 1
        yield ["read"], read
        if chance.random() < 0.7:
            value = f"{who}.{index}"
            yield ["commit", last, value], lambda value=value: register.commit(last, value)


def of_keys(store: KeyValueStore | RecordValues, who: str, chance: random.Random) -> Work:
    """All operations on a key with texts, each of which is written once, and on a key with a number."""
    last: str | None = None

    def note(value: str | None) -> str | None:
        nonlocal last
        last = value
        return value

    index = 0
    while True:
        index += 1
        mine = f"{who}.{index}"
        expected = last
        yield chance.choice(
            [
                (["text", "get"], lambda: note(store.get("text"))),
                (["text", "set", mine], lambda mine=mine: store.set("text", mine)),
                (
                    ["text", "compare_set", expected, mine],
                    lambda expected=expected, mine=mine: note(store.compare_set("text", expected, mine)),
                ),
                (["text", "delete"], lambda: store.delete("text")),
                (["number", "get"], lambda: store.get("number")),
                (["number", "add", 2], lambda: store.add("number", 2)),
            ]
        )


def work(kind: str, directory: Path, who: str, chance: random.Random) -> Work:
    if kind == "keys":
        return of_keys(KeyValueStore(directory / "store", who), who, chance)
    if kind in SERVERS:
        endpoint = (directory / "endpoint").read_text()
        return of_keys(RecordValues(SERVERS[kind](endpoint, "store", str(directory)), "values"), who, chance)
    made = {"register": Register, "renamed register": RenamedRegister}[kind]
    return of_register(made(directory, who), who, chance)


def kernel() -> str:
    """Return the identity of the kernel whose clock this process reads."""
    return Path("/proc/sys/kernel/random/boot_id").read_text()


def say(**document: Any) -> None:
    print(json.dumps(document), flush=True)


def main(kind: str, directory: str, who: str, count: str, processes: str, seed: str) -> None:
    say(at=time.monotonic(), kernel=kernel())
    chance = random.Random(f"{seed} {who}")
    meet(Path(directory), who, int(processes))
    for _, (call, operation) in zip(range(int(count)), work(kind, Path(directory), who, chance), strict=False):
        say(at=time.monotonic(), call=call)
        try:
            result = operation()
        except StoreError as error:
            say(at=time.monotonic(), error=str(error))
        else:
            say(at=time.monotonic(), result=result)
        time.sleep(chance.random() * 0.004)
    say(at=time.monotonic())


if __name__ == "__main__":
    main(*sys.argv[1:])
