"""docs/torch_elastic_api.md: an entry for each public name of torch's elastic package, and counterparts that exist."""

import importlib
import runpy
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
MAKER = runpy.run_path(str(DOCS / "make_elastic_api.py"))
ENTRIES: dict[tuple[str, str], Any] = MAKER["entries"]()

run = pytest.importorskip("torch.distributed.run")


def test_every_public_name_has_an_entry_and_every_entry_is_a_public_name() -> None:
    names = set(MAKER["public_names"]())
    assert not names - ENTRIES.keys(), "torch has names without an entry in docs/torch_elastic_api.yaml"
    assert not ENTRIES.keys() - names, "docs/torch_elastic_api.yaml has entries that torch has not"


@pytest.mark.parametrize(
    "module",
    ["elastic.agent.server.api", "elastic.events", "elastic.metrics.api", "elastic.multiprocessing.errors", "run"],
)
def test_the_names_are_those_that_python_finds(module: str) -> None:
    loaded = importlib.import_module(f"torch.distributed.{module}")
    own = [name for name, value in vars(loaded).items() if getattr(value, "__module__", None) == loaded.__name__]
    expected = getattr(loaded, "__all__", None) or [name for name in own if not name.startswith("_")]
    assert sorted(name for where, name in MAKER["public_names"]() if where == module) == sorted(
        name for name in expected if getattr(getattr(loaded, name), "__module__", None) == loaded.__name__
    )


@pytest.mark.parametrize("name", ENTRIES, ids=".".join)
def test_an_entry_has_a_status_and_a_sentence(name: tuple[str, str]) -> None:
    entry = ENTRIES[name]
    assert entry.status in MAKER["STATUSES"]
    assert entry.remark.endswith(".")


@pytest.mark.parametrize("counterpart", sorted({name for entry in ENTRIES.values() for name in entry.counterparts}))
def test_a_counterpart_exists(counterpart: str) -> None:
    assert counterpart.startswith("hpcelastic.")
    assert resolved(counterpart) is not None


def resolved(name: str) -> object:
    """The object with a dotted name."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def test_every_option_of_torchrun_is_on_the_page() -> None:
    actions = [action for action in run.get_args_parser()._actions if action.option_strings and action.dest != "help"]
    assert set(MAKER["options"]()) == {max(a.option_strings, key=len).replace("_", "-") for a in actions}


def test_the_page_is_up_to_date() -> None:
    assert (DOCS / "torch_elastic_api.md").read_text() == MAKER["rendered"](), "run python docs/make_elastic_api.py"
