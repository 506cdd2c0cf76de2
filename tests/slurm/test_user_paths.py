"""Three new users type what the pages say, in order, with a wheel in a directory of their own, without a checkout.

A student with a script for torchrun, an administrator, and an engineer with Lightning and FSDP.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.cli.shell import MARK, Shell, shell_in
from tests.cluster import SlurmCluster
from tests.docs.code_blocks import ROOT, blocks_of
from tests.wheel import build_wheel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

_TIMEOUT = 600.0
FreshCluster = Callable[..., SlurmCluster]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell of a user. Its virtual environment is removed: with a PyTorch for GPUs it has more than 4 GB."""
    with shell_in(tmp_path) as made:
        yield made
    for mark in [*tmp_path.glob("**/pyvenv.cfg")]:
        shutil.rmtree(mark.parent)


def script(page: str, sections: tuple[str, ...] = ()) -> str:
    """Return a script with the blocks of a page, or of some sections: the commands, and files with their names."""
    path, lines = ROOT / page, list[str]()
    titles = {number: line[3:] for number, line in enumerate(path.read_text().splitlines(), 1) if line[:3] == "## "}
    for block in blocks_of(path):
        section = next((titles[number] for number in sorted(titles, reverse=True) if number < block.line), "")
        if block.reason or (sections and section not in sections):
            continue
        if block.title:
            lines.append(f"cat > {shlex.quote(block.title)} <<'end of file'\n{block.text}end of file")
        elif block.language == "sh":
            lines.append(block.text)
    assert lines, f"{page}: no such section: {sections}"
    return "\n".join(lines)


def types(shell: Shell, cluster: SlurmCluster | None, wheel: Path, *parts: str) -> str:
    """Type the parts in one shell, in which each command must succeed, and return what it prints."""
    home, scratch = shell.directory, shell.directory / "scratch"
    scratch.mkdir()
    environ = {**(cluster.env if cluster else shell.environ), MARK: shell.mark, "HOME": str(home)}
    ours = str(Path(sys.executable).parent)
    environ["PATH"] = os.pathsep.join(each for each in environ["PATH"].split(os.pathsep) if each != ours)
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        environ.pop(name, None)
    (home / "constraints").write_text(f"torch=={version('torch').partition('+')[0]}\n")  # not another build of torch
    environ |= {"HPCELASTIC": str(wheel), "CHECKOUT": str(ROOT), "SCRATCH": str(scratch)}
    if cluster:  # its nodes share the processors of this machine
        environ["OMP_NUM_THREADS"] = "1"
    environ["PIP_CONSTRAINT"] = str(home / "constraints")
    text = "set -xeo pipefail\n" + "\n".join(parts)
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=home,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, f"ended with {done.returncode}:\n{output}"
    return output


def test_a_student_on_a_laptop(shell: Shell, wheel: Path) -> None:
    output = types(shell, None, wheel, script("docs/tutorials/laptop.md"))
    assert re.search(r"^\[[23]\.0\] step \d+: loss", output, re.MULTILINE), output
    # The status shows the failure in round 2. In round 3 it refers to it: round 2 began without the new process then.
    assert "rank 1 on " in output or "last fault round 1" in output, output
    assert "rank 1 failed on node1: killed by SIGKILL" in output, output
    assert re.search(r"^\[\d+\.0\] done$", output, re.MULTILINE)


def test_a_student_on_a_cluster(shell: Shell, wheel: Path, fresh_cluster: FreshCluster) -> None:
    cluster = fresh_cluster(nodes=2)
    sections = ("Install", "Check the filesystem", "Submit", "Your own script")
    first = script("README.md", ("The first job",))
    parts = script("docs/tutorials/first_job.md", sections), "mkdir first", "cd first", first
    output = types(shell, cluster, wheel, *parts)
    assert "SAFE" in output and "The nodes are fit" in output
    assert re.search(r"^\[1\.0\] step 200: loss", output, re.MULTILINE)
    assert re.search(r"^\[1\.0\] done$", output, re.MULTILINE)
    cluster.wait_idle()


def test_the_elastic_script(shell: Shell, wheel: Path) -> None:
    install = script("docs/tutorials/laptop.md", ("Install",))
    output = types(shell, None, wheel, install, script("docs/tutorials/elastic_script.md"))
    assert len(re.findall(r"step 500: loss 0\.\d+, 2 ranks", output)) == 2, output


def test_an_administrator(shell: Shell, wheel: Path, fresh_cluster: FreshCluster) -> None:
    cluster = fresh_cluster(nodes=2)
    install = script("docs/tutorials/first_job.md", ("Install",))
    output = types(shell, cluster, wheel, install, script("docs/administrators.md"))
    assert "SAFE" in output and "The nodes are fit" in output
    assert "train has succeeded" in output
    assert "drwx------" in output
    assert len(re.findall(r"^\S+: none$", output, re.MULTILINE)) == 2, "a process is left on a node"
    cluster.wait_idle()


def test_an_engineer_with_lightning_and_fsdp(shell: Shell, wheel: Path, fresh_cluster: FreshCluster) -> None:
    cluster = fresh_cluster(nodes=2)
    install = script("docs/tutorials/first_job.md", ("Install",))
    output = types(shell, cluster, wheel, install, script("docs/how_to/lightning_fsdp.md"))
    assert "epoch 10: step 640, 2 ranks" in output
    assert "submitted fsdp" in output
    cluster.wait_idle()


def test_the_installation(shell: Shell, wheel: Path) -> None:
    (shell.directory / ".local/share/bash-completion/completions").mkdir(parents=True)
    output = types(
        shell, None, wheel, "python3 -m venv .venv", ". .venv/bin/activate", script("docs/how_to/install.md")
    )
    assert "hpcelastic - elastic, fault-tolerant PyTorch training" in re.sub(r"\s+", " ", output)
    completion = shell.directory / ".local/share/bash-completion/completions/hpcelastic"
    assert "--dry-run" in completion.read_text()
