"""The names of the package: users find them, and an agent does not load them."""

import pydoc
import subprocess
import sys

import pytest

import hpcelastic


@pytest.mark.parametrize("name", hpcelastic.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(hpcelastic, name) is not None


def test_dir_lists_every_public_name() -> None:
    assert set(hpcelastic.__all__) <= set(dir(hpcelastic))


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
    unwanted = ("hpcelastic.api", "asyncio", "IPython", "pydantic", "rich", "submitit", "torch", "yaml")
    assert [name for name in loaded if name.startswith(unwanted)] == []
