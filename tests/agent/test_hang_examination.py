"""The examination of a hang: an error in one part of it does not prevent the others."""

import contextlib
from pathlib import Path
from unittest.mock import Mock

import pytest

from hpcelastic.agent.hangs import HangExaminer
from hpcelastic.agent.settings import HangSettings
from hpcelastic.errors import StoreError
from hpcelastic.protocol.events import StoreFailed
from hpcelastic.protocol.findings import Hang
from hpcelastic.storage.paths import RunPaths


@pytest.mark.parametrize("error", [RecursionError("too deep"), StoreError("no space left")])
def test_an_error_of_the_verdict_is_told_and_the_flight_records_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    session = Mock()
    session.spec.paths, session.spec.found.state.hang = RunPaths(tmp_path), None
    session.member.node, session.member.address = "n1@0-a", "127.0.0.1"
    written = list[int]()
    monkeypatch.setattr(HangExaminer, "_sample", lambda *args: ([], ""))
    monkeypatch.setattr(HangExaminer, "_examine", Mock(side_effect=error))
    monkeypatch.setattr(HangExaminer, "_write_records", lambda self, hang, workers: written.append(hang.number))
    examiner = HangExaminer(session, HangSettings(), Mock(), Mock(), Mock(), Mock())
    examiner._report(Hang(1, 2, "n1@0-a"), (), {}, (), contextlib.ExitStack())
    assert written == [1]
    if isinstance(error, StoreError):
        session.log.assert_called_once_with(StoreFailed(error="no space left"))
    else:
        expected = "the lack of progress in round 2 cannot be examined: RecursionError: too deep"
        session.report.assert_called_once_with(expected)
