"""The modules that a change modifies. Their mutants run with the change, all others at night."""

from __future__ import annotations

import subprocess
from collections.abc import Container
from functools import cache
from pathlib import Path

import pytest

from tests.protocol.under_test import Patch

_ROOT = Path(__file__).parents[2]


def at_night_unless_changed(mutants: dict[str, Patch], late: Container[str] = ()) -> list[object]:
    """Return the names as parameters. For a module without a change, only its first mutant is not nightly that is not
    one of ``late``, which take long to find."""
    seen: set[str] = set()
    parameters: list[object] = []
    for name, patch in mutants.items():
        first = patch.module not in seen and name not in late
        if first:
            seen.add(patch.module)
        now = first or patch.module in changed_modules()
        parameters.append(name if now else pytest.param(name, marks=pytest.mark.nightly))
    return parameters


@cache
def changed_modules() -> frozenset[str]:
    """Return the modules that differ from the upstream branch. If it is unknown or equal to HEAD, compare with
    HEAD~1."""
    base = _git("merge-base", "HEAD", "@{upstream}") or _git("rev-parse", "HEAD")
    if base == _git("rev-parse", "HEAD"):
        base = "HEAD~1"
    names = _git("diff", "--name-only", base, "--", "hpcelastic").splitlines()
    return frozenset(name.removesuffix(".py").replace("/", ".") for name in names)


def _git(*arguments: str) -> str:
    """Return the output of git; an empty string without git, a repository, or the commit."""
    try:
        done = subprocess.run(("git", *arguments), cwd=_ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
