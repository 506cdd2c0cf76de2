"""Accounts and explanations as text and as an HTML file."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from hpcelastic.accounting import Account, Category, Segment, account
from hpcelastic.accounting.journal import SECOND
from hpcelastic.api.figures import duration, percent
from hpcelastic.api.goodput import MEANINGS, goodput
from hpcelastic.api.html_report import Report, html_report
from hpcelastic.api.why import Why
from tests.accounting.logs import journal
from tests.accounting.test_account import failing_run


@pytest.fixture(scope="module")
def accounts() -> Account:
    return account(journal(*failing_run()))


def fault(cause: str) -> Why:
    return Why("r", 1, cause, "exception", True, "program", "likely", "n1", 0, "read it", (), {"stop": 2.5}, 10.5)


class Elements(HTMLParser):
    """The elements of a document. All elements that must be closed are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.found.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.found.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_every_category_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Category)


def test_the_lines_of_an_account(accounts: Account) -> None:
    lines = goodput("digits", accounts).lines(price=36.0)
    assert lines[:3] == [
        "run          digits",
        "goodput       60.0 %  of 80 s of allocated node time",
        "ETTR          60.0 %  of 40 s; 70.7 % follows from its rates",
    ]
    shown = {line.split()[0]: line for line in lines if line.startswith("  ")}
    assert shown["useful"].split()[1:5] == ["60.0", "%", "48", "s"]
    assert "hang" not in shown
    assert "faults       1: one in 36 s (90 %: 7.5 s to 12 min)" in lines
    assert "  round 1     22 s of node time, 10 s without a new step: rank 0 failed on n1: ValueError" in lines
    assert lines[-1] == "price        0.80, of which 0.32 is lost"


def test_an_account_without_marks_says_why_nothing_is_known(accounts: Account) -> None:
    lines = goodput("digits", replace(accounts, sums=replace(accounts.sums, calls=0))).lines()
    assert "unknown" in lines[1] and lines[-1].startswith("note         the script writes no progress marks")


def test_the_rows_are_those_of_a_table(accounts: Account) -> None:
    rows = goodput("digits", accounts).rows()
    assert {"run": "digits", "category": "useful", "node_seconds": 48.0} in rows
    assert sum(float(str(row["node_seconds"])) for row in rows) == 80.0


def test_a_report_is_one_complete_document_without_a_script(accounts: Account) -> None:
    text = html_report(accounts, goodput("<digits>", accounts), [fault("Rank 0 failed: <b>&.")])
    document = Elements(text)
    assert "script" not in document.found and "link" not in document.found and "img" not in document.found
    assert "http" not in text.replace("http-equiv", "")
    assert document.found.count("svg") == 2 and document.found.count("details") == 1
    assert "<digits>" in document.text and "Rank 0 failed: <b>&." in document.text
    assert "60.0 %" in document.text


def test_a_report_of_a_run_without_agents() -> None:
    empty = account(journal())
    text = Elements(html_report(empty, goodput("r", empty), [])).text
    assert "No agent has started." in text and "No fault has ended a round." in text


def test_the_report_of_a_large_run_is_not_larger_than_one_megabyte(accounts: Account) -> None:
    categories = list(Category)
    segments = [
        Segment(f"n{node}@0-a", 1000 * SECOND * part, 1000 * SECOND * (part + 1), categories[(part + node) % 13], 0)
        for node in range(1024)
        for part in range(300)
    ]
    large = replace(accounts, begin=0, end=300_000 * SECOND, segments=tuple(segments))
    text = html_report(large, goodput("large", large), [fault("x" * 150)] * 500)
    assert 100_000 < len(text.encode()) < 1_000_000
    Elements(text)


def test_a_notebook_shows_the_report_in_a_frame(accounts: Account, tmp_path_factory: pytest.TempPathFactory) -> None:
    report = Report(html_report(accounts, goodput("r", accounts), []))
    assert report._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    path = report.save(tmp_path_factory.mktemp("r") / "r.html")
    assert path.read_text() == report.html


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.0 s"), (0.0421, "42 ms"), (1.25, "1.2 s"), (90.0, "90 s"), (600.0, "10 min"), (90_000.0, "25 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_percentages() -> None:
    assert (percent(0.1234), percent(None)) == ("12.3 %", "unknown")
