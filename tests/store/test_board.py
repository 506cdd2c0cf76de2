"""The page that an agent shares with its workers."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcelastic.store.board import Board, Wish

LOOKS = """
import sys
from hpcelastic.store.board import Board
board = Board.open(sys.argv[1])
print(board.look(1, 3))
board.tell(1, 3)
"""


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board.make(2)
    yield made
    made.close()


def test_nobody_is_asked_anything_at_first(board: Board) -> None:
    assert not board.look(0, 1) and not board.told(1) and board.progress() is None
    assert not board.deaf(0, 1)


def test_who_has_looked_heeds_what_its_round_is_asked(board: Board) -> None:
    assert not board.heeded(3)
    board.look(1, 3)
    assert board.heeded(3) and not board.heeded(2)


def test_a_wish_is_for_one_round(board: Board) -> None:
    board.ask(Wish(3, 17.5, "n2 joins"))
    assert board.look(0, 3) and not board.look(0, 4)
    assert board.wish() == Wish(3, 17.5, "n2 joins")


def test_a_long_reason_is_cut(board: Board) -> None:
    board.ask(Wish(3, 0.0, "é" * 500))
    assert board.wish().reason.startswith("é" * 119)


def test_what_workers_say_of_themselves(board: Board) -> None:
    board.tell(1, 3)
    board.deafen(0, 3)
    board.report(0, 40)
    board.report(1, 20)
    assert board.told(3) and not board.told(2)
    assert board.deaf(0, 3) and not board.deaf(1, 3) and not board.deaf(0, 4)
    assert board.progress() == 40


def test_a_process_that_was_told_its_name_sees_the_same_page(board: Board) -> None:
    board.ask(Wish(3, 0.0, "drain"))
    said = subprocess.run([sys.executable, "-c", LOOKS, board.name], capture_output=True, text=True, check=True)
    assert said.stdout == "True\n"
    assert board.told(3)


def test_without_its_owner_it_cannot_be_opened() -> None:
    board = Board.make(1)
    name = board.name
    board.close()
    assert not Path(name).exists()
    with pytest.raises(OSError, match=name):
        Board.open(name)
