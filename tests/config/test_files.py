"""A job file or a script that is missing or invalid."""

from pathlib import Path

import pytest

from hpcelastic.config import from_mapping, load
from hpcelastic.errors import ConfigError


def error_of(path: str) -> str:
    with pytest.raises(ConfigError) as error:
        load(path)
    return str(error.value)


def test_a_similar_name_is_proposed_for_a_missing_file() -> None:
    Path("configs").mkdir()
    Path("configs/digits.yaml").touch()
    assert error_of("configs/digts.yaml") == "configs/digts.yaml: no such file; did you mean configs/digits.yaml?"


def test_existing_names_are_listed_for_a_missing_file() -> None:
    for name in ("b.yml", "a.yaml"):
        Path(name).touch()
    assert error_of("quite-different.txt") == "quite-different.txt: no such file; the job files there are a.yaml, b.yml"


def test_a_missing_file_in_a_directory_without_job_files(directory: Path) -> None:
    assert error_of("job.yaml") == f"job.yaml: no such file; there is no YAML file in {directory}"


def test_a_missing_directory() -> None:
    assert error_of("nowhere/job.yaml") == "nowhere/job.yaml: no such file; there is no directory nowhere"


def test_a_file_in_place_of_a_directory() -> None:
    assert error_of("train.py/job.yaml") == "train.py/job.yaml: no such file; there is no directory train.py"


def test_the_job_files_of_a_directory_are_listed() -> None:
    assert error_of(".") == ".: is a directory; write a job file, such as job.yaml"
    Path("gpu.yaml").touch()
    assert error_of(".") == ".: is a directory; write a job file in it: gpu.yaml"


def test_an_unreadable_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert (
        error_of("job.yaml") == "job.yaml: cannot be read: Permission denied; check its permissions and its filesystem"
    )


def test_a_file_in_another_encoding() -> None:
    Path("job.yaml").write_bytes("run:\n  name: caf\xe9\n".encode("latin-1"))
    assert error_of("job.yaml") == "job.yaml:2: is not UTF-8 text; save the file as UTF-8"


def test_a_byte_order_mark_is_ignored() -> None:
    Path("job.yaml").write_bytes(b"\xef\xbb\xbfentrypoint: {script: train.py}\n")
    assert load("job.yaml").config.entrypoint.script == "train.py"


def refused(script: str, directory: Path | None = None) -> str:
    with pytest.raises(ConfigError) as error:
        from_mapping({"entrypoint": {"script": script}}, directory=directory)
    return str(error.value)


def test_a_missing_script_is_reported_with_its_full_path(directory: Path) -> None:
    remedy = "a relative path starts at the working directory"
    assert refused("other/x.py") == f"entrypoint.script: there is no file {directory}/other/x.py; {remedy}"
    assert refused("trian.py") == f"entrypoint.script: there is no file {directory}/trian.py; did you mean train.py?"


def test_a_script_that_is_a_directory(directory: Path) -> None:
    Path("train").mkdir()
    remedy = "write a Python file, or use entrypoint.module for a package"
    assert refused("train") == f"entrypoint.script: {directory}/train is a directory; {remedy}"


def test_a_script_is_searched_in_the_given_directory(directory: Path) -> None:
    Path("inner").mkdir()
    assert refused("train.py", Path("inner")).startswith(
        f"entrypoint.script: there is no file {directory}/inner/train.py"
    )
