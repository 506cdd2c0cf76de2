from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcelastic.agent.output import LogTail
from hpcelastic.api.follow import LogFollower, worker_logs
from hpcelastic.storage.paths import RunPaths


def write(directory: Path, round: int, rank: int, stream: str, text: str) -> None:
    path = RunPaths(directory).log(round, rank, stream)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


@pytest.mark.parametrize(
    ("rank", "round", "expected"),
    [
        pytest.param(None, None, ["[1.0] a", "[1.1] b", "[2.0] c"], id="all"),
        pytest.param(0, None, ["[1.0] a", "[2.0] c"], id="one-rank"),
        pytest.param(None, 1, ["[1.0] a", "[1.1] b"], id="one-round"),
        pytest.param(1, 2, [], id="neither"),
    ],
)
def test_the_selection_of_rank_and_round(
    rank: int | None, round: int | None, expected: list[str], tmp_path: Path
) -> None:
    write(tmp_path, 1, 0, "out", "a\n")
    write(tmp_path, 1, 1, "err", "b\n")
    write(tmp_path, 2, 0, "out", "c\n")
    (RunPaths(tmp_path).round_logs(1) / "rank-00000.error.json").write_text("{}\n")
    assert [*LogFollower(tmp_path, rank, round).lines()] == expected


def test_each_line_is_shown_once_and_complete(tmp_path: Path) -> None:
    follower = LogFollower(tmp_path)
    assert [*follower.lines()] == []
    write(tmp_path, 1, 0, "out", "one\ntw")
    assert [*follower.lines()] == ["[1.0] one"]
    assert [*follower.lines()] == []
    write(tmp_path, 1, 0, "out", "o\nthr")
    assert [*follower.lines()] == ["[1.0] two"]
    assert [*follower.lines(rest=True)] == ["[1.0] thr"]


def test_ranks_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        write(tmp_path, 1, rank, "out", "")
    assert [rank for _, _, rank in worker_logs(tmp_path)] == [0, 2, 10]


def test_the_logs_of_old_rounds_are_not_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    real = LogTail.read

    def counted(tail: LogTail, *, rest: bool = False) -> Iterator[str]:
        opened.append(int(tail._path.parent.name.removeprefix("round-")))
        return real(tail, rest=rest)

    monkeypatch.setattr(LogTail, "read", counted)
    for round in (1, 2, 3):
        write(tmp_path, round, 0, "out", f"{round}\nend")
    follower = LogFollower(tmp_path)
    assert [*follower.lines()] == ["[1.0] 1", "[1.0] end", "[2.0] 2", "[3.0] 3"]
    opened.clear()
    write(tmp_path, 2, 0, "out", " of 2\n")
    write(tmp_path, 4, 0, "out", "4\n")
    assert [*follower.lines()] == ["[2.0] end of 2", "[4.0] 4"]
    assert opened == [2, 3, 4]
    opened.clear()
    assert [*follower.lines()] == [] and opened == [3, 4]
    write(tmp_path, 1, 0, "out", "late\n")
    assert [*follower.lines(rest=True)] == ["[1.0] late", "[3.0] end"], "the last look sees all"
