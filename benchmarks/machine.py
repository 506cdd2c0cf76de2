"""A description of the machine that runs a benchmark, and of its software."""

import os
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_IDLE_INTERVAL, _IDLE_TIMEOUT = 5, 3600
"""Seconds of a measurement of the load, and seconds for which a benchmark waits for an idle machine."""

_IDLE_SHARE = 0.05

CHECKOUT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Machine:
    """The machine and the software of a measurement."""

    cpu: str
    cores: int
    memory: int
    """Bytes."""

    system: str
    filesystem: str
    """Type of the filesystem of the runs' directories."""

    gpu: str
    python: str
    torch: str
    commit: str
    date: str
    load: float
    """Load average of the minute before the measurement, caused by other programs."""


def this_machine() -> Machine:
    return Machine(
        cpu=_first(r"model name\s*: (.*)", "/proc/cpuinfo") or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory=int(_first(r"MemTotal:\s*(\d+)", "/proc/meminfo") or 0) * 1024,
        system=f"Linux {platform.release()}",
        filesystem=_filesystem(Path(tempfile.gettempdir())),
        gpu=_first(r"Model:\s*(.*)", *map(str, Path("/proc/driver/nvidia/gpus").glob("*/information"))) or "none",
        python=platform.python_version(),
        torch=installed("torch") or "none",
        commit=_commit(),
        date=datetime.now(timezone.utc).date().isoformat(),
        load=round(os.getloadavg()[0], 2),
    )


def described(machine: Machine) -> str:
    """Return a description of the machine in one sentence."""
    return (
        f"{machine.date}, commit {machine.commit}: {machine.cores} cores of {machine.cpu}, "
        f"{machine.memory / 2**30:.0f} GiB, GPU: {machine.gpu}, {machine.system}, {machine.filesystem}, "
        f"Python {machine.python}, torch {machine.torch}; load average at the start {machine.load:g}."
    )


def document(machine: Machine) -> dict[str, object]:
    return asdict(machine)


def installed(package: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _first(pattern: str, *paths: str) -> str:
    for path in paths:
        try:
            if found := re.search(pattern, Path(path).read_text()):
                return found[1].strip()
        except OSError:
            continue
    return ""


def _filesystem(path: Path) -> str:
    """Return the type of the filesystem of ``path``: that of the longest mount point above it."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    holding = [(len(line[1]), line[2]) for line in lines if path.resolve().is_relative_to(line[1])]
    return max(holding, default=(0, "unknown"))[1]


def await_idle(say: Callable[[str], None]) -> None:
    """Wait until other programs use less than a twentieth of the processors. Raises RuntimeError after an hour."""
    for waited in range(0, _IDLE_TIMEOUT, _IDLE_INTERVAL):
        busy_before, total_before = processor_times()
        time.sleep(_IDLE_INTERVAL)
        busy, total = processor_times()
        share = (busy - busy_before) / (total - total_before)
        if share < _IDLE_SHARE:
            return
        say(f"waiting for an idle machine, {waited + _IDLE_INTERVAL} s: processors are used to {share:.0%}")
    raise RuntimeError(f"the machine was not idle for {_IDLE_TIMEOUT} s; end the other programs, or use --quick")


def changed_files() -> list[str]:
    """Return the tracked files that differ from the commit that results would name, without results themselves."""
    return _git("diff", "--name-only", "HEAD", "--", ".", ":!docs").splitlines()


def processor_times() -> tuple[float, float]:
    """Return the seconds that the processors of this machine were busy, all together, and all seconds since its start.

    Source: proc_stat(5).
    """
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    per_second, idle = os.sysconf("SC_CLK_TCK"), ticks[3] + ticks[4]
    return (sum(ticks) - idle) / per_second, sum(ticks) / per_second


def _git(*arguments: str) -> str:
    """Return the output of git; an empty text if there is no git, or no repository."""
    try:
        return subprocess.run(["git", "-C", str(CHECKOUT), *arguments], capture_output=True, text=True).stdout
    except OSError:
        return ""


def _commit() -> str:
    return _git("rev-parse", "--short", "HEAD").strip() + ("-dirty" if changed_files() else "") or "unknown"
