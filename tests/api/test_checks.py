from pathlib import Path

import pytest

from hpcelastic.agent.settings import Entrypoint
from hpcelastic.api.checks import check_entrypoint, check_job
from hpcelastic.config import JobConfig
from hpcelastic.errors import ConfigError

FILES = {
    "train.py": b"def main(): pass\nclass Task: pass\nvalue = print\nfrom os import path as where\n",
    "star.py": b"try:\n    from os import *\nexcept ImportError:\n    pass\n",
    "lazy.py": b"def __getattr__(name): return print\n",
    "latin.py": b"# -*- coding: latin-1 -*-\nname = '\xe4'\n",
    "syntax.py": b"x = 1\ndef broken(:\n",
    "encoding.py": b"name = '\xe4'\n",
    "null.py": b"\0",
    "pack/__init__.py": b"",
    "pack/job.py": b"def run(): pass\n",
    "runs/__init__.py": b"",
    "runs/__main__.py": b"",
    "lacks/__init__.py": b"import no_such_dependency\n",
    "lacks/job.py": b"",
    "raises/__init__.py": b"1 / 0\n",
    "raises/job.py": b"",
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return tmp_path


GOOD = [
    Entrypoint(script="train.py"),
    Entrypoint(script="latin.py"),
    Entrypoint(module="train"),
    Entrypoint(module="json.tool"),
    Entrypoint(function="train:main"),
    Entrypoint(function="train:Task"),
    Entrypoint(function="train:value"),
    Entrypoint(function="train:where"),
    Entrypoint(function="star:getcwd"),
    Entrypoint(function="lazy:anything"),
    Entrypoint(function="math:sqrt"),
    Entrypoint(module="pack.job"),
    Entrypoint(function="pack.job:run"),
    Entrypoint(module="runs"),
]


def name_of(entrypoint: Entrypoint) -> str:
    return str(entrypoint.script or entrypoint.module or entrypoint.function)


def refusal(entrypoint: Entrypoint, directory: Path) -> str | None:
    """Return why the entrypoint is refused; None if it is not."""
    try:
        check_entrypoint(entrypoint, directory)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("entrypoint", GOOD, ids=name_of)
def test_valid_entrypoints(entrypoint: Entrypoint, directory: Path) -> None:
    assert refusal(entrypoint, directory) is None


BAD = [
    (Entrypoint(script="nowhere.py"), r"nowhere\.py: cannot be read: No such file"),
    (Entrypoint(script="syntax.py"), r"syntax\.py:2: invalid syntax; correct the file"),
    (Entrypoint(script="encoding.py"), r"encoding\.py:1: .*can't decode byte 0xe4"),
    (Entrypoint(script="null.py"), r"null\.py: .*null bytes"),
    (Entrypoint(module="nowhere"), "entrypoint.module: there is no module 'nowhere'"),
    (Entrypoint(module="syntax"), r"syntax\.py:2: invalid syntax"),
    (Entrypoint(module="json"), r"there is no module 'json\.__main__'"),
    (Entrypoint(module="json.nowhere.at_all"), r"there is no module 'json\.nowhere\.at_all'"),
    (Entrypoint(function="nowhere:main"), "entrypoint.function: there is no module 'nowhere'"),
    (Entrypoint(function="train:mian"), r"train\.py defines no 'mian'; did you mean train:main\?"),
    (Entrypoint(function="train:Task.run"), r"train\.py defines no 'Task\.run'"),
]


@pytest.mark.parametrize(("entrypoint", "message"), BAD, ids=[name_of(entrypoint) for entrypoint, _ in BAD])
def test_invalid_entrypoints(entrypoint: Entrypoint, message: str, directory: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        check_entrypoint(entrypoint, directory)


@pytest.mark.parametrize(
    ("package", "message"),
    [
        pytest.param("lacks", r"cannot be imported \(ModuleNotFoundError: .*no_such_dependency", id="lacks-dependency"),
        pytest.param("raises", r"cannot be imported \(ZeroDivisionError", id="raises"),
    ],
)
def test_package_that_cannot_be_imported(package: str, message: str, directory: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        check_entrypoint(Entrypoint(module=f"{package}.job"), directory)


@pytest.mark.parametrize(
    ("exporter", "message"),
    [
        ("train:mein", "exporters is 'train:mein', but {}/train.py defines no 'mein'; did you mean train:main?"),
        ("trian:main", "exporters: there is no module 'trian' in"),
    ],
)
def test_an_exporter_that_cannot_be_loaded_is_refused(exporter: str, message: str, directory: Path) -> None:
    entrypoint = Entrypoint(script="train.py")
    check_job(JobConfig(entrypoint=entrypoint, exporters=("train:main",)), directory)
    with pytest.raises(ConfigError) as error:
        check_job(JobConfig(entrypoint=entrypoint, exporters=(exporter,)), directory)
    assert str(error.value).startswith(message.format(directory))
