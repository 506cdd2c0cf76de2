"""A worker that publishes ``latest`` repeatedly and records the results, until the file ``finish`` exists.

Every note is a line of JSON with times of this machine's monotonic clock. While a file ``hold`` names the worker's
node, the worker pauses within a publication: its draft is written, and only the rename is missing.
"""

import json
import os
import time
from typing import Any

from hpcelastic.errors import StoreError
from hpcelastic.training import context, publish

HERE = context()
assert HERE.run_dir is not None
RUN = HERE.run_dir
PROOF = RUN / "proof"
PROOF.mkdir(exist_ok=True)


def note(**facts: Any) -> None:
    who = {"round": HERE.round, "rank": HERE.rank, "node": HERE.node, "pid": os.getpid()}
    with (PROOF / f"{HERE.round}.{HERE.rank}.{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps({**who, "at": time.monotonic(), **facts}) + "\n")


def held() -> bool:
    try:
        return (RUN / "hold").read_text() == HERE.node
    except FileNotFoundError:
        return False


def publish_latest() -> None:
    """Publish this round's number. ``began`` is recorded just before the draft becomes ``latest``."""
    refused, began = "", time.monotonic()
    try:
        with publish(RUN / "latest") as file:
            file.write(str(HERE.round).encode())
            file.flush()
            if held():
                note(event="holds")
            while held():
                time.sleep(0.01)
            began = time.monotonic()
    except StoreError as error:
        refused = str(error)
    note(event="publication", began=began, refused=refused)


while not (RUN / "finish").exists():
    note(event="alive")
    publish_latest()
    time.sleep(0.02)
