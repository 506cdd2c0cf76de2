import os
import re
import secrets
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hpcelastic.agent import member
from hpcelastic.agent.member import (
    NodeIdentity,
    count_gpus,
    dead_incarnations,
    local_pid,
    new_member,
    overcommit_warnings,
    require_topology,
    this_process,
)
from hpcelastic.backends.files import FileBackend
from hpcelastic.errors import ConfigError
from hpcelastic.protocol.settings import NodeRange
from hpcelastic.protocol.state import Member, NodeState
from hpcelastic.storage.leases import OwnLease
from hpcelastic.storage.paths import RunPaths
from tests.agent.processes import sleeper, watched

PLACE = NodeIdentity("n1", job="7", job_nodes=4, restart=1, order=2)
BOOT, SPACE, PID, START = this_process().split(":")


def process_of(pid: int) -> str:
    """Return the value of `this_process` in the live process ``pid``."""
    return f"{BOOT}:{SPACE}:{pid}:{member._start_time(pid)}"


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path)
    paths.leases.mkdir(parents=True)
    return paths


def leave_lease(paths: RunPaths, process: str, name: str = "n1@0-ab", **says: object) -> str:
    member = replace(
        new_member(PLACE, 1, ()), node=name, process=process, job="", node_state=NodeState.RUNNING, round=1
    )
    OwnLease(paths.leases, name).renew(replace(member, **says))  # type: ignore[arg-type]  # fields of Member
    return name


@pytest.fixture
def ended() -> str:
    """A process of this machine that has ended."""
    with sleeper() as process:
        return process_of(process.pid)


# Fields of a member


@pytest.mark.parametrize(
    ("job", "topology"),
    [("7", "top.s1"), ("", ""), ("local-3f2a1b", "")],
    ids=["a known switch", "without SLURM", "on one machine"],
)
def test_a_place_is_not_missing(job: str, topology: str) -> None:
    require_topology(replace(PLACE, job=job, topology=topology), NodeRange(2, 4, multiple=2, within="switch"))


def test_a_node_of_unknown_place_cannot_be_in_a_group() -> None:
    with pytest.raises(ConfigError, match=r"nodes\.within is switch, but SLURM tells .* no topology"):
        require_topology(replace(PLACE, job="7"), NodeRange(2, 4, multiple=2, within="switch"))


def test_a_new_member_is_ready_for_nothing_yet() -> None:
    member = new_member(replace(PLACE, address="10.1.2.3"), 8, ("n1@0-ab",))
    assert re.fullmatch(r"n1@1-[0-9a-f]{8}", member.node)
    assert member == Member(
        node=member.node,
        node_state=NodeState.READY,
        round=-1,
        local_world_size=8,
        address="10.1.2.3",
        port=0,
        order=2,
        job="7.1",
        job_nodes=4,
        process=this_process(),
        dead=("n1@0-ab",),
    )


def test_every_member_has_a_new_incarnation() -> None:
    assert len({new_member(PLACE, 1, ()).node for _ in range(50)}) == 50


def test_a_member_outside_of_a_job_has_no_job() -> None:
    member = new_member(NodeIdentity("a b/c@d"), 1, ())
    assert (member.job, member.name) == ("", "a-b-c-d")


def test_the_description_of_a_process_is_unique(ended: str) -> None:
    assert this_process() == this_process()
    with sleeper() as a, sleeper() as b:
        assert len({this_process(), ended, process_of(a.pid), process_of(b.pid)}) == 4


# Earlier incarnations


def test_a_first_incarnation_reports_no_dead_nodes(paths: RunPaths, tmp_path: Path) -> None:
    assert dead_incarnations(FileBackend(paths), PLACE) == ()
    assert dead_incarnations(FileBackend(RunPaths(tmp_path / "missing")), PLACE) == ()


def test_an_agent_that_ended_on_this_machine_is_dead(paths: RunPaths, ended: str) -> None:
    name = leave_lease(paths, ended)
    assert dead_incarnations(FileBackend(paths), PLACE) == (name,)


def test_workers_without_agent_and_guard_are_killed_first(paths: RunPaths, ended: str) -> None:
    name = leave_lease(paths, ended, f"n1@0-{secrets.token_hex(4)}")
    with sleeper(name) as worker, watched(worker.pid) as (process,):
        assert dead_incarnations(FileBackend(paths), PLACE) == (name,)
        assert process.ends()


def test_a_living_agent_with_the_same_name_is_an_error(paths: RunPaths) -> None:
    with sleeper() as process:
        leave_lease(paths, process_of(process.pid))
        with pytest.raises(ConfigError) as caught:
            dead_incarnations(FileBackend(paths), PLACE)
    assert str(caught.value) == (
        f"node n1 is in this run already, as process {process.pid} on this machine; stop that agent, or give this one "
        "another name with --node-name"
    )


def test_a_departed_agent_with_the_same_name_is_no_error(paths: RunPaths) -> None:
    with sleeper() as process:
        name = leave_lease(paths, process_of(process.pid), node_state=NodeState.LEFT)
        assert dead_incarnations(FileBackend(paths), PLACE) == (name,)


def test_a_zombie_is_dead(paths: RunPaths) -> None:
    with sleeper() as process, watched(process.pid) as (pidfd,):
        name = leave_lease(paths, process_of(process.pid))
        process.kill()
        assert pidfd.ends()
        assert dead_incarnations(FileBackend(paths), PLACE) == (name,)


def test_a_reused_process_id_does_not_prove_life(paths: RunPaths) -> None:
    name = leave_lease(paths, f"{BOOT}:{SPACE}:{os.getpid()}:{int(START) - 1}")
    assert dead_incarnations(FileBackend(paths), PLACE) == (name,)


UNKNOWN = {
    "another boot": f"00000000-0000-0000-0000-000000000000:{SPACE}:{PID}:{START}",
    "another container": f"{BOOT}:1:{PID}:{START}",
    "unknown": "",
    "incomplete": BOOT,
}


@pytest.mark.parametrize("process", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_the_state_of_an_agent_on_another_machine_is_unknown(paths: RunPaths, process: str) -> None:
    leave_lease(paths, process)
    assert dead_incarnations(FileBackend(paths), PLACE) == ()


REQUEUED = [
    pytest.param("7.0", 1, True, id="requeued since"),
    pytest.param("7.0", 3, True, id="requeued more than once"),
    pytest.param("7.1", 1, False, id="same start of the job"),
    pytest.param("7.2", 1, False, id="a later start of the job"),
    pytest.param("8.0", 1, False, id="another job"),
    pytest.param("", 1, False, id="no job"),
]


@pytest.mark.parametrize(("job", "restart", "dead"), REQUEUED)
def test_the_requeue_of_a_job_proves_the_end_of_its_previous_agents(
    paths: RunPaths, job: str, restart: int, dead: bool
) -> None:
    name = leave_lease(paths, UNKNOWN["another boot"], job=job)
    assert dead_incarnations(FileBackend(paths), replace(PLACE, restart=restart)) == ((name,) if dead else ())


def test_no_job_is_never_requeued(paths: RunPaths) -> None:
    leave_lease(paths, UNKNOWN["another boot"], job="")
    assert dead_incarnations(FileBackend(paths), NodeIdentity("n1", restart=1)) == ()


def test_other_nodes_and_damaged_leases_are_ignored(paths: RunPaths, ended: str) -> None:
    leave_lease(paths, ended, "n10@0-ab")
    leave_lease(paths, ended, "n1-x@0-ab")
    (paths.leases / "n1@0-cd.json").write_text("{")
    first, second = leave_lease(paths, ended, "n1@0-01"), leave_lease(paths, ended, "n1@0-02")
    assert dead_incarnations(FileBackend(paths), PLACE) == (first, second)


@pytest.mark.parametrize("name", ["n[1]", "n*", "a@b"])
def test_unusual_names_match_only_their_own_leases(paths: RunPaths, ended: str, name: str) -> None:
    place = NodeIdentity(name)
    mine = leave_lease(paths, ended, new_member(place, 1, ()).node)
    leave_lease(paths, ended, "n1@0-ab")
    assert dead_incarnations(FileBackend(paths), place) == (mine,)


def test_a_process_is_found_by_its_description(ended: str) -> None:
    assert local_pid(this_process()) == os.getpid()
    assert local_pid(ended) is None
    assert [local_pid(process) for process in UNKNOWN.values()] == [None] * len(UNKNOWN)


# GPUs


GPUS = {
    "one": ("0", 1),
    "some": ("0,1,5", 3),
    "spaces": (" 0, 1 ", 2),
    "uuids": ("GPU-8932f937,MIG-a,MIG-b", 3),
    "none": ("", 0),
    "minus one": ("-1", 0),
    "no device files": ("NoDevFiles", 0),
    "trailing comma": ("0,", 1),
    "GPUs before an invalid one": ("0,1,-1,2", 2),
    "GPUs before an empty one": ("0,,1", 1),
    "none after an invalid one": ("-1,0,1", 0),
    "none after an empty one": (" ,0", 0),
}


@pytest.mark.parametrize(("visible", "count"), GPUS.values(), ids=GPUS.keys())
def test_the_number_of_given_gpus(visible: str, count: int) -> None:
    assert count_gpus({"CUDA_VISIBLE_DEVICES": visible}) == count


def test_without_a_setting_the_gpus_are_those_of_the_machine(tmp_path: Path) -> None:
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for index, units in enumerate((0, 0, 304, 304)):  # processors are listed as nodes too
        (nodes / str(index)).mkdir(parents=True)
        (nodes / str(index) / "properties").write_text(f"cpu_cores_count 1\nsimd_count {units}\nmem_banks_count 1\n")
    assert count_gpus({}, tmp_path) == 2
    assert count_gpus({"ROCR_VISIBLE_DEVICES": "1"}, tmp_path) == 1
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-caps", "null"):
        (tmp_path / "dev" / name).touch()
    assert count_gpus({}, tmp_path) == 3


def test_the_agent_does_not_import_torch() -> None:
    """An agent, which runs on every node, starts in tens of milliseconds."""
    code = "import sys, hpcelastic.agent.agent; print([m for m in ('torch', 'numpy', 'pydantic') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("workers", "gpus", "cpus", "words"),
    [
        (4, 4, 4, ""),
        (4, 0, 8, ""),
        (4, 2, 8, "4 workers and 2 GPUs on this node: a script that gives each worker the GPU of its LOCAL_RANK fails"),
        (2, 1, 2, "2 workers and 1 GPU on this node"),
        (4, 0, 1, "4 workers share 1 processor on this node; request more"),
    ],
)
def test_workers_that_share_a_resource_are_reported(workers: int, gpus: int, cpus: int, words: str) -> None:
    output = " ".join(overcommit_warnings(workers, gpus, cpus))
    assert words in output and bool(words) is bool(output)
