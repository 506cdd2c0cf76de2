"""Medians, ratios and tables show the measurements, failures included."""

import pytest

from benchmarks.report import Table, is_hopeless, markdown, median, plain, ratio, significant, size, spliced, spread


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([3.0, 1.0, 2.0], 2.0, id="odd"),
        pytest.param([4.0, 1.0], 2.5, id="even"),
        pytest.param([1.0, None, 2.0], None, id="one that never happened leaves no median"),
        pytest.param([], None, id="nothing measured"),
    ],
)
def test_median(values: list[float | None], expected: float | None) -> None:
    assert median(values) == expected


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        pytest.param([1.0, 2.0, 3.0], [8.0], "0.250", id="less than 1 is better"),
        pytest.param([3.0], [1.5], "2.00", id="more is worse"),
        pytest.param([1.0], [None, 1.0], "-", id="theirs never"),
        pytest.param([None], [1.0], "-", id="ours never"),
        pytest.param([1.0], [0.0], "-", id="nothing to divide by"),
        pytest.param([], [1.0], "-", id="nothing measured"),
    ],
)
def test_a_ratio_is_ours_divided_by_theirs(ours: list[float | None], theirs: list[float | None], expected: str) -> None:
    assert ratio(ours, theirs) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([2.0, 1.0, 4.0], "2.00 (1.00–4.00)", id="all happened"),
        pytest.param([1.5], "1.50", id="one run has no spread"),
        pytest.param([None, None, 3.0], "3.00, never (2 of 3)", id="some never"),
        pytest.param([None], "never (1 of 1)", id="none ever"),
        pytest.param([], "-", id="nothing measured"),
    ],
)
def test_a_spread_shows_failures(values: list[float | None], expected: str) -> None:
    assert spread(values) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(0.0, "0", id="zero"),
        pytest.param(0.01234, "0.012", id="small"),
        pytest.param(1.2345, "1.23", id="units"),
        pytest.param(12.345, "12.3", id="tens"),
        pytest.param(9.996, "10.0", id="rounded up to tens"),
        pytest.param(12345.6, "12,346", id="thousands"),
    ],
)
def test_three_digits(value: float, expected: str) -> None:
    assert significant(value) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        pytest.param(12, "12.0 B", id="bytes"),
        pytest.param(2048, "2.00 KiB", id="kibibytes"),
        pytest.param(3 * 2**30, "3.00 GiB", id="gibibytes"),
    ],
)
def test_sizes(number: float, expected: str) -> None:
    assert size(number) == expected


def test_a_table_in_markdown_and_for_a_terminal() -> None:
    table = Table("Race", ("scenario", "ours"), (("cold start", "1.2"), ("join", "0.5")), "Seconds.")
    assert markdown(table) == (
        "**Race**\n\n| scenario | ours |\n| --- | --- |\n| cold start | 1.2 |\n| join | 0.5 |\n\nSeconds.\n"
    )
    assert plain(table) == "Race\n----\nscenario    ours\ncold start  1.2\njoin        0.5\nSeconds.\n"


def test_a_row_with_another_number_of_cells_is_refused() -> None:
    with pytest.raises(ValueError, match="a row of 1 cells under 2"):
        Table("Race", ("scenario", "ours"), (("cold start",),))


def test_only_the_section_is_replaced() -> None:
    page = "a\n<!-- one: begin, by make bench -->\nold\n<!-- one: end, by make bench -->\nb\n"
    once = spliced(page, "one", "new\n")
    assert once == "a\n<!-- one: begin, by make bench -->\nnew\n<!-- one: end, by make bench -->\nb\n"
    assert spliced(once, "one", "new\n") == once


def test_a_page_without_the_section_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for two"):
        spliced("text\n", "two", "new\n")


@pytest.mark.parametrize(
    ("values", "expected"), [([], False), ([None], False), ([None, None], True), ([None, 1.0, None], False)]
)
def test_what_takes_too_long_is_tried_twice(values: list[float | None], expected: bool) -> None:
    assert is_hopeless(values, 2) == expected
