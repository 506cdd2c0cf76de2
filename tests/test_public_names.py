"""The names of the package: what users find, and what an agent need not load for it."""

import subprocess
import sys

import pytest

import hpcelastic


@pytest.mark.parametrize("name", hpcelastic.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(hpcelastic, name) is not None


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sumbit'"):
        hpcelastic.sumbit  # noqa: B018  # the look is the test


def test_an_agent_loads_none_of_it() -> None:
    code = "import sys, hpcelastic, hpcelastic.slurm.entry; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    unwanted = ("hpcelastic.api", "asyncio", "IPython", "pydantic", "rich", "submitit", "torch", "yaml")
    assert [name for name in loaded if name.startswith(unwanted)] == []
