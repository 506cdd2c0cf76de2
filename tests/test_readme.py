"""The packages that the README tells a new user to install are those that its example imports."""

import ast
import re
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DISTRIBUTIONS = {"sklearn": "scikit-learn", "yaml": "pyyaml"}
"""Modules whose distribution has another name."""


def imported(script: Path) -> set[str]:
    """Return the distributions of the modules that a script imports, without those of Python itself."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return {DISTRIBUTIONS.get(name, name) for name in found - set(sys.stdlib_module_names)}


def installed(line: str) -> set[str]:
    """Return what a line ``pip install '.[torch]' NAME ...`` in a checkout installs: pyproject.toml's, and names."""
    required = re.search(r"^dependencies = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S)
    assert required
    names = {re.split(r"[<>=]", name)[0] for name in re.findall(r'"(.+?)"', required[1])}
    words = shlex.split(line.partition("#")[0])[2:]
    return names | {"torch" if word == ".[torch]" else word for word in words} | {"hpcelastic"}


@pytest.mark.parametrize("line", re.findall(r"^pip install .*$", README, re.MULTILINE))
def test_the_installed_packages_suffice_for_the_first_run(line: str) -> None:
    scripts = re.findall(r"entrypoint: \{script: (\S+?)\}", README)
    assert scripts
    for script in scripts:
        assert imported(ROOT / script) <= installed(line)
