"""The structure of the package: sizes, imports by string, and state of modules."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "hpcelastic").rglob("*.py"))

MAX_LINES, MAX_METHODS, MAX_ATTRIBUTES = 400, 20, 15

LARGE = {
    "protocol/events.py": "one class for each kind of event",
    "protocol/decide.py": "the whole decision of the protocol, to be read at once",
    "Agent": "one method for each event and action of an agent",
    "ControlPage": "the agent's side and the worker's side of each value",
    "ExternalAgentSession": "the methods that torchrun calls, and the thread that serves them",
    "Links": "one method for each event of a connection",
    "Network": "one thread, and what it shares with the callers",
    "NodeStateMachine": "one method for each event of a node",
    "Rendezvous": "one turn of read, decide and commit, and the news that hasten it",
    "Run": "the public interface of a run",
    "RunPaths": "every path of a run directory",
    "Supervisor": "one method for each action and event of the workers of a node",
    "TorchStore": "the interface of torch.distributed.Store",
    "WorkerGroup": "the whole life of the processes of a group: started, resumed, parked, reaped, stopped",
}
"""Files and classes beyond the limits, with the reason."""

STATE = {
    "pytorch/marking.py": "a function that a process has registered for its forks stays registered",
    "pytorch/store.py": "the store of a run is one object in a process",
    "training/control_page.py": "a worker process has one control page",
    "training/stop.py": "a worker process has one poller of stop requests, and callbacks of the user",
}
"""Modules with state of the process, with that state."""

CACHES = {
    "agent/nonblocking_output.py": "a process needs one stream to the null device, which stays open",
    "api/submissions.py": "the state of the code counts as the present one for ten seconds",
    "config/validation.py": "the schema of a class never changes",
    "network/sockets.py": "the family of an address never changes",
    "protocol/codec.py": "the reader of a type never changes",
    "protocol/rows.py": "the defaults of a class never change",
    "pytorch/store.py": "the store of a run is one object in a process",
    "storage/modes.py": "the mode of a directory of a run is fixed when it is made",
    "storage/files.py": "the type of a filesystem does not change while a run uses it",
    "training/snapshot_channel.py": "a worker process has one connection for its snapshots",
    "training/batches.py": "the order of an epoch follows from its arguments",
    "training/fence.py": "the nonce of a run never changes",
    "training/rounds.py": "a worker process has one seat",
}
"""Modules with a cache of results, with the reason why a result stays valid."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT / "hpcelastic"))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_files_and_classes_are_small_or_have_a_reason(path: Path) -> None:
    assert path.read_text().count("\n") <= MAX_LINES or name(path) in LARGE
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in node.body)
            small = methods <= MAX_METHODS and len(set(attributes(node))) <= MAX_ATTRIBUTES
            assert small or node.name in LARGE, f"{node.name} has {methods} methods and {set(attributes(node))}"


def attributes(node: ast.ClassDef) -> Iterator[str]:
    """Yield the attributes that methods of a class assign."""
    for part in ast.walk(node):
        targets = part.targets if isinstance(part, ast.Assign) else []
        if isinstance(part, ast.AnnAssign | ast.AugAssign):
            targets = [part.target]
        for target in (inner for outer in targets for inner in ast.walk(outer)):
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                yield target.attr


def layers() -> dict[str, int]:
    """Return the height of each package or module of the top level."""
    contract = (ROOT / "pyproject.toml").read_text().partition("layers = [")[2].partition("]")[0]
    return {
        part: -index
        for index, line in enumerate(contract.split(","))
        for part in re.findall(r"hpcelastic\.(\w+)", line)
    }


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_no_string_names_a_module_of_a_higher_layer(path: Path) -> None:
    heights, own = layers(), name(path).split("/")[0].removesuffix(".py")
    if own not in heights:  # the package itself, which names everything
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not is_docstring(path, node):
            for other in re.findall(r"\bhpcelastic\.(\w+)\.\w+", node.value):
                assert heights.get(other, -99) <= heights[own], f"{path}: {node.value!r} names a layer above"


def is_docstring(path: Path, node: ast.Constant) -> bool:
    """Return whether a string is a statement, like a docstring."""
    lines = path.read_text().splitlines()
    return lines[node.lineno - 1].lstrip().startswith(('"""', 'r"""'))


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_modules_have_no_state_without_a_reason(path: Path) -> None:
    for node in tree(path).body:
        if isinstance(node, ast.FunctionDef):
            cached = any("cache" in ast.dump(decorator) for decorator in node.decorator_list)
            assert not cached or name(path) in CACHES, node.name
            changes = any(isinstance(part, ast.Global) for part in ast.walk(node))
            assert not changes or name(path) in STATE, node.name
        target = node.target if isinstance(node, ast.AnnAssign) else None
        target = node.targets[0] if isinstance(node, ast.Assign) else target
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        mutable = isinstance(value, ast.Dict | ast.List | ast.Set)
        if mutable and isinstance(target, ast.Name) and target.id != "__all__":
            assert target.id.isupper() or name(path) in STATE, target.id


def test_every_reason_is_still_needed() -> None:
    """A reason is outdated if its file or class has become smaller, or its module has no cache any more."""
    sizes = {name(path) for path in SOURCES if path.read_text().count("\n") > MAX_LINES}
    for path in SOURCES:
        for node in (node for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)):
            methods = sum(isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in node.body)
            if methods > MAX_METHODS or len(set(attributes(node))) > MAX_ATTRIBUTES:
                sizes.add(node.name)
    assert {*LARGE} == sizes
    assert {*STATE} <= {name(path) for path in SOURCES}
    decorated = {
        name(path)
        for path in SOURCES
        for node in tree(path).body
        if isinstance(node, ast.FunctionDef) and any("cache" in ast.dump(each) for each in node.decorator_list)
    }
    assert {*CACHES} == decorated
