"""The processes that the kernel has killed because of a lack of memory, by files as the kernel shows them."""

import time
from pathlib import Path

import pytest

from hpcelastic.health.host_memory import LackOfMemory

PID, GIB = 4711, 2**30


class Machine:
    """The files of a memory cgroup, in the version ``version``, and the kernel's log."""

    def __init__(self, root: Path, version: int, path: str = "/job_7/step_0") -> None:
        self.root, self.version, self.records = root / "cgroup", version, list[str]()
        self.mount = self.root / "memory" if version == 1 else self.root
        self.directory = self.mount / path.lstrip("/")
        self.directory.mkdir(parents=True)
        self.memberships = root / "memberships"
        other = "1:cpu:/elsewhere\n0::/\n"
        self.memberships.write_text(f"4:memory:{path}\n{other}" if version == 1 else f"0::{path}\n")
        self.killed(0)

    def killed(self, count: int) -> None:
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        (self.directory / name).write_text(f"oom_kill_disable 0\noom_kill {count}\n")

    def limit(self, directory: Path, text: str) -> None:
        (directory / ("memory.limit_in_bytes" if self.version == 1 else "memory.max")).write_text(f"{text}\n")

    def log(self, pid: int, name: str, kib: int, age: float = 0.0) -> None:
        stamp = int((time.monotonic() - age) * 1e6)
        killed = f"Memory cgroup out of memory: Killed process {pid} ({name}) total-vm:99999999kB, anon-rss:{kib}kB, "
        self.records.append(f"3,1,{stamp},-;{killed}file-rss:1kB, shmem-rss:0kB, UID:0")

    def watch(self, *, knows_pids: bool = True) -> LackOfMemory:
        return LackOfMemory(self.root, self.memberships, lambda: self.records, knows_pids)


@pytest.fixture(params=[1, 2], ids=["cgroup v1", "cgroup v2"])
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Machine:
    return Machine(tmp_path, request.param)


def test_a_victim_is_named_with_its_size_and_the_limit_of_the_job(machine: Machine) -> None:
    machine.limit(machine.directory.parent, str(16 * GIB))
    watch = machine.watch()
    machine.killed(1)
    machine.log(PID, "python", 12 * GIB >> 10)
    expected = " by the kernel, because of a lack of memory: the limit of the job is 16.0 GiB; it used 12.0 GiB"
    assert watch.describe(PID, -9) == expected


def test_the_smallest_limit_counts(machine: Machine) -> None:
    machine.limit(machine.directory, str(300 << 20))
    machine.limit(machine.directory.parent, str(16 * GIB))
    watch = machine.watch()
    machine.killed(1)
    assert "the limit of the job is 300 MiB" in watch.describe(PID, -9)


@pytest.mark.parametrize("text", ["max", "9223372036854771712"])
def test_a_limit_that_is_not_set_means_that_the_node_has_no_memory(machine: Machine, text: str) -> None:
    machine.limit(machine.directory, text)
    watch = machine.watch()
    machine.killed(1)
    assert watch.describe(PID, -9) == " by the kernel, because of a lack of memory: the node has no memory left"


def test_in_a_container_the_log_has_other_numbers(machine: Machine) -> None:
    machine.limit(machine.directory, str(2 * GIB))
    watch = machine.watch(knows_pids=False)
    machine.killed(1)
    machine.log(99, "python", GIB >> 10)
    said = " by the kernel, because of a lack of memory: the limit of the job is 2.0 GiB"
    assert watch.describe(PID, -9) == f"{said}; it used 1.0 GiB"
    assert watch.describe(PID, 1).startswith("; the kernel has killed another process of the job (python) because")
    machine.log(98, "python", GIB >> 10)
    assert watch.describe(PID, -9) == said, "which of the two is not known"


def test_another_victim_of_the_job_is_named(machine: Machine) -> None:
    watch = machine.watch()
    machine.killed(1)
    machine.log(99, "pt_data_worker", 4000)
    for exit_code in (1, -9):
        found = watch.describe(PID, exit_code)
        assert found.startswith("; the kernel has killed another process of the job (pt_data_worker) because of a lack")


def test_victims_of_the_time_before_do_not_count(machine: Machine) -> None:
    machine.killed(3)
    machine.log(PID, "python", 4000, age=60.0)
    watch = machine.watch()
    assert watch.describe(PID, -9) == ""
    machine.killed(4)
    assert "another" not in watch.describe(PID, -9), "the log has no record of the new victim"
    watch.begin()
    assert watch.describe(PID, -9) == ""


def test_in_a_container_the_own_cgroup_is_the_mounted_one(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2, "/")
    machine.memberships.write_text("0::/../../job_7\n")
    watch = machine.watch()
    machine.killed(1)
    assert "lack of memory" in watch.describe(PID, -9)


def test_a_machine_without_memory_cgroups_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "memberships").write_text("1:cpu:/\n0::/\n")
    assert LackOfMemory(tmp_path, tmp_path / "memberships", list).describe(PID, -9) == ""
    assert LackOfMemory(tmp_path, tmp_path / "missing", list).describe(PID, -9) == ""
