"""A command that is started without standard streams works, as do the workers of an agent."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell, shell_in

CLOSE = ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")

SCRIPT = """
import os
print("to nobody")
streams = [os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1, 2)]
with open("streams", "w") as file:
    print(*streams, file=file)
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Commands start with closed standard streams."""
    with shell_in(tmp_path, CLOSE) as made:
        yield made


def test_an_agent_and_its_workers_have_streams(shell: Shell) -> None:
    shell.write({"train.py": SCRIPT})
    done = shell.hpcelastic(
        "agent", "--standalone", "--nproc-per-node=1", "--preload=", "--no-health-check", "train.py"
    )
    assert done.returncode == 0
    assert (shell.directory / "streams").read_text() == "/dev/null /dev/null /dev/null\n"


@pytest.mark.parametrize(("command", "status"), [("completion bash", 0), ("nonsense", 2)])
def test_other_commands_print_nothing(command: str, status: int, shell: Shell) -> None:
    assert shell.hpcelastic(*command.split()).returncode == status
