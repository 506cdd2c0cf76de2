"""Which tests run when: a pytest plug-in that every run has.

- Each change (`make test`): every test without one of the marks below, and the slow tests that `tests/essential.txt`
  names.
- Each night (`make nightly`): tests with the mark `nightly`, and all other tests with the mark `slow`; one third of
  them each night (`--third`).
- Each week (`make weekly`): tests with the mark `weekly`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ESSENTIAL = Path(__file__).with_name("essential.txt")


def essential() -> set[str]:
    """Return the ids of the slow tests that run with each change, without the leading `tests/`."""
    lines = (line.strip() for line in ESSENTIAL.read_text().splitlines())
    return {line for line in lines if line and not line.startswith("#")}


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen, unknown = essential(), essential()
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        unknown.discard(name)
        if item.get_closest_marker("slow") and name not in chosen and not item.get_closest_marker("weekly"):
            item.add_marker(pytest.mark.nightly)
    if unknown and config.args_source is pytest.Config.ArgsSource.TESTPATHS:  # all tests were collected
        raise pytest.UsageError(f"{ESSENTIAL}: no such test: {', '.join(sorted(unknown))}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--third", type=int, choices=(0, 1, 2), help="run every third of the selected tests")


class Third:
    """Selects every third test of those that all other options select."""

    def __init__(self, first: int) -> None:
        self._first = first

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        chosen = items[self._first :: 3]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


def pytest_configure(config: pytest.Config) -> None:
    third = config.getoption("third")
    if third is not None:
        config.pluginmanager.register(Third(third))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to go on where pytest-xdist passes over groups: each of its processes would start every lab for itself."""
    if session.config.getoption("loadgroup", False):
        alone = [i.nodeid for i in session.items if i.get_closest_marker("xdist_group") and "@" not in i.nodeid]
        if alone:
            raise pytest.UsageError(f"this pytest-xdist does not group tests with this pytest, such as {alone[0]}")
