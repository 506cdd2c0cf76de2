"""The part at fault, from the end of a worker's log alone, in 560 tails after the forms of public reports.

Each tail has the part at fault as the report tells it, which the tail alone may not show, and the address of the
report. One half of the first 200 was never read when the causes were written: its figure is the one that counts. Which
half a tail belongs to is decided by a hash of its id.
"""

import hashlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.accounting.evidence import FailedWorker, FailureText
from hpcelastic.accounting.explanation import explain_worker
from hpcelastic.agent.failure_texts import describe_failure
from hpcelastic.health.known_causes import explain

TAILS = Path(__file__).with_name("tails")
LEAST = {"unseen": 0.84, "seen": 0.93, "seen later": 0.88}
"""The least share that may be right. A change of a rule must not make them worse."""


class Share(Warning):
    """The share of tails that are right, for the summary of the tests."""


def tails(half: str) -> Iterator[dict[str, Any]]:
    for path in sorted(TAILS.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            tail = json.loads(line)
            seen = "seen" if hashlib.sha256(tail["id"].encode()).digest()[0] % 2 == 0 else "unseen"
            if half == ("seen later" if path.stem[-1].isdigit() else seen):
                yield tail


def blame(text: str, directory: Path) -> str:
    """Return the part at fault. The exit status is not a part of a tail, so it tells nothing."""
    log = directory / "log"
    log.write_text(text)
    message, traceback, _ = describe_failure(1, directory / "no error file", log)
    known = explain(message, traceback)
    worker = FailedWorker(0, "n1", 0, 1, FailureText(message, traceback), known)
    if worker.is_echo or (known is None and message == "exit status 1"):
        return "unknown"
    found = explain_worker(worker)
    return "unknown" if found is None else found.blame.value


@pytest.mark.parametrize("half", LEAST)
def test_the_part_at_fault_follows_from_the_end_of_a_log(half: str, tmp_path: Path) -> None:
    chosen = list(tails(half))
    right = [tail["id"] for tail in chosen if blame(tail["text"], tmp_path) == tail["blame"]]
    warnings.warn(f"{half}: {len(right)} of {len(chosen)} tails", Share, stacklevel=1)
    assert len(right) >= LEAST[half] * len(chosen)


def test_each_tail_is_whole() -> None:
    found = [tail for half in LEAST for tail in tails(half)]
    assert len(found) == len({tail["id"] for tail in found}) == 560
    parts = {"program", "node", "network", "filesystem", "scheduler", "user", "unknown"}
    for tail in found:
        assert tail["blame"] in parts and tail["text"].strip() and tail["source"] and tail["what"]
