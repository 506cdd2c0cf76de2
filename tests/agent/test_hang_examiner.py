"""When an agent requests an examination of a round that makes no progress."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcelastic.agent import hangs
from hpcelastic.agent.hangs import HangExaminer
from hpcelastic.agent.settings import HangSettings
from hpcelastic.agent.stacks import WorkersOfRound
from hpcelastic.agent.watchdog import Overdue
from hpcelastic.protocol.findings import Hang
from hpcelastic.protocol.state import Phase
from hpcelastic.storage.paths import RunPaths
from tests.agent.processes import TIMEOUT

FOUND = WorkersOfRound(3)


def test_no_other_examination_is_requested_while_a_report_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, requests = threading.Event(), list[object]()
    monkeypatch.setattr(hangs, "_EXAMINATION_TIMEOUT", 0.0)
    monkeypatch.setattr(hangs, "_SAMPLE_INTERVAL", 0.0)
    monkeypatch.setattr(hangs, "unreached", lambda peers, address: [str(released.wait(TIMEOUT))])
    session: Any = SimpleNamespace(
        spec=SimpleNamespace(paths=RunPaths(tmp_path), found=SimpleNamespace(state=SimpleNamespace(hang=None))),
        member=SimpleNamespace(node="n1@0-a", name="n1", address="127.0.0.1"),
        call_rendezvous=requests.append,
    )
    watchdog: Any = SimpleNamespace(
        check=lambda found: Overdue(3, 0, 60.0, 0.0, has_steps=True), request_records=lambda workers, number: None
    )
    collector: Any = SimpleNamespace(collect=lambda pidfds: {})
    page: Any = SimpleNamespace()
    examiner = HangExaminer(session, HangSettings(), collector, watchdog, page, lambda hang: None)
    state: Any = SimpleNamespace(hang=Hang(1, 3, "n2@0-a"), phase=Phase.RUNNING, participants=())
    examiner.observe(state, lambda: FOUND)
    examiner.check(FOUND)
    assert requests == [], "the report of this agent is not complete"
    released.set()
    (thread,) = (each for each in threading.enumerate() if each.name == "hang")
    thread.join(TIMEOUT)
    examiner.check(FOUND)
    assert len(requests) == 1
