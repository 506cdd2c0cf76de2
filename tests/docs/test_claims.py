"""Every file, link, option and key that a page names exists."""

import argparse
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.cli import COMMANDS
from hpcelastic.cli.parser import Parser
from hpcelastic.config.job import RENAMED_KEYS
from hpcelastic.config.schema import job_schema

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "tests" / "README.md", *(ROOT / "docs").rglob("*.md")])
PAGES = [page for page in PAGES if page.parent.name != "adr"]  # a decision names what existed at its time
FOLDERS = ("benchmarks", "configs", "docs", "examples", "hpcelastic", "tests")
"""Not ``slurm``, which is also a directory of a run. A name in capitals is a placeholder."""

PACKAGES = tuple(path.name for path in (ROOT / "hpcelastic").iterdir() if (path / "__init__.py").is_file())

OPTIONS_OF_OTHERS = {
    "sbatch, srun and scancel": """--array --batch --container-image --container-mounts --container-workdir --cpu-bind
        --cpus-per-task --exclude --gpu-bind --het-group --kill-on-bad-exit --mem --no-kill --nodes --ntasks
        --nodelist --ntasks-per-node --open-mode --overlap --relative --requeue --segment --signal --time""",
    "apptainer": "--bind --nv --pwd",
    "torchx": "--cpu --dryrun --env --gpu --image --max_retries --memMB --mounts --script",
    "horovodrun": "--host-discovery-script --max-np --min-np",
    "ft_launcher": "--ft- --ft-segment",
    "torch.distributed.launch": "--local-rank",
    "etcd": "--auto-compaction-mode --auto-compaction-retention --enable-v2",
    "pytest": "--dist",
    "tests.periodic": "--report",
}
"""Options of other programs that the pages name."""


def spans(page: Path) -> list[str]:
    """The code spans of a page, outside its code blocks."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@cache
def options() -> frozenset[str]:
    """The options of all commands."""
    found = {"--help", "--version"}
    for name in COMMANDS:
        parser = Parser(prog=name)
        importlib.import_module(f"hpcelastic.cli.{name}").add_arguments(parser)
        found |= set(options_of(parser))
    return frozenset(found)


def options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from options_of(inner)


@cache
def keys() -> frozenset[str]:
    """The keys of a job file, with dots."""
    old = {f"{group}.{key}" for group, renamed in RENAMED_KEYS.items() for key in renamed}
    return frozenset(keys_of(job_schema())) | old


def keys_of(node: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, inner in node.get("properties", {}).items():
        yield prefix + name
        for variant in (inner, *inner.get("anyOf", ())):
            reference = variant.get("$ref", "").rpartition("/")[2]
            yield from keys_of(job_schema()["$defs"][reference] if reference else variant, f"{prefix}{name}.")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_exist(page: Path) -> None:
    for span in spans(page):
        if re.fullmatch(rf"(?:{'|'.join(FOLDERS)})/[\w./-]+", span) and not re.search("[A-Z]{3}", span):
            assert (ROOT / span).exists(), span
        elif re.fullmatch(rf"(?:{'|'.join(PACKAGES)})/\w+\.py", span):
            assert (ROOT / "hpcelastic" / span).exists(), span


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_options_exist(page: Path) -> None:
    known = {*options(), *" ".join(OPTIONS_OF_OTHERS.values()).split()}
    for span in spans(page):
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", span):
            assert option in known, f"{option} in `{span}`"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_keys_exist(page: Path) -> None:
    groups = {key for key in keys() if "." not in key}
    for span in spans(page):
        key = span.partition(":")[0].strip()
        if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", key) and key.partition(".")[0] in groups - {"run"}:  # also a `Run`
            assert key in keys(), span
