"""The frameworks are imported only by their own modules, which say what is missing."""

import subprocess
import sys

import pytest

FRAMEWORKS = ["lightning", "transformers", "accelerate"]


def test_training_imports_no_framework() -> None:
    code = f"import sys, hpcelastic.training; print([name for name in {FRAMEWORKS} if name in sys.modules])"
    assert run(code).stdout == "[]\n"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_missing_framework_is_named(framework: str) -> None:
    result = run(f"import sys; sys.modules[{framework!r}] = None; import hpcelastic.training.{framework}")
    assert "ImportError: hpcelastic.training." + framework in result.stderr
    assert f"pip install {framework}" in result.stderr


def run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
