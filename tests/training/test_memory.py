"""Memory that processes share, and the memory that a process may still use, from files like those of the kernel."""

import os
from pathlib import Path

import pytest

from hpcelastic.training.memory import allocate_shared, available_memory, has_fixed_size, mapped

MIB = 2**20


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "free", "where"),
    [
        pytest.param({}, 4000, "this machine", id="no cgroup"),
        pytest.param({"proc/self/cgroup": "0::/job/step\n"}, 4000, "this machine", id="no limit is shown"),
        pytest.param(
            {
                "proc/self/cgroup": "0::/job/step\n",
                "cgroup/job/step/memory.max": "max\n",
                "cgroup/job/step/memory.current": f"{100 * MIB}\n",
                "cgroup/job/memory.max": f"{1000 * MIB}\n",
                "cgroup/job/memory.current": f"{300 * MIB}\n",
                "cgroup/job/memory.stat": f"anon 5\ninactive_file {50 * MIB}\n",
            },
            750,
            "cgroup/job",
            id="a limit above the process",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "5:cpu:/x\n4:memory:/slurm/job\n",
                "cgroup/memory/slurm/job/memory.limit_in_bytes": f"{500 * MIB}\n",
                "cgroup/memory/slurm/job/memory.usage_in_bytes": f"{600 * MIB}\n",
                "cgroup/memory/slurm/memory.limit_in_bytes": f"{2**63 - 4096}\n",
                "cgroup/memory/slurm/memory.usage_in_bytes": f"{600 * MIB}\n",
            },
            0,
            "cgroup/memory/slurm/job",
            id="version 1",
        ),
    ],
)
def test_the_smallest_amount_counts(tmp_path: Path, files: dict[str, str], free: int, where: str) -> None:
    write(tmp_path, {"proc/meminfo": f"MemTotal: 9 kB\nMemAvailable:  {4000 * 1024} kB\n", **files})
    found = available_memory(tmp_path / "proc", tmp_path / "cgroup")
    assert found is not None
    assert (found.bytes, found.where.endswith(where)) == (free * MIB, True)


class Interrupted(BaseException):
    """The round has ended."""


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Interrupted()], ids=repr)
def test_memory_that_is_not_returned_is_released(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fails(*args: object) -> None:
        raise error

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "posix_fallocate", fails)
    with pytest.raises((OSError, Interrupted)):
        allocate_shared(MIB)
    assert os.listdir("/proc/self/fd") == before


def test_nothing_is_known_without_the_files(tmp_path: Path) -> None:
    assert available_memory(tmp_path, tmp_path) is None


def test_this_machine_has_memory() -> None:
    found = available_memory()
    assert found is not None and found.bytes > MIB


def test_the_size_of_shared_memory_never_changes() -> None:
    fd = allocate_shared(MIB)
    assert has_fixed_size(fd, MIB)
    assert not has_fixed_size(fd, MIB + 1)
    for size in (0, MIB - 1, MIB + 1):
        with pytest.raises(PermissionError):
            os.truncate(fd, size)
    with mapped(fd) as memory:
        assert bytes(memory) == bytes(MIB)
        memory[5:8] = b"abc"
    assert os.pread(fd, 4, 4) == b"\0abc"
    os.close(fd)


def test_only_sealed_memory_has_a_fixed_size(tmp_path: Path) -> None:
    unsealed, file = os.memfd_create("test"), os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    for fd in (unsealed, file):
        os.truncate(fd, MIB)
        assert not has_fixed_size(fd, MIB)
        os.close(fd)
