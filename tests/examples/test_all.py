"""Every example is run by a test."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TESTED = [
    "demo.py",
    "digits/trackers.py",
    "digits/train.py",
    "digits/train_elastic.py",
    "digits/train_tracked.py",
    "frameworks/elastic_accelerate.py",
    "frameworks/elastic_lightning.py",
    "frameworks/elastic_transformers.py",
    "frameworks/train_accelerate.py",
    "frameworks/train_fsdp.py",
    "frameworks/train_lightning.py",
    "frameworks/train_transformers.py",
    "function.py",
    "gridengine/elastic.sh",
    "launch.py",
    "notebook.ipynb",
]


def test_every_example_has_a_test() -> None:
    examples = {path for path in (ROOT / "examples").rglob("*") if path.is_file()}
    programs = {path for path in examples if path.suffix not in (".md", ".pyc")}
    assert sorted(path.relative_to(ROOT / "examples").as_posix() for path in programs) == TESTED


@pytest.mark.parametrize("example", TESTED)
def test_a_test_names_the_example(example: str) -> None:
    tests = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
    assert any(Path(example).name in path.read_text() for path in tests)


def test_the_overview_names_existing_files() -> None:
    text = (ROOT / "examples" / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert [link for link in links if not (ROOT / "examples" / link).exists()] == []
    assert all(example.partition("/")[0] in text for example in TESTED)
    commands = re.findall(r"(?:examples|configs)/[\w./]+\.\w+", text)
    assert [path for path in commands if not (ROOT / path).exists()] == []
