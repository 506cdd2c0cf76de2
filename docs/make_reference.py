"""Writes the pages cli.md, job_file.md and causes.md of docs/reference, and the manual page packaging/hpcelastic.1.

They are made from the parsers, from the schema of job files, and from the known causes of failures. The command
``python docs/make_reference.py`` writes them anew. Do not edit them.
"""

import argparse
import importlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcelastic import __version__
from hpcelastic.cli import COMMANDS
from hpcelastic.cli.completion import whole_parser
from hpcelastic.cli.parser import Parser
from hpcelastic.health.known_causes import CAUSES

DIRECTORY = Path(__file__).with_name("reference")
MANUAL_PAGE = Path(__file__).parents[1] / "packaging" / "hpcelastic.1"
SCHEMA = Path(__file__).parents[1] / "hpcelastic" / "config" / "job.schema.json"
_WIDTH = "100"
"""Columns of the help texts."""

_CLI = """\
# Command line

`python docs/make_reference.py` makes this page from the commands.

Every command prints its help with `--help`. The exit statuses are in [exit_codes.md](exit_codes.md). A command that
names a run accepts its directory, or the name of a run that this user has started on this cluster.
"""
_CAUSES = """\
# Known causes

`python docs/make_reference.py` makes this page from `hpcelastic/health/known_causes`.

The report of a failure, `hpcelastic status` and `RunFailed` name the cause and a remedy if the message of the root
cause, or the end of its log, is one of these. A cause that tells a detail precedes the others, and a vague one comes
last. Among equals the first one applies. An echo is what a rank sees of a failure elsewhere. Some causes also count as
[incidents](../health.md#incidents) of the node.

| id | cause | blame | certainty | remedy | source of the message |
| --- | --- | --- | --- | --- | --- |"""
_JOB = """\
# Job file

`python docs/make_reference.py` makes this page from the schema of job files, `hpcelastic/config/job.schema.json`. Your
editor can use that file to complete keys.

A job file is YAML. Only `entrypoint` has no default. `KEY=VALUE` on the command line overrides a key, with dots between
the parts of its name: `slurm.time=60`. `hpcelastic config show FILE` prints each value and its origin.
"""


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    return {"cli.md": _cli(), "job_file.md": _job_file(), "causes.md": _causes()}


def _causes() -> str:
    rows = ((each.id, each.text, each.blame.value, each.certainty.value, each.remedy, each.source) for each in CAUSES)
    return "\n".join([_CAUSES, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _cli() -> str:
    os.environ["COLUMNS"] = _WIDTH
    parts = [_CLI, "| command | |\n| --- | --- |"]
    parts += [
        f"| [`hpcelastic {name}`](#hpcelastic-{name}) | {command.summary} |" for name, command in COMMANDS.items()
    ]
    for name in COMMANDS:
        parts.append(f"\n## hpcelastic {name}\n")
        parser = Parser(prog=f"hpcelastic {name}", description="")
        importlib.import_module(f"hpcelastic.cli.{name}").add_arguments(parser)
        parts += [f"```text\n{help.rstrip()}\n```" for help in _helps(parser)]
    return "\n".join(parts) + "\n"


def _helps(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the help of a parser, and of the parsers of its actions."""
    yield parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield each.format_help()


def _job_file() -> str:
    schema = json.loads(SCHEMA.read_text())
    parts = [_JOB]
    top = [(name, _resolved(schema, each)) for name, each in schema["properties"].items()]
    for name, each in top:
        parts.append(f"## {name}\n\n{_text(each)}\n")
        rows = [*_rows(schema, name, each)]
        if rows:
            parts.append("| key | value | default | |\n| --- | --- | --- | --- |\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _rows(schema: Mapping[str, Any], prefix: str, section: Mapping[str, Any]) -> Iterator[str]:
    for name, value in section.get("properties", {}).items():
        key, resolved = f"{prefix}.{name}", _resolved(schema, value)
        if "properties" in resolved:
            yield f"| `{key}` | keys | | {_text(resolved)} |"
            yield from _rows(schema, key, resolved)
        else:
            yield f"| `{key}` | {_kind(schema, value)} | {_default(value)} | {_text(value)} |"


def _resolved(schema: Mapping[str, Any], value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a value of the schema with the definition that it refers to, alone or beside null."""
    references = [value, *value.get("allOf", ()), *value.get("anyOf", ())]
    for each in references:
        if "$ref" in each:
            definition = schema["$defs"][each["$ref"].rpartition("/")[2]]
            return {**definition, **{key: text for key, text in value.items() if key in ("description", "default")}}
    return value


def _kind(schema: Mapping[str, Any], value: Mapping[str, Any]) -> str:
    """Return the kind of a value in words."""
    if "enum" in value:
        return ", ".join(f"`{each}`" for each in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if "$ref" in value:
        return _kind(schema, schema["$defs"][value["$ref"].rpartition("/")[2]])
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(_kind(schema, each) for each in value["anyOf"]))
    kind = value.get("type", "any")
    if kind == "array":
        return f"list of {_kind(schema, value.get('items', {}))}"
    if kind == "object":
        return "keys and values"
    kinds = [kind] if isinstance(kind, str) else ["string"] if "string" in kind else kind
    return " or ".join(_KINDS.get(each, each) for each in kinds)


_KINDS = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false", "null": "null"}


def _default(value: Mapping[str, Any]) -> str:
    default = value.get("default")
    return "" if default in (None, [], {}, "") else f"`{json.dumps(default)}`"


def _text(value: Mapping[str, Any]) -> str:
    """Return the description of a value as a line of Markdown."""
    text = " ".join(value.get("description", "").split())
    return re.sub(r"``(.+?)``", r"`\1`", text).replace("|", "\\|")


def manual_page() -> str:
    """Return the manual page of the command line."""
    from argparse_manpage.manpage import Manpage

    parser = whole_parser()
    parser._manpage = [{"heading": "EXIT STATUS", "content": "0 on success; docs/reference/exit_codes.md has all."}]
    page = str(Manpage(parser)).replace(
        ".SH NAME\nhpcelastic\n",
        ".SH NAME\nhpcelastic \\- elastic, fault\\-tolerant PyTorch training on SLURM clusters\n",
        1,
    )
    return re.sub(
        r"^\.TH .*$", f'.TH HPCELASTIC "1" "" "hpcelastic {__version__}" "User Commands"', page, count=1, flags=re.M
    )


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    MANUAL_PAGE.write_text(manual_page())
    for name, text in pages().items():
        (DIRECTORY / name).write_text(text)


if __name__ == "__main__":
    main()
