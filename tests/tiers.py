"""Which tests run when: a pytest plug-in that every run has.

- Each change (`make test`): every test without one of the marks below, and the slow tests that `tests/essential.txt`
  names.
- Each night (`make nightly`): tests with the mark `nightly`, and all other tests with the mark `slow`; one half in one
  night, the other half in the next (`--half`).
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
    parser.addoption("--half", type=int, choices=(0, 1), help="run every second of the selected tests")


class Half:
    """Selects every second test of those that all other options select."""

    def __init__(self, half: int) -> None:
        self._half = half

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        config.hook.pytest_deselected(items=items[1 - self._half :: 2])
        items[:] = items[self._half :: 2]


def pytest_configure(config: pytest.Config) -> None:
    half = config.getoption("half")
    if half is not None:
        config.pluginmanager.register(Half(half))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to go on where pytest-xdist passes over groups: each of its processes would start every lab for itself."""
    if session.config.getoption("loadgroup", False):
        alone = [i.nodeid for i in session.items if i.get_closest_marker("xdist_group") and "@" not in i.nodeid]
        if alone:
            raise pytest.UsageError(f"this pytest-xdist does not group tests with this pytest, such as {alone[0]}")
