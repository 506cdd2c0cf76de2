"""Writes docs/torch_elastic_api.md: each public name of torch's elastic package, and what it is here.

``python docs/make_elastic_api.py`` writes the page anew from torch_elastic_api.yaml and from the table of options in
torchrun.md. The names of torch are read from the source code of its modules, because some modules need packages that
need not be installed.
"""

import ast
import importlib.util
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

PAGE = Path(__file__).with_name("torch_elastic_api.md")
ENTRIES = PAGE.with_suffix(".yaml")
OPTIONS = PAGE.with_name("torchrun.md")

STATUSES = {
    "same": "torch's name works with hpcelastic as under torchrun, or the counterpart has the same effect.",
    "better": "The counterpart has the same effect, and more.",
    "refused": "It is not supported. The remark says what to use in its place.",
    "not applicable": "It is a part of torch's implementation, and has no effect on a run of hpcelastic.",
}

TREATMENTS = {"same": "same", "better": "better", "not needed": "not applicable", "refused": "refused"}
"""The status of each treatment of an option in torchrun.md."""

_NOT_API = {"log", "logger"}

Name = tuple[str, str]
"""A module below torch.distributed, and a name in it."""


class Module(NamedTuple):
    """What the source code of a module says about its names."""

    public: tuple[str, ...]
    options: tuple[str, ...]
    """The options that it adds to a parser. Those of torchrun are listed in torchrun.md."""

    imported: dict[str, Name]


class Entry(NamedTuple):
    """What becomes of a name."""

    status: str
    remark: str
    counterparts: tuple[str, ...]


def public_names() -> list[Name]:
    """The public names of torch's elastic package, each once: where it is defined, if that is public too."""
    modules = dict(_modules())
    listed = {(module, name) for module, found in modules.items() for name in (*found.public, *found.options)}
    return sorted({origin if (origin := _origin(modules, name)) in listed else name for name in listed})


def entries() -> dict[Name, Entry]:
    """The entries of torch_elastic_api.yaml."""
    document = yaml.safe_load(ENTRIES.read_text())
    return {(module, name): _entry(fields) for module, names in document.items() for name, fields in names.items()}


def options() -> dict[str, str]:
    """The status of each option of torchrun, from the table in torchrun.md."""
    rows = re.findall(r"^\| `(--[\w-]+)` \| ([a-z ]+) \|", OPTIONS.read_text(), re.MULTILINE)
    return {option: TREATMENTS[treatment] for option, treatment in rows}


def rendered() -> str:
    """The page."""
    parts = [
        "# torch's elastic API",
        "The public names of `torch.distributed.elastic`, `torch.distributed.run`, `.launch` and `.launcher` in torch "
        "2.13, and what each is in hpcelastic. `python docs/make_elastic_api.py` makes this page from "
        "[torch_elastic_api.yaml](torch_elastic_api.yaml). A name that several modules export stands where it is "
        "defined.",
        "\n".join(f"* **{status}**: {text}" for status, text in STATUSES.items()),
    ]
    found = entries()
    for module in sorted({module for module, _ in found}):
        rows = [(f"`{name}`", *_cells(entry)) for (where, name), entry in sorted(found.items()) if where == module]
        parts += [f"## torch.distributed.{module}", _table(("name", "here", "counterpart", "remark"), rows)]
    listed = [(f"`{option}`", status) for option, status in options().items()]
    about = "[torchrun.md](torchrun.md) has the effect of each option."
    parts += ["## Options of torchrun", about, _table(("option", "here"), listed)]
    return "\n\n".join(parts) + "\n"


def _entry(fields: dict[str, str | list[str]]) -> Entry:
    here = fields.pop("here", [])
    ((status, remark),) = fields.items()
    return Entry(status, str(remark), tuple([here] if isinstance(here, str) else here))


def _cells(entry: Entry) -> tuple[str, str, str]:
    return entry.status, ", ".join(f"`{name}`" for name in entry.counterparts), entry.remark


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("|".join(["", *(f" {cell} " if cell else " " for cell in cells), ""]) for cells in lines)


def _modules() -> Iterator[tuple[str, Module]]:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent / "distributed"
    for path in [
        *(root / "elastic").rglob("*.py"),
        root / "run.py",
        root / "launch.py",
        *(root / "launcher").glob("*.py"),
    ]:
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        if not any(part.startswith("_") for part in module.split(".")):
            yield module, _module(module, path)


def _module(module: str, path: Path) -> Module:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    exported: list[str] | None = None
    defined: list[str] = []
    imported: dict[str, Name] = {}
    tree = ast.parse(path.read_text())
    for node in _statements(tree.body):
        if isinstance(node, ast.ImportFrom):
            source = _source(package, node)
            imported |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.append(node.name)
        elif isinstance(node, ast.Assign):
            targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if targets == ["__all__"]:
                exported = ast.literal_eval(node.value)
            defined += targets
    own = {name for name in defined if not name.startswith("_")} - _NOT_API
    return Module(tuple(own if exported is None else exported), _options(tree) if module == "launch" else (), imported)


def _options(tree: ast.Module) -> tuple[str, ...]:
    """The options that a module adds to a parser, each by its first spelling."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    adding = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"]
    return tuple(ast.literal_eval(call.args[0]) for call in adding)


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, also those under conditions."""
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            yield from _statements([*node.body, *node.orelse])
        else:
            yield node


def _source(package: str, node: ast.ImportFrom) -> str:
    """The module below torch.distributed from which a statement imports."""
    if not node.level:
        return (node.module or "").removeprefix("torch.distributed.")
    parts = package.split(".")
    above = parts[: len(parts) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def _origin(modules: dict[str, Module], name: Name) -> Name:
    """Where ``name`` is defined."""
    while name[0] in modules and name[1] in modules[name[0]].imported:
        name = modules[name[0]].imported[name[1]]
    return name


if __name__ == "__main__":
    PAGE.write_text(rendered())
