"""Real agents with a rendezvous in a real server: they lose a worker, an agent, and the server itself."""

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.backends.etcd_server import EtcdServer
from tests.cli.shell import Shell, eventually, shell_in

TIMES = "lease=3,margin=0.5,poll=0.05,last_call=1,join_timeout=20"

WAITING = """\
import json, os, pathlib, time
facts = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "HPCELASTIC_ROUND", "HPCELASTIC_NODE")}
path = pathlib.Path(f"output/{os.environ['HPCELASTIC_ROUND']}-{os.environ['RANK']}")
path.with_suffix(".new").write_text(json.dumps(facts | {"pid": os.getpid()}))
path.with_suffix(".new").rename(path)
while not pathlib.Path("finish").exists():
    time.sleep(0.05)
"""


class Line:
    """The agents of a run in one backend."""

    def __init__(self, shell: Shell, backend: str, endpoint: str, times: str = TIMES) -> None:
        self.shell = shell
        self.run = f"run-{secrets.token_hex(6)}"
        self._fixed = ["--rdzv-backend", backend, "--rdzv-endpoint", endpoint or "./runs", "--rdzv-id", self.run]
        self._fixed += ["--local-addr", "127.0.0.1", "--rdzv-conf", times, "--max-restarts", "3"]
        self._fixed += ["--preload", "argparse"]
        shell.write({"waiting.py": WAITING})
        (shell.directory / "output").mkdir()

    def start(self, name: str, nnodes: str = "1:3") -> "subprocess.Popen[str]":
        named = ["--node-name", name, "--nnodes", nnodes]
        return self.shell.start("-m", "hpcelastic", "agent", *self._fixed, *named, "waiting.py")

    def round(self, number: int, workers: int) -> list[dict[str, Any]]:
        """Return the output of the workers of a round by rank, once all have printed it."""
        output = self.shell.directory / "output"
        eventually(lambda: len(list(output.glob(f"{number}-*[0-9]"))) == workers)
        found = [json.loads((output / f"{number}-{rank}").read_text()) for rank in range(workers)]
        assert {one["WORLD_SIZE"] for one in found} == {str(workers)}
        return found

    def finish(self) -> None:
        (self.shell.directory / "finish").touch()

    def status(self) -> str:
        done = self.shell.hpcelastic("status", f"runs/{self.run}")
        return done.stdout + done.stderr


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        yield made


@pytest.mark.slow
def test_worker_agent_and_end(shell: Shell, backend: tuple[str, str]) -> None:
    line = Line(shell, *backend)
    first = line.start("a")
    line.round(1, workers=1)
    agents = {"a": first, "b": line.start("b"), "c": line.start("c")}
    newest = eventually(
        lambda: max((int(p.name.partition("-")[0]) for p in shell.directory.glob("output/*-2")), default=0)
    )
    output = line.round(newest, workers=3)
    os.kill(output[1]["pid"], signal.SIGKILL)
    output = line.round(newest + 1, workers=3)
    # Not the first agent: if an agent serves, nothing continues without it.
    os.kill(agents["c"].pid, signal.SIGKILL)
    output = line.round(newest + 2, workers=2)
    assert {one["HPCELASTIC_NODE"] for one in output} == {"a", "b"}
    assert "running" in line.status()
    line.finish()
    assert [agents[name].wait(30) for name in "ab"] == [0, 0]
    assert "succeeded" in line.status()
    assert line.start("d").wait(30) == 0


@pytest.mark.slow
def test_without_other_nodes(shell: Shell, backend: tuple[str, str]) -> None:
    agent = Line(shell, *backend, times=f"{TIMES},join_timeout=2").start("a", "2")
    _, stderr = agent.communicate(timeout=60)
    assert agent.returncode == 1
    assert "waiting for nodes: 1 of at least 2 are ready; no round formed in 2 s" in stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["etcd", "etcd-v2"])
def test_the_server_dies_and_returns(shell: Shell, tmp_path: Path, name: str) -> None:
    server = EtcdServer(tmp_path / "etcd")
    try:
        line = Line(shell, name, server.endpoint)
        agents = [line.start("a", "2"), line.start("b", "2")]
        output = line.round(1, workers=2)
        server.stop(signal.SIGKILL)
        server.start()
        os.kill(output[0]["pid"], signal.SIGKILL)
        output = line.round(2, workers=2)
        server.stop(signal.SIGKILL)
        # It stays away for longer than a lease. No worker trains meanwhile, because no node can know which others do.
        eventually(lambda: not any(Path(f"/proc/{one['pid']}").exists() for one in output))
        server.start()
        line.round(3, workers=2)
        line.finish()
        assert [agent.wait(30) for agent in agents] == [0, 0]
    finally:
        server.stop(signal.SIGKILL)


def test_a_missing_server_is_reported_before_the_start(shell: Shell) -> None:
    for name, words in {
        "etcd": "etcd at 127.0.0.1:1 does not answer",
        "etcd-v2": "etcd at 127.0.0.1:1 does not answer",
        "ectd": "rendezvous.backend is 'ectd'; there are c10d, etcd, etcd-v2, file, static",
    }.items():
        agent = Line(shell_of(shell, name), name, "127.0.0.1:1").start("a")
        _, stderr = agent.communicate(timeout=60)
        assert agent.returncode in (1, 2) and words in stderr, stderr


def shell_of(shell: Shell, name: str) -> Shell:
    """Return the same shell in another directory."""
    shell.directory = shell.directory / name
    shell.directory.mkdir()
    return shell


def test_an_embedded_server(shell: Shell) -> None:
    line = Line(shell, "etcd", "embedded")
    agent = line.start("a", "1")
    line.round(1, workers=1)
    line.finish()
    assert agent.wait(30) == 0
    assert "succeeded" in line.status()
    assert not [words for words in shell.processes().values() if "etcd" in words]
    two = line.start("b", "1:2")
    assert two.wait(30) == 2 and two.stderr is not None and "a server for one node" in two.stderr.read()


def test_an_embedded_server_of_a_job_file(shell: Shell) -> None:
    """The second job starts the server again at another port."""
    job = "rendezvous: {backend: etcd, endpoint: embedded}\nworkers: {preload: []}\nrestarts: {max: 0}\n"
    shell.write({"job.yaml": f"{job}run: {{name: r}}\nentrypoint: {{script: train.py}}\n"})
    shell.write({"train.py": "import os, sys; sys.exit(os.environ['HPCELASTIC_ROUND'] == '1')\n"})
    done = shell.hpcelastic("run", "job.yaml")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        1,
        "root cause: rank 0 on node0 in round 1: exit status 1",
    )
    done = shell.hpcelastic("run", "job.yaml", "--resume")
    assert done.returncode == 0, done.stderr
    assert "phase      succeeded" in shell.hpcelastic("status", "r").stdout


PLUGIN = """\
import json, pathlib, fcntl
from hpcelastic.backends.records import Record

class OneFile:
    "All records in one file, under a lock."
    def __init__(self, path):
        self.path = pathlib.Path(path)
    def _do(self, change):
        with open(self.path, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            records = json.loads(file.read() or "{}")
            done = change(records)
            file.seek(0), file.truncate(), file.write(json.dumps(records))
            return done
    def get(self, key):
        text = self._do(lambda records: records.get(key))
        return None if text is None else Record(text, text)
    def compare_set(self, key, token, text):
        def change(records):
            fits = records.get(key) == token
            records.update({key: text} if fits else {})
            return fits
        return self._do(change)
    def set(self, key, text):
        self._do(lambda records: records.update({key: text}))
    def all(self, prefix):
        return self._do(lambda records: {key: text for key, text in records.items() if key.startswith(prefix)})
    def close(self): pass

def connect(endpoint, run_id, agent):
    return OneFile(endpoint.removeprefix("file:"))
"""


def test_a_third_party_adds_a_backend(shell: Shell) -> None:
    info = "lib/theirs-1.0.dist-info"
    points = "[hpcelastic.backends]\nonefile = theirs_backend:connect\n"
    metadata = "Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n"
    shell.write({"lib/theirs_backend.py": PLUGIN, f"{info}/entry_points.txt": points, f"{info}/METADATA": metadata})
    shell.environ["PYTHONPATH"] = str(shell.directory / "lib")
    line = Line(shell, "onefile", f"file:{shell.directory / 'records.json'}")
    agents = [line.start("a", "2"), line.start("b", "2")]
    os.kill(line.round(1, workers=2)[0]["pid"], signal.SIGKILL)
    line.round(2, workers=2)
    line.finish()
    assert [agent.wait(30) for agent in agents] == [0, 0]
    assert "succeeded" in line.status()


@pytest.mark.slow
def test_a_job_file(shell: Shell, backend: tuple[str, str]) -> None:
    name, endpoint = backend
    run = f"run-{secrets.token_hex(6)}"
    shell.write(
        {
            "train.py": "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n",
            "job.yaml": "entrypoint: {script: train.py}\nnodes: 2\nworkers: {per_node: 1, preload: []}\n"
            f"rendezvous: {{backend: {name}, endpoint: '{endpoint}', last_call: 1}}\nrun: {{name: {run}}}\n",
        }
    )
    done = shell.hpcelastic("run", "job.yaml")
    assert done.returncode == 0, done.stderr
    assert "rank 1 of 2" in done.stdout and "succeeded" in done.stdout
    assert done.stderr == ""
    status = shell.hpcelastic("status", f"runs/{run}")
    assert "phase      succeeded" in status.stdout and status.stdout.count("succeeded \n") == 2 and status.stderr == ""
