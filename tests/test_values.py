import collections
import enum
import importlib
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from hpcelastic import values
from hpcelastic.errors import ConfigError, StoreError


class Color(enum.IntEnum):
    RED = 1


Point = collections.namedtuple("Point", "x y")


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


JSON = {
    "null": None,
    "true": True,
    "int": 7,
    "big int": 10**40,
    "float": 0.1,
    "infinity": float("inf"),
    "text": "ü\n\u2028\0",
    "empty list": [],
    "empty dict": {},
    "nested": {"loss": [1.5, {"x": [None, False]}], "": ""},
}

PICKLED = {
    "tuple": (1, 2),
    "tuple in a list": [1, (2, 3)],
    "tuple in a dict": {"a": {"b": ()}},
    "int keys": {1: "a"},
    "mixed keys": {"1": "a", 1: "b"},
    "null key": {None: 1},
    "numpy text key": {numpy.str_("a"): 1},
    "set": {1, 2},
    "bytes": b"\xff",
    "complex": 1j,
    "named tuple": Point(1, 2),
    "enum": Color.RED,
    "enum in a list": [Color.RED],
    "numpy float": numpy.float64(0.5),
    "numpy float in a list": [numpy.float64(0.5)],
    "numpy int in a dict": {"a": numpy.int64(3)},
    "ordered dict in a list": [collections.OrderedDict(a=1)],
    "default dict": {"a": collections.defaultdict(int, b=1)},
    "huge int": 10**5000,
}


def type_tree(value: Any) -> Any:
    """Return the types of a value and of all its parts."""
    if isinstance(value, dict):
        return type(value), [(type_tree(key), type_tree(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [type_tree(item) for item in value]
    return type(value)


@pytest.mark.parametrize("value", JSON.values(), ids=JSON.keys())
def test_json_values_are_stored_as_json(tmp_path: Path, value: Any) -> None:
    values.save(tmp_path / "r.rank-0", value)
    assert names(tmp_path) == ["r.rank-0.json"]
    loaded = values.load(tmp_path / "r.rank-0")
    assert loaded == value and type_tree(loaded) == type_tree(value)


@pytest.mark.parametrize("value", PICKLED.values(), ids=PICKLED.keys())
def test_values_that_json_would_change_are_pickled(tmp_path: Path, value: Any) -> None:
    values.save(tmp_path / "r.rank-0", value)
    assert names(tmp_path) == ["r.rank-0.pkl"]
    loaded = values.load(tmp_path / "r.rank-0")
    assert loaded == value and type_tree(loaded) == type_tree(value)


def test_not_a_number_is_restored(tmp_path: Path) -> None:
    for name, value in (("a", float("nan")), ("b", [float("nan")])):
        values.save(tmp_path / name, value)
        loaded = values.load(tmp_path / name)
        loaded = loaded[0] if isinstance(loaded, list) else loaded
        assert type(loaded) is float and loaded != loaded


def test_arrays_are_restored(tmp_path: Path) -> None:
    array = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    values.save(tmp_path / "a", {"weights": array, "many": [array, array]})
    loaded = values.load(tmp_path / "a")
    assert loaded["weights"].dtype == numpy.float32
    assert numpy.array_equal(loaded["weights"], array) and numpy.array_equal(loaded["many"][1], array)


def test_tensors_are_restored(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    values.save(tmp_path / "a", (torch.ones(2, 3), [torch.tensor(1.5)]))
    ones, (scalar,) = values.load(tmp_path / "a")
    assert torch.equal(ones, torch.ones(2, 3)) and scalar.item() == 1.5


def test_lists_that_are_too_deep_for_json_are_an_error(tmp_path: Path) -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ConfigError, match="the return value cannot be pickled"):
        values.save(tmp_path / "a", value)
    assert names(tmp_path) == []


def test_functions_and_classes_of_a_notebook_are_pickled_by_value(tmp_path: Path) -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec("factor = 3\nclass Net:\n    size = 2\ndef train(x):\n    return x * factor * Net.size", scope)
    values.save_call(tmp_path / "function.pkl", scope["train"], (7,))
    function, args = values.load_call(tmp_path / "function.pkl")
    assert function is not scope["train"] and function(*args) == 42


def test_a_function_is_imported_with_the_path_of_the_submitting_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_mine.py").write_text("def train():\n    return 7\n")
    with monkeypatch.context() as submitting:
        submitting.syspath_prepend(str(tmp_path))
        values.save_call(tmp_path / "f", importlib.import_module("of_mine").train, ())
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("of_mine")
    function, _ = values.load_call(tmp_path / "f")
    assert function() == 7
    sys.modules.pop("of_mine")


def unpicklable() -> Any:
    return threading.Lock()


def test_the_error_of_an_unpicklable_function_has_a_remedy(tmp_path: Path) -> None:
    lock = unpicklable()
    with pytest.raises(ConfigError) as caught:
        values.save_call(tmp_path / "f", lambda: lock, ())
    assert "the function or its arguments cannot be pickled (TypeError: cannot pickle" in str(caught.value)
    assert str(caught.value).endswith("open files, locks and connections inside the function")
    assert names(tmp_path) == []


def test_the_error_of_an_unpicklable_return_value_has_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^the return value cannot be pickled \(TypeError: .*; return plain values"):
        values.save(tmp_path / "r", [unpicklable()])
    assert names(tmp_path) == []


def test_a_missing_value_is_a_key_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        values.load(tmp_path / "r")
    values.save(tmp_path / "r.rank-00001", None)
    with pytest.raises(KeyError):
        values.load(tmp_path / "r.rank-0000")


def test_stored_values_are_private_and_complete(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        values.save(tmp_path / "a", (1,))
        values.save(tmp_path / "b", 1)
    finally:
        os.umask(before)
    assert names(tmp_path) == ["a.pkl", "b.json"]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def chmod(path: Path, mode: int) -> Callable[[Path], None]:
    return lambda root: (root / path).chmod(mode)


LOOSE = {
    "file writable by the group": chmod(Path("f.pkl"), 0o660),
    "file writable by all": chmod(Path("f.pkl"), 0o602),
    "directory writable by the group": chmod(Path("."), 0o770),
    "directory writable by all": chmod(Path("."), 0o1777),
}


class Trap:
    """An object that records its unpickling."""

    def __reduce__(self) -> Any:
        return sys.exit, ("unpickled",)


@pytest.mark.parametrize("loosen", LOOSE.values(), ids=LOOSE.keys())
def test_a_pickle_in_a_file_writable_by_others_is_not_loaded(tmp_path: Path, loosen: Callable[[Path], None]) -> None:
    values.save_pickle(tmp_path / "f.pkl", Trap())
    loosen(tmp_path)
    with pytest.raises(
        StoreError, match="other users can write to it, so its pickle is not loaded; use chown or chmod go-w"
    ):
        values.load_pickle(tmp_path / "f.pkl")


def test_a_pickle_of_another_user_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values.save_pickle(tmp_path / "f.pkl", Trap())
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(StoreError, match=r"f\.pkl: other users can write to it"):
        values.load_pickle(tmp_path / "f.pkl")


def test_a_file_readable_by_others_is_loaded(tmp_path: Path) -> None:
    values.save_pickle(tmp_path / "f.pkl", (1, 2))
    (tmp_path / "f.pkl").chmod(0o644)
    tmp_path.chmod(0o755)
    assert values.load_pickle(tmp_path / "f.pkl") == (1, 2)


def test_json_is_json_for_other_programs(tmp_path: Path) -> None:
    values.save(tmp_path / "a", {"accuracy": 0.97})
    assert json.loads((tmp_path / "a.json").read_text()) == {"accuracy": 0.97}
