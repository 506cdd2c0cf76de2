"""The names of the package: users find them, and an agent does not load them."""

import pydoc
import subprocess
import sys
from types import ModuleType

import pytest

import hpcelastic
from hpcelastic import config, pytorch, training

PACKAGES = [hpcelastic, config, pytorch, training]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_exists_and_is_listed(package: ModuleType) -> None:
    assert [name for name in package.__all__ if getattr(package, name) is None] == []
    assert set(package.__all__) <= set(dir(package))


def test_a_name_of_a_module_stays_that_of_the_function() -> None:
    code = (
        "import hpcelastic.training.store, hpcelastic.training.elastic\n"
        "from hpcelastic.training import context, publish, store\n"
        "assert callable(context) and callable(publish) and callable(store)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("first", ["", "import hpcelastic.storage.files; "], ids=["alone", "after the package"])
def test_the_store_is_a_function_with_a_docstring(first: str) -> None:
    code = f"import hpcelastic; {first}help(hpcelastic.store)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[0] == "Help on function store in module hpcelastic:"
    assert "PACKAGE CONTENTS" not in output


@pytest.mark.parametrize("name", ["Run", "store", "submit", "sweep"])
def test_help_of_the_package_shows_a_public_name(name: str) -> None:
    assert f"\n    {name}(" in pydoc.plain(pydoc.render_doc(hpcelastic)).replace("class ", "")


def test_other_names_are_not_public() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sumbit'"):
        hpcelastic.sumbit  # noqa: B018  # the look is the test


def test_an_agent_loads_no_public_name() -> None:
    code = "import sys, hpcelastic, hpcelastic.bootstrap; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    of_users = (
        "hpcelastic.api",
        "hpcelastic.training.elastic",
        "IPython",
        "pydantic",
        "rich",
        "submitit",
        "torch",
        "yaml",
    )
    slow = ("asyncio", "importlib.metadata", "statistics", "urllib.request")
    assert [name for name in loaded if name.startswith((*of_users, *slow))] == []
