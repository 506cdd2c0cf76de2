"""Requeue of a job by its agents."""

import math
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpcelastic.backends.files import FileBackend
from hpcelastic.errors import SlurmError, StoreError
from hpcelastic.protocol.codec import decode
from hpcelastic.protocol.settings import NodeRange, RendezvousSettings, RestartSettings, Settings
from hpcelastic.protocol.state import Member, NodeState, Notice, Phase
from hpcelastic.rendezvous.run import open_run, read_state
from hpcelastic.slurm import requeue, scheduler
from hpcelastic.slurm.environment import SlurmTask
from hpcelastic.slurm.requeue import DepartedAgent, Limits, Requeue, refusal, requeue_if_needed
from hpcelastic.slurm.signal_resolution import JobInfo
from hpcelastic.storage import files
from hpcelastic.storage.leases import OwnLease
from hpcelastic.storage.paths import RunPaths

LIMIT = Requeue("7", 2, "the time limit is near", 100.0, 50, by_limit=True)
PREEMPTION = Requeue("7", 2, "SLURM preempts the job", 100.0, 50)
ANY = Limits(100, math.inf)


def past(restart: int, **changes: object) -> Requeue:
    return replace(LIMIT, restart=restart, **changes)  # type: ignore[arg-type]  # its fields


@pytest.mark.parametrize(
    ("before", "now", "limits", "reason"),
    [
        pytest.param([], LIMIT, ANY, None, id="first requeue"),
        pytest.param(
            [past(0), past(1)], replace(LIMIT, progress=60), Limits(2, math.inf), "2 times", id="too many requeues"
        ),
        pytest.param([past(0), past(1)], PREEMPTION, Limits(2, math.inf), "2 times", id="too many preemptions"),
        pytest.param([], LIMIT, Limits(0, math.inf), "0 times", id="no requeue allowed"),
        pytest.param([past(1, job="8")], LIMIT, Limits(1, math.inf), None, id="another job"),
        pytest.param([], LIMIT, Limits(9, 100.0), "has taken 100 s", id="no time left"),
        pytest.param(
            [past(1, progress=40)], LIMIT, Limits(9, 200.0), "has taken 200 s", id="no time left, previous jobs counted"
        ),
        pytest.param([past(1, progress=40)], LIMIT, Limits(9, 201.0), None, id="time left"),
        pytest.param([past(1)], PREEMPTION, Limits(9, 200.0), None, id="preempted without time left"),
        pytest.param([past(1)], LIMIT, ANY, "step 50 both times", id="no progress"),
        pytest.param([past(1, progress=49)], LIMIT, ANY, None, id="progress of one step"),
        pytest.param(
            [past(1), past(0, progress=40)], LIMIT, ANY, "no progress", id="no progress, records in another order"
        ),
        pytest.param([past(1, by_limit=False)], LIMIT, ANY, None, id="no progress since a preemption"),
        pytest.param([past(1, progress=None)], replace(LIMIT, progress=None), ANY, None, id="progress unknown"),
        pytest.param([past(1)], PREEMPTION, ANY, None, id="no progress before a preemption"),
        pytest.param([LIMIT], LIMIT, Limits(1, 150.0), None, id="claimed by another agent"),
    ],
)
def test_why_a_job_is_not_requeued(before: list[Requeue], now: Requeue, limits: Limits, reason: str | None) -> None:
    refused = refusal(before, now, limits)
    assert refused is None if reason is None else refused is not None and reason in refused


class Controller:
    """A fake SLURM with job 7. ``requeues_preempted``: since 24.05, see `_request_requeue`."""

    def __init__(self) -> None:
        self.requeued: list[str] = []
        self.released: list[str] = []
        self.forbidden: list[str] = []
        self.info = JobInfo("RUNNING", None, preempted=False, requeue=True)
        self.requeues_preempted = False
        self.twice = False
        """Return whether SLURM starts the job more than once."""

        self.answer: Callable[[], object] = self.end_the_agent
        self.batch_script_ends = True

    def job_info(self, job: str) -> JobInfo:
        return self.info

    def requeue(self, job: str) -> None:
        self.requeued.append(job)
        self.twice = self.info.preempted and self.info.running and self.requeues_preempted
        self.answer()
        self.end_the_job(requeued=True)

    def end_batch_script(self, job: str) -> None:
        if self.batch_script_ends:
            self.end_the_job(requeued=self.info.preempted and self.requeues_preempted)
            self.end_the_agent()

    def end_the_job(self, requeued: bool) -> None:
        self.info = replace(self.info, state="COMPLETING", preempted=False, restarts=self.info.restarts + requeued)

    def end_the_agent(self) -> None:
        signal.raise_signal(signal.SIGTERM)

    def refuse(self) -> None:
        raise SlurmError("scontrol: not found")


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Iterator[Controller]:
    made = Controller()
    monkeypatch.setattr(scheduler, "job_info", made.job_info)
    monkeypatch.setattr(scheduler, "requeue_job", made.requeue)
    monkeypatch.setattr(scheduler, "end_batch_script", made.end_batch_script)
    monkeypatch.setattr(scheduler, "release_job", made.released.append)
    monkeypatch.setattr(scheduler, "forbid_requeue", made.forbidden.append)
    seconds = {
        "_POLL_INTERVAL": 0.001,
        "_TURN_DELAY": 0.005,
        "_CLAIM_TIMEOUT": 0.005,
        "_END_TIMEOUT": 0.005,
        "_QUERY_INTERVAL": 0.005,
        "_BATCH_SCRIPT_TIMEOUT": 0.02,
    }
    for name, value in seconds.items():
        monkeypatch.setattr(requeue, name, value, raising=False)
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)}
    yield made
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    made = RunPaths(tmp_path)
    for directory in (made.register, made.leases):
        files.make_directory(directory)
    times = RendezvousSettings(lease=1.0, margin=0.1, poll=0.1)
    open_run(FileBackend(made), "run", Settings(NodeRange(1, 2), times, RestartSettings(0)), "test")
    return made


REQUEST, NO_REQUEST = Notice("the time limit is near", 5.0, "limit"), Notice("n1 leaves", 5.0)
PREEMPTED = Notice("SLURM preempts the job", 5.0, "preemption")


class Agents:
    """Agents of job 7 that have left, one on each node."""

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self.reported: list[str] = []

    def departed(self, number: int, notice: Notice = REQUEST, limits: Limits = ANY, progress: int = 5) -> DepartedAgent:
        """Return the departed agent of a node. Nodes are counted from 0."""
        task = SlurmTask("7", f"n{number}", number, 2, 0)
        member = Member(
            f"n{number}@0-ab", NodeState.LEFT, 1, 1, "host", 1, job="7.0", progress=progress, leaving=notice
        )
        OwnLease(self.paths.leases, member.node).renew(member)
        backend = FileBackend(self.paths)
        return DepartedAgent(self.paths, backend, task, member, notice, 60.0, limits, self.reported.append)

    @property
    def records(self) -> list[Requeue]:
        names = files.names(self.paths.requeues)
        return [decode(Requeue, files.read_json(self.paths.requeues / name)) for name in names]


@pytest.fixture
def agents(paths: RunPaths) -> Agents:
    return Agents(paths)


def test_two_agents_requeue_their_job_once(agents: Agents, controller: Controller) -> None:
    first, second = agents.departed(0), agents.departed(1, NO_REQUEST)
    requeue_if_needed(first)
    second.end_signals.append(signal.SIGTERM)  # SLURM ends all
    requeue_if_needed(second)
    assert controller.requeued == ["7"]
    assert agents.records == [Requeue("7", 0, "the time limit is near", 60.0, 5, by_limit=True, node="n0@0-ab")]


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2], ids=["USR1", "USR2"])
def test_a_warning_does_not_end_an_agent_that_requeues_its_job(
    signum: int, agents: Agents, controller: Controller
) -> None:
    requeue_if_needed(agents.departed(0))
    assert signal.getsignal(signum) == signal.SIG_IGN


def test_a_later_agent_does_not_repeat_the_decision(agents: Agents, controller: Controller) -> None:
    """Its own elapsed time may exceed ``total_time`` meanwhile."""
    requeue_if_needed(agents.departed(0))
    late = replace(agents.departed(1, NO_REQUEST, limits=Limits(100, 60.0)), end_signals=[signal.SIGTERM])
    requeue_if_needed(late)
    assert read_state(FileBackend(agents.paths)).phase is not Phase.CLOSED


def test_an_agent_without_notice_finds_the_request_of_another_agent(agents: Agents, controller: Controller) -> None:
    agents.departed(0)  # it has died since then
    requeue_if_needed(agents.departed(1, NO_REQUEST))
    assert controller.requeued == ["7"]
    assert [record.reason for record in agents.records] == ["the time limit is near"]


def test_the_claim_of_a_dead_agent_does_not_prevent_the_requeue(agents: Agents, controller: Controller) -> None:
    files.make_directory(agents.paths.requeues)
    assert files.publish_new(agents.paths.requeue("7", 0), b"{}")
    requeue_if_needed(agents.departed(0))
    assert controller.requeued == ["7"]


def test_without_scontrol_the_request_is_left_to_the_batch_script(agents: Agents, controller: Controller) -> None:
    controller.answer = controller.refuse
    requeue_if_needed(agents.departed(0))
    requeue_if_needed(agents.departed(1, NO_REQUEST))
    assert "requeue-7.0" in files.names(agents.paths.slurm)
    assert controller.requeued == ["7"], "an agent that sees the request file does not ask SLURM"
    assert any("left to the batch script" in line for line in agents.reported)


def test_a_request_counts_although_slurm_ends_scontrol_before_it_has_the_answer(
    agents: Agents, controller: Controller
) -> None:
    """SLURM ends all processes of the step as soon as it has received the request."""

    def end_scontrol() -> None:
        controller.end_the_job(requeued=True)
        controller.end_the_agent()
        raise SlurmError("scontrol requeue 7: exit status -15")

    controller.answer = end_scontrol
    requeue_if_needed(agents.departed(0))
    assert "requeue-7.0" not in files.names(agents.paths.slurm)
    assert not any("left to the batch script" in line for line in agents.reported)


def test_an_agent_without_an_answer_of_slurm_leaves_the_requeue_to_the_batch_script(
    agents: Agents, controller: Controller
) -> None:
    """It ends at once: SLURM 24.05 to 26.05 start a job twice if it still runs at the end of its grace period."""
    requeue_if_needed(agents.departed(0, Notice("SIGTERM, and SLURM did not answer why", 5.0, "unknown")))
    assert (agents.paths.slurm / "requeue-7.0").read_text() == "unknown\n"
    assert controller.requeued == []


def test_a_job_without_requeue_reports_how_to_continue_the_run(agents: Agents, controller: Controller) -> None:
    agents.departed(0, NO_REQUEST)
    requeue_if_needed(agents.departed(1, NO_REQUEST))
    assert controller.requeued == []
    assert any("--resume" in line for line in agents.reported)


def test_a_run_that_must_not_continue_is_closed(agents: Agents, controller: Controller) -> None:
    requeue_if_needed(agents.departed(0, limits=Limits(0, math.inf)))
    state = read_state(FileBackend(agents.paths))
    assert (state.phase, controller.requeued) == (Phase.CLOSED, [])
    assert "slurm.max_requeues is 0" in state.reason


NEVER = replace(PREEMPTED, requeue="never")


@pytest.mark.parametrize(
    ("notice", "limits", "forbidden"),
    [
        pytest.param(NEVER, ANY, ["7"], id="preempted without requeue"),
        pytest.param(PREEMPTED, Limits(0, math.inf), ["7"], id="too many preemptions"),
        pytest.param(REQUEST, Limits(0, math.inf), [], id="at its time limit, after which SLURM requeues no job"),
        pytest.param(NO_REQUEST, ANY, [], id="stopped by another agent's notice"),
    ],
)
def test_slurm_is_prevented_from_requeueing_a_job(
    notice: Notice, limits: Limits, forbidden: list[str], agents: Agents, controller: Controller
) -> None:
    requeue_if_needed(agents.departed(0, notice, limits))
    assert (controller.forbidden, controller.requeued) == (forbidden, [])


def test_a_requeue_that_cannot_be_prevented_is_reported(
    agents: Agents, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "forbid_requeue", lambda job: controller.refuse())
    requeue_if_needed(agents.departed(0, NEVER))
    assert "scontrol: not found; SLURM may start job 7 again" in agents.reported[0]


@pytest.mark.parametrize(
    ("notice", "requeued"),
    [(REQUEST, ["7"]), (NO_REQUEST, []), (NEVER, [])],
    ids=["requested", "not requested", "never"],
)
def test_a_job_is_requeued_although_the_directory_fails(
    notice: Notice, requeued: list[str], agents: Agents, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = agents.departed(0, notice)

    def fail(*_: object) -> list[str]:
        raise StoreError("stale file handle")

    for name in ("names", "publish", "publish_new", "make_directory"):
        monkeypatch.setattr(files, name, fail)
    requeue_if_needed(agent)
    assert controller.requeued == requeued
    assert "stale file handle" in agents.reported[0]
    assert "--resume" in agents.reported[0]


@pytest.mark.parametrize(
    ("itself", "requests"),
    [pytest.param(False, ["7"], id="before 24.05"), pytest.param(True, [], id="SLURM requeues by itself")],
)
def test_a_job_that_is_preempted_with_grace_is_started_once(
    itself: bool, requests: list[str], agents: Agents, controller: Controller
) -> None:
    controller.info = replace(controller.info, preempted=True)
    controller.requeues_preempted = itself
    requeue_if_needed(agents.departed(0, PREEMPTED))
    requeue_if_needed(agents.departed(1, NO_REQUEST))
    assert (controller.requeued, controller.info.restarts, controller.twice) == (requests, 1, False)


def test_a_batch_script_that_handles_sigterm_does_not_keep_the_job(agents: Agents, controller: Controller) -> None:
    controller.info = replace(controller.info, preempted=True)
    controller.batch_script_ends = False
    requeue_if_needed(agents.departed(0, PREEMPTED))
    assert (controller.requeued, controller.info.restarts) == (["7"], 1)


def test_a_job_that_slurm_has_requeued_is_not_requeued_again(agents: Agents, controller: Controller) -> None:
    """Its node may have been lost, or another agent was faster."""
    controller.info = replace(controller.info, restarts=1)
    requeue_if_needed(agents.departed(0))
    assert controller.requeued == []


def test_a_job_that_slurm_holds_after_many_requeues_is_released(agents: Agents, controller: Controller) -> None:
    controller.info = replace(controller.info, preempted=True, held=True)
    controller.requeues_preempted = True
    requeue_if_needed(agents.departed(0, PREEMPTED))
    assert (controller.requeued, controller.released) == ([], ["7"])


def test_an_element_of_a_pool_requeues_only_itself(agents: Agents, controller: Controller) -> None:
    agent = agents.departed(0)
    requeue_if_needed(replace(agent, task=replace(agent.task, nodes=1, array_job="7", array_task=3)))
    assert controller.requeued == ["7_3"]


def test_delayed_signals_are_harmless(agents: Agents, controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM may repeat its warning after the workers have stopped."""

    def warned_again(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR2)

    agent, before = agents.departed(0), [signal.SIGTERM]
    controller.answer = lambda: before.clear() if not agent.end_signals else None
    monkeypatch.setattr(requeue, "_await_other_agents", warned_again)
    requeue_if_needed(agent)
    assert controller.requeued == ["7"]
    assert before == [], "SLURM's answer is distinguished from its warnings"
