"""docs/reference: each command, option, key and exit status is there."""

import argparse
import importlib
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcelastic import errors
from hpcelastic.agent.admission import EXIT_UNFIT
from hpcelastic.cli import COMMANDS

DOCS = Path(__file__).parents[2] / "docs"
MAKER = runpy.run_path(str(DOCS / "make_reference.py"))


def options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the options that the help shows. Old names, and torchrun's, are accepted without being shown."""
    for action in parser._actions:
        if action.help is not argparse.SUPPRESS:
            yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from options_of(each)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_is_in_the_section_of_its_command(command: str) -> None:
    """The layout of help texts differs between versions of Python, so the page is not compared as a whole."""
    _, _, rest = (DOCS / "reference" / "cli.md").read_text().partition(f"\n## hpcelastic {command}\n")
    section = rest.partition("\n## ")[0]
    parser = argparse.ArgumentParser()
    importlib.import_module(f"hpcelastic.cli.{command}").add_arguments(parser)
    missing = [option for option in options_of(parser) if option not in section]
    assert section and not missing, f"run python docs/make_reference.py: {missing}"


@pytest.mark.parametrize("page", ["job_file.md", "causes.md"])
def test_a_page_is_up_to_date(page: str) -> None:
    expected = MAKER["pages"]()[page]
    assert (DOCS / "reference" / page).read_text() == expected, "run python docs/make_reference.py"


def test_each_exit_status_is_explained() -> None:
    page = (DOCS / "reference" / "exit_codes.md").read_text()
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "exit_code")]
    statuses = {0, EXIT_UNFIT, *(kind.exit_code for kind in kinds)}
    assert [status for status in sorted(statuses) if f"\n| {status} | " not in page] == []
