"""The kept results of the matrix, and the table that is made from them."""

import pytest

from tests.matrix.results import BEGIN, END, PAGE, Piece, read, read_report, table, with_result

REPORT = """<testsuites><testsuite>
<testcase classname="tests.slurm.test_a" name="test_one[x]" time="1.0" />
<testcase classname="tests.slurm.test_a" name="test_two"><failure message="no">...</failure></testcase>
<testcase classname="tests.slurm.test_b" name="test_three"><error message="no">...</error></testcase>
<testcase classname="tests.slurm.test_b" name="test_four"><skipped message="no NFS">...</skipped></testcase>
<testcase classname="tests.slurm.test_b" name="test_five"><skipped message="no NFS">...</skipped></testcase>
</testsuite></testsuites>"""
OLD = {"python": "3.13.5", "torch": "2.13.0", "slurm": "24.11.5"}


def test_a_report_names_failed_tests_and_counts_skipped_ones() -> None:
    failed = ("tests/slurm/test_a.py::test_two", "tests/slurm/test_b.py::test_three")
    assert read_report(REPORT, "2026-11-22", "abc") == Piece("2026-11-22", "abc", 1, failed, {"no NFS": 2})


@pytest.mark.parametrize(
    ("piece", "words"),
    [
        pytest.param(Piece("", "", 3), "3 passed", id="passed"),
        pytest.param(Piece("", "", 3, skipped={"no NFS": 2}), "3 passed; 2 skipped: no NFS", id="skipped"),
        pytest.param(Piece("", "", 3, ("a",)), "3 passed; **1 failed**: a", id="failed"),
        pytest.param(Piece("", "", 0, ("make demo",)), "**1 failed**: make demo", id="nothing passed"),
        pytest.param(Piece("", ""), "0 passed", id="nothing run"),
    ],
)
def test_the_text_of_a_result(piece: Piece, words: str) -> None:
    assert str(piece) == words


def test_results_of_other_versions_are_dropped() -> None:
    results: dict[str, object] = {}
    with_result(results, "trixie", OLD, "SLURM", Piece("2026-11-22", "abc", 1))
    with_result(results, "trixie", OLD, "demo", Piece("2026-11-23", "abc", 1))
    assert table(results).count("| Debian 13 (trixie) | 24.11.5 | 3.13.5 |") == 2
    with_result(results, "trixie", {**OLD, "slurm": "24.11.6"}, "demo", Piece("2026-11-24", "def", 1))
    assert table(results).count("Debian 13 (trixie)") == 1


def test_the_page_shows_the_results() -> None:
    assert PAGE.read_text().partition(BEGIN)[2].partition(END)[0] == table(read())
