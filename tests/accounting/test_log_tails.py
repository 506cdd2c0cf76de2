"""The part at fault, from the end of a worker's log alone, in 1,709 tails after the forms of public reports.

Each tail has the part at fault as the report tells it, which the tail alone may not show, and the address of the
report. The tails were written without knowledge of the causes, in ten batches. Each batch was judged before it was
read, and its errors then led to further causes. So the figure of this test is better than that of a batch that nobody
has read: 86 of 109 for the last one, of which a reader who knew only the texts had 101 right. The labels of the last
four batches are what the text alone tells; those of the batches before them are what the report tells.
"""

import json
import warnings
from pathlib import Path
from typing import Any

from hpcelastic.accounting.evidence import FailedWorker, FailureText
from hpcelastic.accounting.explanation import explain_worker
from hpcelastic.agent.failure_texts import describe_failure
from hpcelastic.health.known_causes import explain

TAILS = Path(__file__).with_name("tails")
LEAST = 0.92
"""The least share that may be right. A change of a rule must not make it worse."""


class Share(Warning):
    """The share of tails that are right, for the summary of the tests."""


def tails() -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(TAILS.glob("*.jsonl")) for line in path.read_text().splitlines()]


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


def test_the_part_at_fault_follows_from_the_end_of_a_log(tmp_path: Path) -> None:
    chosen = tails()
    right = [tail["id"] for tail in chosen if blame(tail["text"], tmp_path) == tail["blame"]]
    warnings.warn(f"{len(right)} of {len(chosen)} tails", Share, stacklevel=1)
    assert len(right) >= LEAST * len(chosen)


def test_each_tail_is_whole() -> None:
    found = tails()
    assert len(found) == len({tail["id"] for tail in found}) == 1709
    parts = {"program", "node", "network", "filesystem", "scheduler", "user", "unknown"}
    for tail in found:
        assert tail["blame"] in parts and tail["text"].strip() and tail["source"] and tail["what"]
