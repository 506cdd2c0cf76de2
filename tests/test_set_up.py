"""The first command in a fresh checkout makes the virtual environment with an available tool, or reports a missing
one."""

import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[1] / "Makefile"
TOOLS = ("sh", "bash", "make", "touch", "mkdir", "cp", "cat", "dirname")

PYTHON = """\
#!/bin/sh
echo "python $*" >>"$CALLS"
case "$*" in
*ensurepip*) exit $NO_VENV;;
*version_info*) exit $OLD;;
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python";;
esac
"""
MAKES_ENVIRONMENT = """\
#!/bin/sh
echo "{name} $*" >>"$CALLS"
for directory; do :; done
mkdir -p "$directory/bin" && cp "$PROGRAMS/python3" "$directory/bin/python"
"""


class Machine:
    """A machine with few programs: a Python that only records its calls, and programs of the test."""

    def __init__(self, root: Path) -> None:
        self.root, self.bin, self.calls = root, root / "bin", root / "calls"
        self.bin.mkdir()
        for tool in TOOLS:
            path = shutil.which(tool)
            assert path is not None
            (self.bin / tool).symlink_to(path)
        shutil.copy(MAKEFILE, root)
        (root / "pyproject.toml").touch()

    def add(self, name: str, script: str) -> None:
        (self.bin / name).write_text(script.format(name=name) if name != "python3" else script)
        (self.bin / name).chmod(0o755)

    def sets_up(self, no_venv: bool = False, old: bool = False) -> "subprocess.CompletedProcess[str]":
        told = {"CALLS": str(self.calls), "PROGRAMS": str(self.bin), "NO_VENV": str(int(no_venv)), "OLD": str(int(old))}
        environ = {"PATH": str(self.bin), "HOME": str(self.root), **told}
        command = [str(self.bin / "make"), "--silent", ".venv/.ready"]
        return subprocess.run(command, cwd=self.root, env=environ, capture_output=True, text=True)

    @property
    def made_by(self) -> str:
        """Return the command that has made the environment and in which pip was called then."""
        calls = self.calls.read_text().splitlines()
        assert calls[-1].startswith("python -m pip install ")
        return calls[-2].replace(str(self.bin), "BIN")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.add("python3", PYTHON)
    return made


def output(done: "subprocess.CompletedProcess[str]") -> list[str]:
    """Return the printed lines without those of make itself."""
    return [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("make: ")]


@pytest.mark.parametrize(
    ("programs", "no_venv", "made_by"),
    [
        pytest.param((), False, "python -m venv .venv", id="venv"),
        pytest.param(("uv", "virtualenv"), False, "python -m venv .venv", id="venv first"),
        pytest.param(
            ("uv", "virtualenv"),
            True,
            "uv venv --quiet --allow-existing --seed --python BIN/python3 .venv",
            id="no venv, but uv",
        ),
        pytest.param(
            ("virtualenv",), True, "virtualenv --quiet --python BIN/python3 .venv", id="no venv, but virtualenv"
        ),
    ],
)
def test_an_available_tool_makes_the_environment(
    programs: tuple[str, ...], no_venv: bool, made_by: str, machine: Machine
) -> None:
    for name in programs:
        machine.add(name, MAKES_ENVIRONMENT)
    done = machine.sets_up(no_venv)
    assert (done.returncode, output(done)) == (0, [])
    assert machine.made_by == made_by
    assert (machine.root / ".venv" / ".ready").exists()


def test_without_any_tool_the_error_names_the_package(machine: Machine) -> None:
    done = machine.sets_up(no_venv=True)
    assert done.returncode != 0
    assert output(done) == ["python3 has no module venv; on Debian or Ubuntu, as root: apt-get install python3-venv"]
    assert not (machine.root / ".venv").exists()


def test_without_python_there_is_an_error(machine: Machine) -> None:
    (machine.bin / "python3").unlink()
    done = machine.sets_up()
    assert done.returncode != 0
    assert output(done) == ["python3: not found; install Python 3.10 or newer, or make PYTHON=python3.x"]


def test_an_old_python_ends_it(machine: Machine) -> None:
    assert machine.sets_up(old=True).returncode != 0
    assert not (machine.root / ".venv").exists()
