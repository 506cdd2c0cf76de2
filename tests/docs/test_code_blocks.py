"""Every block of code of the pages is run by a test, or says why not. Those that are not run are checked otherwise."""

import ast
import contextlib
import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcelastic.cli import COMMANDS
from hpcelastic.cli.parser import Parser
from hpcelastic.config import load
from tests.docs.code_blocks import PAGES, ROOT, Block, blocks_of, commands

RUN_BY = {
    "README.md": "tests/slurm/test_user_paths.py",
    "docs/administrators.md": "tests/slurm/test_user_paths.py",
    "docs/backends.md": "tests/backends/test_pages.py",
    "docs/how_to/checkpoints.md": "tests/docs/test_code_blocks.py",
    "docs/how_to/install.md": "tests/slurm/test_user_paths.py",
    "docs/how_to/lightning_fsdp.md": "tests/slurm/test_user_paths.py",
    "docs/migration.md": "tests/cli/test_migration_page.py",
    "docs/plugin.md": "tests/backends/test_pages.py",
    "docs/python.md": "tests/slurm/test_python_page.py",
    "docs/store.md": "tests/pytorch/test_run_store.py",
    "docs/tutorials/elastic_script.md": "tests/slurm/test_user_paths.py",
    "docs/tutorials/first_job.md": "tests/slurm/test_user_paths.py",
    "docs/tutorials/laptop.md": "tests/slurm/test_user_paths.py",
}
"""The test that runs the blocks of each page, except those that say why they are not run."""

OUTPUT = ("text", "mermaid")
BLOCKS = [block for page in PAGES for block in blocks_of(page) if block.language not in OUTPUT]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_block_is_found_and_has_a_language(page: Path) -> None:
    found = blocks_of(page)
    assert page.read_text().count("```") == 2 * len(found)
    assert [str(block) for block in found if not block.language] == [], "write sh, text or another language"


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_is_run_or_says_why_not(block: Block) -> None:
    runs = str(block.page.relative_to(ROOT)) in RUN_BY or block.language in ("yaml", "yml", "toml")
    assert runs or block.reason, "write <!-- not run: REASON --> and an empty line before the block"


@pytest.mark.parametrize(("page", "test"), RUN_BY.items())
def test_the_test_of_a_page_names_it(page: str, test: str) -> None:
    text = (ROOT / test).read_text()
    assert Path(page).stem in text


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language in ("sh", "bash")], ids=str)
def test_commands_are_accepted(block: Block) -> None:
    for line in commands(block.text):
        with contextlib.suppress(ValueError):  # a line with a quotation that ends in another one
            words = shlex.split(line, comments=True)
            for place, word in enumerate(words):
                if word == "hpcelastic" and words[place + 1 :] and words[place + 1] in COMMANDS:
                    _accepted(words[place + 1 :])


def _accepted(words: list[str]) -> None:
    """Parse a command up to the end of a simple command."""
    name, *arguments = words
    end = next((place for place, word in enumerate(arguments) if re.match(r"\d*[|&;<>]", word)), None)
    arguments = [word.rstrip(";") for word in arguments[:end]]
    parser = Parser(prog=f"hpcelastic {name}")
    importlib.import_module(f"hpcelastic.cli.{name}").add_arguments(parser)
    parse = parser.parse_args if name in ("agent", "config") else parser.parse_intermixed_args
    parse(arguments)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "python"], ids=str)
def test_python_compiles_and_imports_what_exists(block: Block) -> None:
    tree = compile(block.text, str(block), "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hpcelastic"):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "yaml"], ids=str)
def test_a_job_file_is_accepted(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    job: dict[str, Any] = yaml.safe_load(block.text)
    if "profiles" in job or "exporters" in job:
        return  # tests/config/test_profiles.py and tests/test_exporters.py
    entry = job.get("entrypoint", {"script": "train.py"})
    if "script" in entry:
        script = tmp_path / entry["script"]
        script.parent.mkdir(parents=True, exist_ok=True)
        script.touch()
    text = block.text if "entrypoint" in job else f"{block.text}entrypoint: {{script: train.py}}\n"
    (tmp_path / "job.yaml").write_text(text)
    load(tmp_path / "job.yaml")


def test_the_page_of_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = (block for block in blocks_of(ROOT / "docs/how_to/checkpoints.md") if block.language == "python")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        exec(compile(block.text, str(block), "exec"), {})
    assert sorted(path.name for path in tmp_path.glob("checkpoints/*.pt"))
