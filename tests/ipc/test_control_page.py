"""The control page that an agent shares with its workers."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcelastic.ipc.control_page import ControlPage, StopRequest

LOOKS = """
import sys
from hpcelastic.ipc.control_page import ControlPage
board = ControlPage.open(sys.argv[1])
print(board.poll(1, 3))
board.acknowledge(1, 3)
"""


@pytest.fixture
def control_page() -> Iterator[ControlPage]:
    made = ControlPage.make(2)
    yield made
    made.close()


def test_at_first_there_is_no_request(control_page: ControlPage) -> None:
    assert not control_page.poll(0, 1) and not control_page.acknowledged(1) and control_page.progress() is None
    assert not control_page.ignores_sigterm(0, 1)


def test_a_worker_that_polls_complies_with_requests_to_its_round(control_page: ControlPage) -> None:
    assert not control_page.polled(3)
    control_page.poll(1, 3)
    assert control_page.polled(3) and not control_page.polled(2)


def test_a_request_is_for_one_round(control_page: ControlPage) -> None:
    control_page.request_stop(StopRequest(3, 17.5, "n2 joins"))
    assert control_page.poll(0, 3) and not control_page.poll(0, 4)
    assert control_page.request() == StopRequest(3, 17.5, "n2 joins")


def test_a_long_reason_is_shortened(control_page: ControlPage) -> None:
    control_page.request_stop(StopRequest(3, 0.0, "é" * 500))
    assert control_page.request().reason.startswith("é" * 119)


def test_the_reports_of_workers(control_page: ControlPage) -> None:
    control_page.acknowledge(1, 3)
    control_page.ignore_sigterm(0, 3)
    control_page.report(0, 40)
    control_page.report(1, 20)
    assert control_page.acknowledged(3) and not control_page.acknowledged(2)
    assert (
        control_page.ignores_sigterm(0, 3)
        and not control_page.ignores_sigterm(1, 3)
        and not control_page.ignores_sigterm(0, 4)
    )
    assert control_page.progress() == 40


def test_a_process_with_the_name_of_the_page_opens_it(control_page: ControlPage) -> None:
    control_page.request_stop(StopRequest(3, 0.0, "drain"))
    output = subprocess.run(
        [sys.executable, "-c", LOOKS, control_page.name], capture_output=True, text=True, check=True
    )
    assert output.stdout == "True\n"
    assert control_page.acknowledged(3)


def test_without_its_owner_it_cannot_be_opened() -> None:
    control_page = ControlPage.make(1)
    name = control_page.name
    control_page.close()
    assert not Path(name).exists()
    with pytest.raises(OSError, match=name):
        ControlPage.open(name)
