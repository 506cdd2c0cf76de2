"""Names of agents that share a machine."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from hpcelastic.agent.member import NodeIdentity, new_member
from hpcelastic.agent.node_name_lock import node_name_lock
from hpcelastic.backends.files import FileBackend
from hpcelastic.errors import ConfigError
from hpcelastic.storage.paths import RunPaths

HERE = NodeIdentity("n1", job="7")
THERE = replace(HERE, job="8")

HOLD = """
import sys
from pathlib import Path
from hpcelastic.agent.member import NodeIdentity
from hpcelastic.agent.node_name_lock import node_name_lock
from hpcelastic.backends.files import FileBackend
from hpcelastic.storage.paths import RunPaths
with node_name_lock(FileBackend(RunPaths(Path(sys.argv[1]))), NodeIdentity("n1", job="7")):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def backend(tmp_path: Path) -> FileBackend:
    paths = RunPaths(tmp_path)
    paths.leases.mkdir(parents=True)
    return FileBackend(paths)


def test_the_first_agent_has_the_nodes_name(backend: FileBackend) -> None:
    with node_name_lock(backend, HERE) as place:
        assert place == HERE


def test_a_second_job_on_the_node_has_its_own_name(backend: FileBackend) -> None:
    with (
        node_name_lock(backend, HERE),
        node_name_lock(backend, THERE) as second,
        node_name_lock(backend, replace(HERE, job="9")) as third,
    ):
        assert second == replace(THERE, name="n1.j8", host="n1")
        assert third.name == "n1.j9"


def test_an_array_element_keeps_slurms_name_of_the_node(backend: FileBackend) -> None:
    element = replace(HERE, name="n1_2", host="n1")
    with node_name_lock(backend, element), node_name_lock(backend, replace(element, job="8")) as place:
        assert (place.name, place.host) == ("n1_2.j8", "n1")


def test_a_name_is_free_when_its_agent_has_ended(backend: FileBackend) -> None:
    with node_name_lock(backend, HERE):
        pass
    with node_name_lock(backend, THERE) as place:
        assert place.name == "n1"


def test_a_name_is_free_when_its_agent_was_killed(backend: FileBackend) -> None:
    line = [sys.executable, "-c", HOLD, str(backend.root)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        with node_name_lock(backend, THERE) as place:
            assert place.name == "n1.j8"
        with (
            pytest.raises(ConfigError, match=f"as process {holder.pid} on this machine"),
            node_name_lock(backend, HERE),
        ):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with node_name_lock(backend, HERE) as place:
            assert place.name == "n1"


def test_a_requeued_job_keeps_its_name(backend: FileBackend) -> None:
    """Otherwise the run would wait for the previous incarnation, and another node would get its rank."""
    with node_name_lock(backend, HERE), node_name_lock(backend, THERE) as place:
        member = new_member(replace(place, address="10.0.0.1"), 1, ())
        backend.lease(member.node).renew(member)
    with node_name_lock(backend, replace(THERE, restart=1)) as place:
        assert place.name == "n1.j8"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(HERE, HERE, id="same job"),
        pytest.param(HERE, replace(HERE, restart=1), id="same job, requeued"),
        pytest.param(NodeIdentity("n1"), NodeIdentity("n1"), id="no job"),
        pytest.param(HERE, NodeIdentity("n1"), id="no job, and a job"),
    ],
)
def test_a_second_agent_is_refused(backend: FileBackend, first: NodeIdentity, second: NodeIdentity) -> None:
    message = f"node n1 is in this run already, as process {os.getpid()} on this machine; stop that agent"
    with node_name_lock(backend, first), pytest.raises(ConfigError, match=message), node_name_lock(backend, second):
        pass


def test_other_names_and_other_runs_do_not_conflict(backend: FileBackend, tmp_path: Path) -> None:
    others = [(backend, replace(HERE, name="n2")), (FileBackend(RunPaths(tmp_path / "other")), HERE)]
    with node_name_lock(backend, HERE), ExitStack() as stack:
        assert [stack.enter_context(node_name_lock(*other)).name for other in others] == ["n2", "n1"]


def test_any_path_of_its_directory_identifies_a_run(backend: FileBackend, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    linked = FileBackend(RunPaths(tmp_path / "link"))
    with node_name_lock(backend, HERE), pytest.raises(ConfigError), node_name_lock(linked, HERE):
        pass
