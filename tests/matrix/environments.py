"""The environments of the matrix: roots of Debian releases, interpreters of this machine, the oldest PyTorch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]

_LINKS = ("--find-links", "/wheels")

Pieces = Mapping[str, Sequence[str]]
"""A command: its name, and pytest's arguments; without arguments it is `make demo`."""

DEBIAN_PIECES: Pieces = {
    "SLURM": ("tests/slurm",),
    "contracts": ("tests/e2e/test_contract.py", "tests/filesystems/test_contract.py", "tests/backends"),
    "demo": (),
}
_EACH_CHANGE = "not nightly and not weekly"
PYTHON_PIECES: Pieces = {"without SLURM": ("tests", "-m", f"not slurm and {_EACH_CHANGE}")}
TORCH_PIECES: Pieces = {
    "worker, store, plug-in": (
        "tests/test_worker.py",
        "tests/storage",
        "tests/pytorch",
        "tests/e2e",
        "-m",
        _EACH_CHANGE,
    )
}


@dataclass(frozen=True)
class Versions:
    """The versions in an environment; empty for parts that it does not have."""

    python: str
    torch: str
    slurm: str = ""


class Debian:
    """A root of a Debian release with its SLURM and its Python; see build.sh and enter.sh."""

    pieces = DEBIAN_PIECES

    def __init__(self, suite: str, directory: Path, torch: str) -> None:
        self.name, self._torch = suite, torch
        self.root = directory / suite

    def build(self) -> None:
        """Build missing parts, and copy the checkout into it. Raises CalledProcessError."""
        subprocess.run([HERE / "build.sh", self.name, self.root], check=True)
        _copy_checkout(self.root / "src")
        # A wheel of PyTorch has half a gigabyte, and its requirements may have four more. They are kept beside the
        # roots.
        if not (self.root / "venv/.ready").exists():
            self.run("python3", "-m", "venv", "/venv")
            self.run("/venv/bin/python", "-m", "pip", "download", "--dest", "/wheels", *_LINKS, self._torch)
        links = " ".join(filter(None, ("/wheels", os.environ.get("PIP_FIND_LINKS"))))
        self.run("env", f"PIP_FIND_LINKS={links}", "make", "VENV=/venv", f"TORCH={self._torch}", "/venv/.ready")

    def run(self, *command: str) -> None:
        subprocess.run([HERE / "enter.sh", self.root, *command], check=True)

    def say(self, *command: str) -> str:
        """Return the first line of the output of a command there."""
        return _first_line([str(HERE / "enter.sh"), str(self.root), *command])

    def versions(self) -> Versions:
        return Versions(
            _word(self.say("/venv/bin/python", "--version")),
            self.say("/venv/bin/python", "-c", "import torch; print(torch.__version__)"),
            _word(self.say("slurmctld", "-V")),
        )

    def pytest(self, *arguments: str) -> list[str]:
        return [str(HERE / "enter.sh"), str(self.root), "/venv/bin/python", "-m", "pytest", *arguments]

    def demo(self) -> list[str]:
        return [str(HERE / "enter.sh"), str(self.root), "/venv/bin/python", "examples/demo.py"]

    def path(self, name: str) -> tuple[str, Path]:
        """Return a file for a report: its path there, and here."""
        return f"/var/tmp/{name}", self.root / "var/tmp" / name


class Local:
    """A virtual environment on this machine, with an interpreter such as `python3.10` or a PyTorch such as
    `torch2.10`."""

    def __init__(self, name: str, directory: Path, torch: str) -> None:
        self.name = name
        self._directory = directory / name
        oldest = name.startswith("torch")
        self._interpreter = sys.executable if oldest else name
        self._torch = f"torch=={name.removeprefix('torch')}.*" if oldest else torch
        self.pieces = TORCH_PIECES if oldest else PYTHON_PIECES

    @property
    def _python(self) -> str:
        return str(self._directory / "venv/bin/python")

    def build(self) -> None:
        """Build missing parts. Raises CalledProcessError."""
        mark = self._directory / ".built"
        if mark.exists():
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        subprocess.run([self._interpreter, "-m", "venv", "--clear", self._directory / "venv"], check=True)
        install = [self._python, "-m", "pip", "install", "--quiet", self._torch, "--editable", f"{CHECKOUT}[dev]"]
        subprocess.run(install, check=True)
        mark.touch()

    def versions(self) -> Versions:
        output = _first_line([self._python, "-c", "import torch; print(torch.__version__)"])
        return Versions(_word(_first_line([self._python, "--version"])), output)

    def pytest(self, *arguments: str) -> list[str]:
        return [self._python, "-m", "pytest", *arguments]

    def demo(self) -> list[str]:
        return [self._python, "examples/demo.py"]

    def path(self, name: str) -> tuple[str, Path]:
        path = self._directory / name
        return str(path), path


Environment = Debian | Local


def environment(name: str, directory: Path, torch: str) -> Environment:
    """Return the environment for ``bookworm``, ``trixie``, ``sid``; ``python3.10``; ``torch2.10``."""
    if name.startswith(("python", "torch")):
        return Local(name, directory, torch)
    return Debian(name, directory, torch)


def _copy_checkout(to: Path) -> None:
    """Copy the files that git tracks and new files, in their present state. Files of an earlier copy are removed."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (CHECKOUT / name).is_file():  # a file that is deleted and not yet committed is listed too
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, to / name)


def _first_line(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.partition("\n")[0]


def _word(output: str) -> str:
    """Return the version in ``Python 3.13.5`` or ``slurm-wlm 24.11.5``."""
    return output.split()[-1]
