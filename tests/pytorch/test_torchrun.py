"""The plug-in for torchrun: unmodified agents of torchrun with a rendezvous in files."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousTimeoutError,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.registry import _register_out_of_tree_handlers, get_rendezvous_handler

from hpcelastic.agent.member import local_pid
from hpcelastic.backends.files import FileBackend
from hpcelastic.protocol.state import Phase
from hpcelastic.pytorch.rendezvous_backend import FileRendezvousBackend
from hpcelastic.rendezvous.run import read_state
from hpcelastic.storage.leases import read_leases
from hpcelastic.storage.paths import RunPaths
from tests.cli.shell import Shell, eventually, shell_in

pytestmark = pytest.mark.slow

QUICK = "lease=2,margin=0.5,poll=0.05,last_call=0.5"

WAITING = """\
import json, os, pathlib, signal, subprocess, sys, time
facts = {name: os.environ[name] for name in sys.argv[1:]} | {"pid": os.getpid(), "agent": os.getppid()}
facts["child"] = subprocess.Popen(["sleep", "1000"], start_new_session=True).pid
path = pathlib.Path(f"output/{os.environ['MASTER_PORT']}-{os.environ['RANK']}")
path.with_suffix(".new").write_text(json.dumps(facts))
path.with_suffix(".new").rename(path)
while not pathlib.Path("finish").exists():
    time.sleep(0.05)
os.kill(facts["child"], signal.SIGKILL)
"""
"""A worker that writes its environment to a file and waits. Its child process is in a session of its own."""

ASKED = ["RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "HPCELASTIC_ROUND"]


class Torchruns:
    """Several torchruns of one run on this machine."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.reports = shell.directory / "output"
        self.reports.mkdir()
        self.paths = RunPaths(shell.directory / "runs" / "r")
        shell.write({"waiting.py": WAITING})

    def start(self, *options: str, nodes: str = "2:3") -> "subprocess.Popen[str]":
        line = f"--nnodes {nodes} --max-restarts 3 --monitor-interval 0.05 --rdzv-backend hpcelastic --rdzv-id r"
        line += f" --rdzv-endpoint ./runs --rdzv-conf {QUICK} --local-addr 127.0.0.1"
        return self.shell.start("-m", "torch.distributed.run", *line.split(), *options, "waiting.py", *ASKED)

    def round(self, number: int, workers: int) -> list[dict[str, Any]]:
        """Wait until all workers of a round have written their reports. Return these, ordered by rank."""
        reports: list[dict[str, Any]] = []

        def look() -> bool:
            found = [json.loads(path.read_text()) for path in self.reports.glob("*[0-9]")]
            reports[:] = [one for one in found if one["HPCELASTIC_ROUND"] == str(number)]
            return len(reports) == workers

        eventually(look)
        return sorted(reports, key=lambda one: int(one["RANK"]))

    def finish(self) -> None:
        (self.shell.directory / "finish").touch()


@pytest.fixture
def torchruns(tmp_path: Path) -> Iterator[Torchruns]:
    with shell_in(tmp_path) as shell:
        yield Torchruns(shell)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_from_the_first_round_to_the_last(torchruns: Torchruns) -> None:
    agents = [torchruns.start() for _ in range(2)]
    agents.append(torchruns.start("--nproc-per-node", "2"))
    reports = torchruns.round(read_round(torchruns, nodes=3), workers=4)
    assert [one["RANK"] for one in reports] == list("0123")
    assert {one["WORLD_SIZE"] for one in reports} == {"4"} and {one["GROUP_WORLD_SIZE"] for one in reports} == {"3"}
    assert len({(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in reports}) == 1

    # A worker dies: all workers restart, and no process of the previous round is left.
    before, number = reports, int(reports[0]["HPCELASTIC_ROUND"])
    os.kill(reports[0]["pid"], signal.SIGKILL)
    reports = torchruns.round(number + 1, workers=4)
    assert not any(is_alive(one["pid"]) or is_alive(one["child"]) for one in before)
    assert reports[0]["MASTER_PORT"] != before[0]["MASTER_PORT"]

    # Only an agent dies: its workers and their children are killed before the other nodes continue.
    lost = [one for one in reports if one["GROUP_RANK"] == "0"]
    os.kill(lost[0]["agent"], signal.SIGKILL)
    rest = torchruns.round(number + 2, workers=4 - len(lost))
    assert not any(is_alive(one["pid"]) or is_alive(one["child"]) for one in lost)
    assert {one["agent"] for one in rest} == {one["agent"] for one in reports} - {lost[0]["agent"]}

    # One agent gets SIGTERM and publishes its departure, so no node waits for its lease. A new second node joins.
    leaver = rest[-1]["agent"]
    os.kill(leaver, signal.SIGTERM)
    agents.append(torchruns.start())
    reports = torchruns.round(number + 3, workers=len([one for one in rest if one["agent"] != leaver]) + 1)
    node_states = {lease.member.process.split(":")[2]: lease.member.node_state for lease in leases(torchruns).values()}
    assert node_states[str(leaver)].value == "left"

    torchruns.finish()
    ends = {agent.pid: agent.wait(30) for agent in agents}
    assert {ends[one["agent"]] for one in reports} == {0}
    assert read_state(FileBackend(torchruns.paths)).phase is Phase.SUCCEEDED

    late = torchruns.start()
    assert late.wait(30) == 1
    assert late.stderr is not None and "RendezvousClosedError" in (text := late.stderr.read())
    assert "use another --rdzv-id" in text


def test_a_frozen_node_is_fenced_and_returns(torchruns: Torchruns) -> None:
    agents = [torchruns.start(nodes="1:2") for _ in range(2)]
    number = read_round(torchruns, nodes=2)
    reports = torchruns.round(number, workers=2)
    hung, other = reports
    os.kill(hung["agent"], signal.SIGSTOP)
    (alone,) = torchruns.round(number + 1, workers=1)
    assert alone["agent"] == other["agent"]
    assert not is_alive(hung["pid"]) and not is_alive(hung["child"])
    os.kill(hung["agent"], signal.SIGCONT)
    both = torchruns.round(number + 2, workers=2)
    assert {one["agent"] for one in both} == {hung["agent"], other["agent"]}
    torchruns.finish()
    assert [agent.wait(30) for agent in agents] == [0, 0]


def read_round(torchruns: Torchruns, nodes: int) -> int:
    """Wait until a round with ``nodes`` nodes has formed and return its number."""
    number = [0]

    def look() -> bool:
        if not list(torchruns.paths.register.glob("v*.json")):
            return False
        state = read_state(FileBackend(torchruns.paths))
        number[0] = state.round
        return state.phase is Phase.RUNNING and len(state.participants) == nodes

    eventually(look)
    return number[0]


def leases(torchruns: Torchruns) -> dict[str, Any]:
    return dict(read_leases(torchruns.paths.leases, processes=True))


# The calls of torch on a handler


@pytest.fixture(scope="module", autouse=True)
def plugged_in() -> None:
    if "hpcelastic" not in rendezvous_handler_registry._registry:
        _register_out_of_tree_handlers()


def params(directory: Path, run_id: str = "r", nodes: int = 1, **conf: Any) -> RendezvousParameters:
    timings = {"lease": 2, "margin": 0.5, "poll": 0.05, "last_call": 0.1, "join_timeout": 1} | conf
    return RendezvousParameters("hpcelastic", str(directory), run_id, nodes, nodes, "127.0.0.1", **timings)


def test_a_handler_from_creation_to_close(tmp_path: Path) -> None:
    handler = get_rendezvous_handler(params(tmp_path))
    assert (handler.get_backend(), handler.get_run_id(), handler.use_agent_store) == ("hpcelastic", "r", False)
    assert (handler.is_closed(), handler.num_nodes_waiting()) == (False, 0)
    first = handler.next_rendezvous()
    assert (first.rank, first.world_size) == (0, 1)
    first.store.set("key", "value")
    assert first.store.get("key") == b"value"
    assert handler.num_nodes_waiting() == 0
    second = handler.next_rendezvous()
    assert second.bootstrap_store_info.master_port != first.bootstrap_store_info.master_port
    assert not second.store.check(["key"])  # each round has a store of its own
    handler.set_closed()
    assert handler.is_closed()
    eventually(lambda: handler.num_nodes_waiting() == 1)  # the workers are to be stopped
    with pytest.raises(RendezvousClosedError, match="the run has ended"):
        handler.next_rendezvous()
    assert handler.shutdown()
    assert handler.shutdown()  # like torch's handler, it accepts a second call
    (lease,) = read_leases(RunPaths(tmp_path / "r").leases, processes=True).values()
    assert local_pid(lease.member.process) == os.getpid()


def test_errors_have_torchs_types(tmp_path: Path) -> None:
    lonely = get_rendezvous_handler(params(tmp_path, nodes=2))
    with pytest.raises(RendezvousTimeoutError, match=r"1 of at least 2 .* no round formed in 1 s"):
        lonely.next_rendezvous()
    assert lonely.shutdown()
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="a file; name a directory"):
        get_rendezvous_handler(params(tmp_path / "file"))
    (tmp_path / "ro").mkdir()
    blocked = get_rendezvous_handler(params(tmp_path / "ro"))
    (tmp_path / "ro" / "r").touch()
    with pytest.raises(RendezvousConnectionError):
        blocked.next_rendezvous()
    broken = get_rendezvous_handler(params(tmp_path, "broken"))
    broken.next_rendezvous()
    register = RunPaths(tmp_path / "broken").register
    newest = sorted(register.glob("v*.json"))[-1]
    number = int(newest.stem[1:]) + 1
    (register / f"v{number:010d}.json").write_text(json.dumps({"version": number, "value": {"phase": "?"}}))
    with pytest.raises(RendezvousStateError, match="cannot be decoded"):
        broken.is_closed()
    newest.with_name(f"v{number:010d}.json").unlink()
    broken.shutdown()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"directory": "n1:29400"}, "takes a directory that all nodes share"),
        ({"directory": "node1"}, "'node1', but there is no such directory; write ./node1 for a new directory"),
        ({"run_id": "a/b"}, "it names a directory"),
        ({"lease": "long"}, "--rdzv-conf: lease is 'long'; write seconds"),
        ({"leese": 3}, "'leese' is not a known key; the keys are join_timeout, .* notifications"),
        ({"lease": 0}, "lease is 0.0; it must be more than 0"),
    ],
)
def test_the_error_names_a_wrong_flag(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get_rendezvous_handler(params(**{"directory": tmp_path, **changed}))


def test_a_line_may_have_options_that_only_torch_needs(tmp_path: Path) -> None:
    given = params(tmp_path, timeout=900, read_timeout=60, is_host="false", last_call_timeout="3")
    assert get_rendezvous_handler(given).get_run_id() == given.run_id


LOGS_SPECS = """\
import pathlib
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

class Named(DefaultLogsSpecs):
    def reify(self, envs):
        dest = super().reify(envs)
        for local_rank, env in envs.items():
            dest.stdouts[local_rank] = str(pathlib.Path("named-" + env["RANK"]).absolute())
        return dest
"""


def test_a_class_of_log_files_chooses_them_as_docs_torchrun_md_says(tmp_path: Path) -> None:
    with shell_in(tmp_path) as shell:
        shell.write(
            {
                "says.py": "print('hello')\n",
                "extra/named.py": LOGS_SPECS,
                "extra/named-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: named\nVersion: 1\n",
                "extra/named-1.dist-info/entry_points.txt": "[torchrun.logs_specs]\nnamed = named:Named\n",
            }
        )
        path = os.pathsep.join(filter(None, [str(tmp_path / "extra"), os.environ.get("PYTHONPATH")]))
        line = "--rdzv-backend=hpcelastic --rdzv-endpoint=./runs --rdzv-id=r --local-addr=127.0.0.1 --logs-specs=named"
        command = ["-m", "torch.distributed.run", *line.split(), f"--rdzv-conf={QUICK}", "--log-dir=logs", "says.py"]
        done = shell.python(*command, environ={"PYTHONPATH": path})
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "named-0").read_text() == "hello\n"


# torch's own protocol over our files


def test_the_state_follows_its_tokens(tmp_path: Path) -> None:
    ours, theirs = FileRendezvousBackend(tmp_path / "s"), FileRendezvousBackend(tmp_path / "s")
    assert ours.name == "hpcelastic-dynamic"
    assert ours.get_state() is None
    assert ours.set_state(b"early", "no token of ours") is None
    assert ours.set_state(b"early", 7) is None
    state, first, won = ours.set_state(b"one\0\xff") or ()
    assert (state, won) == (b"one\0\xff", True)
    assert theirs.get_state() == (b"one\0\xff", first)
    assert theirs.set_state(b"two") == (b"one\0\xff", first, False)
    state, second, won = theirs.set_state(b"two", first) or ()
    assert (state, won) == (b"two", True) and second != first
    for token in (first, second + 1, "no token of ours", b"", True, -1):
        assert ours.set_state(b"three", token) == (b"two", second, False)
    for number in range(40):  # old versions are removed
        _, second, won = ours.set_state(str(number).encode(), second) or ()
        assert won
    assert theirs.get_state() == (b"39", second)


def test_an_invalid_state_is_an_error(tmp_path: Path) -> None:
    backend = FileRendezvousBackend(tmp_path)
    (tmp_path / "v0000000001.json").write_text(json.dumps({"version": 1, "value": "no base64!"}))
    with pytest.raises(RendezvousStateError):
        backend.get_state()
    with pytest.raises(RendezvousConnectionError):
        FileRendezvousBackend(tmp_path / "v0000000001.json")


def test_torchrun_loads_only_the_plugin() -> None:
    script = (
        "import sys, torch.distributed.run; print(*(name for name in sys.modules if name.startswith('hpcelastic')))"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    ours = {name for name in loaded if not name.startswith("__editable__")}
    few = {"hpcelastic", "hpcelastic.lazy_names", "hpcelastic.version"}
    assert ours == few | {"hpcelastic.pytorch", "hpcelastic.pytorch.plugin"}
