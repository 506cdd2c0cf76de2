"""Faults of the run's directory under a running job: the run stops in time, reports the fault, and continues."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.api.run import Run
from tests.cli.shell import TIMEOUT, Shell, eventually, shell_in
from tests.e2e import sites
from tests.e2e.proof import check_proof
from tests.e2e.sites import Site, mounted_disk, mounted_share

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

STEADY = str(Path(__file__).with_name("steady.py"))
LEASE = 2.0
SLACK = 3.0
"""Seconds that a busy machine may take to run a process that is due."""

ENOUGH = 60.0
SHORT = 4.0
"""Values of rendezvous.join_timeout in seconds: more and less than a fault takes."""

JOB = """\
run: {{name: r, directory: {root}/runs}}
entrypoint: {{script: {script}, args: [{arguments}]}}
workers: {{per_node: 1, stop_grace: 1, preload: [argparse]}}
nodes: 2
rendezvous: {{last_call: 1, lease: {lease}, margin: 0.5, poll: 0.2, join_timeout: {join_timeout}}}
restarts: {{max: 0}}
logs: {{redirect: {redirect}, tee: {tee}}}
"""

PREPARE = """
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
prepare(resolve("job.yaml", []))
"""


@dataclass(frozen=True)
class Case:
    """A fault of a run's directory, its site, and the message of an agent."""

    site: Callable[[Path], AbstractContextManager[Site]]
    fault: Callable[[Any], AbstractContextManager[None]]
    complaint: str
    redirect: str = "both"
    chatty: bool = False
    """Whether the workers also print, which a full disk prevents."""


FULL = Case(mounted_disk, sites.full, "No space left on device; the filesystem is full")
CHATTY = Case(mounted_disk, sites.full, "No space left on device; the filesystem is full", chatty=True)
NO_INODES = Case(mounted_disk, sites.without_inodes, "No space left on device; the filesystem is full")
# Linux refuses to remount a filesystem read-only while a log is open for writing.
READ_ONLY = Case(mounted_disk, sites.read_only, "Read-only file system; the filesystem is mounted", redirect="none")
UNMOUNTED = Case(mounted_disk, sites.unmounted, "check that the shared filesystem is mounted")
FORBIDDEN = Case(mounted_disk, sites.forbidden, "Permission denied; access is denied")
OVER_QUOTA = Case(mounted_share, sites.over_quota, "Disk quota exceeded; the disk quota is used up")
FAILING = Case(mounted_share, sites.failing, "Input/output error; check that the shared filesystem")
HUNG = Case(mounted_share, sites.hung, "is the shared filesystem that holds", chatty=True)
CASES = {
    "full": FULL,
    "full-of-output": CHATTY,
    "no-inodes": NO_INODES,
    "read-only": READ_ONLY,
    "unmounted": UNMOUNTED,
    "forbidden": FORBIDDEN,
    "over-quota": OVER_QUOTA,
    "failing": FAILING,
    "hung": HUNG,
}


def cases(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [pytest.param(CASES[name], id=name) for name in names or CASES])


class Job:
    """A run of two nodes on a site. Its workers record elsewhere that they are alive."""

    def __init__(self, case: Case, site: Site, shell: Shell, tee: str = "none", join_timeout: float = ENOUGH) -> None:
        self.case, self.site, self.shell = case, site, shell
        self.here = shell.directory
        self.directory = site.root / "runs/r"
        facts = {"root": site.root, "script": STEADY, "lease": LEASE, "join_timeout": join_timeout}
        arguments = f"{self.here}, chatty" if case.chatty else str(self.here)
        shell.write({"job.yaml": JOB.format(**facts, arguments=arguments, redirect=case.redirect, tee=tee)})
        self.processes: list[subprocess.Popen[str]] = []

    def prepare(self) -> None:
        done = self.shell.python("-c", PREPARE)
        assert done.returncode == 0, done.stderr

    def start_agents(self) -> None:
        """Start the agents like SLURM, with their output in another directory."""
        self.prepare()
        self.processes = [self._agent(f"n{index}") for index in range(2)]
        self.await_round(1)

    def start_run(self, *flags: str) -> "subprocess.Popen[str]":
        """`hpcelastic run`, which writes the agents' output into the run's directory."""
        return self.shell.start("-m", "hpcelastic", "run", "job.yaml", *flags)

    @contextlib.contextmanager
    def stricken(self) -> Iterator[None]:
        """Apply the fault until the end of the context. The workers must end in time before the context begins."""
        with self.case.fault(self.site):
            eventually(lambda: not self.workers())
            self.check_in_time()
            yield

    def await_round(self, number: int) -> None:
        eventually(lambda: len(self.notes(number)) == 2)

    def notes(self, round: int) -> list[dict[str, Any]]:
        """Return the notes of the workers of a round."""
        found = (self.here / "proof").glob(f"{round}.*.json")
        return [json.loads(path.read_text()) for path in found]

    def workers(self) -> list[str]:
        return [line for line in self.shell.processes().values() if f"-u {STEADY}" in line]

    def check_in_time(self) -> None:
        """Fail if a worker was alive for longer than its node's lease."""
        leases = (self.site.behind / "runs/r/rendezvous/nodes").glob("*@*.json")
        renewed = max(path.stat().st_ctime for path in leases) + time.monotonic() - time.time()
        last = max(note["end"] for note in self.notes(1))
        assert last < renewed + LEASE + SLACK, f"a worker lived {last - renewed - LEASE:.1f} s after its lease"

    def await_end(self) -> list[str]:
        """Wait for the agents to end. Return their output."""
        return [process.communicate(timeout=TIMEOUT)[1] for process in self.processes]

    def finish(self) -> None:
        """Let the workers end."""
        (self.here / "finish").touch()

    def check_success(self, rounds: int) -> None:
        status = Run(self.site.behind / "runs/r").status()
        assert (status.phase, status.round, status.restarts) == ("succeeded", rounds, 0), status
        assert check_proof(self.here) == rounds

    def _agent(self, name: str) -> "subprocess.Popen[str]":
        flags = ("--run-dir", str(self.directory), "--node-name", name, "--local-addr", "127.0.0.1")
        return self.shell.start("-m", "hpcelastic", "agent", *flags)


@pytest.fixture
def job(case: Case, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    if reason := sites.why_unavailable():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    with ExitStack() as stack:
        site = stack.enter_context(case.site(tmp_path))
        shell = stack.enter_context(shell_in(tmp_path, site.prefix))
        yield lambda **settings: Job(case, site, shell, **settings)


@cases("full", "no-inodes")
def test_a_full_directory_does_not_affect_workers_that_do_not_use_it(case: Case, job: Callable[..., Job]) -> None:
    it = job()
    it.start_agents()
    before = it.workers()
    with case.fault(it.site):
        time.sleep(3 * LEASE)  # a lease is renewed by a rename, which needs no space
        assert it.workers() == before
    it.finish()
    for output in it.await_end():
        assert case.complaint not in output
    assert [process.returncode for process in it.processes] == [0, 0]
    it.check_success(rounds=1)


@cases(*sorted(CASES.keys() - {"full", "no-inodes"}))
def test_a_run_continues_when_the_directory_works_again(case: Case, job: Callable[..., Job]) -> None:
    it = job()
    it.start_agents()
    with it.stricken():
        time.sleep(LEASE + 1)  # long enough for every node to declare the others dead, and to retry often
        assert it.workers() == []
        if case is UNMOUNTED:
            assert list(it.site.seen.rglob("*")) == [], "nothing may be written into the empty mount point"
    it.await_round(2)
    it.finish()
    for output in it.await_end():
        complaints = [line for line in output.splitlines() if case.complaint in line]
        assert len(complaints) == 1, output
        assert str(it.directory) in complaints[0]
        assert output.count(f"{it.directory}: works again") == 1
        assert "Traceback" not in output
    assert [process.returncode for process in it.processes] == [0, 0]
    it.check_success(rounds=2)


@cases("full-of-output", "unmounted", "hung")
def test_agents_end_after_a_long_failure_and_report_how_to_continue(case: Case, job: Callable[..., Job]) -> None:
    it = job(join_timeout=SHORT)
    it.start_agents()
    with it.stricken():
        for output in it.await_end():
            assert f"{it.directory}: could not be used for {SHORT:g} s (rendezvous.join_timeout): " in output
            assert "continue the run with --resume" in output
            assert "Traceback" not in output
        assert [process.returncode for process in it.processes] == [1, 1]
        assert it.shell.processes() == {}
    it.finish()
    resumed = it.start_run("--resume")
    _, stderr = resumed.communicate(timeout=TIMEOUT)
    assert resumed.returncode == 0, stderr
    it.check_success(rounds=2)


@cases("full", "unmounted", "forbidden", "hung")
def test_sigterm_ends_an_agent_during_a_fault_of_the_directory(case: Case, job: Callable[..., Job]) -> None:
    it = job()
    it.start_agents()
    with case.fault(it.site):
        first, second = it.processes
        first.send_signal(signal.SIGTERM)
        second.send_signal(signal.SIGINT)
        for output in it.await_end():
            assert "leaving the run within" in output
            assert "the departure could not be published" in output
            assert "Traceback" not in output
        assert (first.returncode, second.returncode) == (128 + signal.SIGTERM, 128 + signal.SIGINT)
        assert it.shell.processes() == {}


@cases("full-of-output", "unmounted", "hung")
def test_hpcelastic_run_survives_the_fault_too(case: Case, job: Callable[..., Job]) -> None:
    it = job(tee="both")
    run = it.start_run()
    it.await_round(1)
    with it.stricken():
        time.sleep(LEASE + 1)
        assert run.poll() is None
    it.await_round(2)
    it.finish()
    stdout, stderr = run.communicate(timeout=TIMEOUT)
    assert run.returncode == 0, stderr
    assert stderr == ""
    shown = [line for line in stdout.splitlines() if line.startswith("---")]
    blind = [line for line in shown if "cannot read the status of the run" in line]
    assert len(blind) == (0 if case is CHATTY else 1) or case is HUNG, shown
    assert shown[-1].startswith("--- succeeded, round 2")
    it.check_success(rounds=2)


# Not "hung": FUSE ends no process with an open file there, such as these agents with their output.
@cases("full-of-output", "unmounted")
def test_hpcelastic_run_reports_how_to_continue_after_a_long_failure(case: Case, job: Callable[..., Job]) -> None:
    it = job(join_timeout=SHORT)
    run = it.start_run()
    it.await_round(1)
    with it.stricken():
        _, stderr = run.communicate(timeout=2 * TIMEOUT)
    assert run.returncode == 1
    assert "continue with: hpcelastic run job.yaml run.name=r --resume" in stderr
    assert "Traceback" not in stderr
    it.finish()
    resumed = it.start_run("--resume")
    _, stderr = resumed.communicate(timeout=TIMEOUT)
    assert resumed.returncode == 0, stderr
    it.check_success(rounds=2)


READABLE = {"status": (0, ""), "list": (0, ""), "logs": (0, "r has no logs so far")}


@pytest.mark.parametrize(
    ("case", "answers"),
    [
        pytest.param(FULL, READABLE | {"cancel": (1, "No space left on device")}, id="full"),
        pytest.param(NO_INODES, READABLE | {"cancel": (1, "No space left on device")}, id="no-inodes"),
        pytest.param(READ_ONLY, READABLE | {"cancel": (1, "Read-only file system")}, id="read-only"),
        pytest.param(
            UNMOUNTED,
            dict.fromkeys(["status", "logs", "cancel"], (2, "is its filesystem mounted here?"))
            | {"list": (2, "no such directory")},
            id="unmounted",
        ),
        pytest.param(
            FORBIDDEN, dict.fromkeys(["status", "list", "logs", "cancel"], (1, "Permission denied")), id="forbidden"
        ),
        pytest.param(
            FAILING, dict.fromkeys(["status", "list", "logs", "cancel"], (1, "Input/output error")), id="failing"
        ),
    ],
)
def test_commands_work_or_report_the_fault(
    case: Case, answers: dict[str, tuple[int, str]], job: Callable[..., Job]
) -> None:
    it = job()
    it.prepare()
    with case.fault(it.site):
        for command, (code, words) in answers.items():
            done = it.shell.hpcelastic(command, str(it.directory.parent if command == "list" else it.directory))
            assert (done.returncode, len(done.stderr.splitlines())) == (code, 1 if words else 0), done.stderr
            assert words in done.stderr


@cases("hung")
@pytest.mark.parametrize("command", ["status", "list", "logs", "cancel"])
def test_ctrl_c_ends_a_command_that_hangs(command: str, case: Case, job: Callable[..., Job]) -> None:
    it = job()
    it.prepare()
    with case.fault(it.site):
        process = it.shell.start("-m", "hpcelastic", command, str(it.directory))
        eventually(lambda: len(os.listdir(f"/proc/{process.pid}/task")) == 2)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, stderr) == (130, "")
