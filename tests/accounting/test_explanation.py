"""Why a round has ended: the rules, and the chain of events."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from hpcelastic.accounting import account
from hpcelastic.accounting.evidence import FailureText
from hpcelastic.accounting.explanation import Explanation, explain_round, worst_round
from hpcelastic.accounting.journal import Job
from hpcelastic.health.known_causes import Blame, Certainty
from hpcelastic.protocol.events import (
    AgentRestarted,
    Decided,
    Event,
    Fenced,
    HangExamined,
    HardwareFound,
    Leaving,
    PeerSuspected,
    SignalReceived,
    StoreFailed,
    WorkerEnded,
)
from hpcelastic.protocol.state import Cause, Phase

from .logs import Node, journal, micros, workers_started
from .test_account import begin, failing_run

LOST = "n2@0-a"
ECHO = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4711"


def ended(cause: Cause, reason: str, lost: str = "", **texts: str | FailureText) -> Callable[..., Explanation]:
    """Return a function that explains a round that ended at 20 s, after the events of the nodes n1 and n2."""

    def explained(n1: dict[float, Event], n2: dict[float, Event]) -> Explanation:
        first, second = Node("n1"), Node("n2")
        for node, events in ((first, n1), (second, n2)):
            begin(node)
            for time, event in sorted(events.items()):
                node.log(time, event)
        first.state(20.0, Phase.JOINING, 1, cause=cause, lost=lost, reason=reason)
        known = journal(first, second)
        found = {
            int(rank.removeprefix("rank")): text if isinstance(text, FailureText) else FailureText(text)
            for rank, text in texts.items()
        }
        return explain_round(known, account(known), 1, found)

    return explained


def worker(rank: int, exit_code: int = 1) -> WorkerEnded:
    return WorkerEnded(round=1, rank=rank, exit_code=exit_code)


def hang(verdict: str, *, certain: bool = True) -> HangExamined:
    return HangExamined(
        round=1,
        number=1,
        verdict=verdict,
        ranks=(1,),
        certain=certain,
        text="rank 1 on n2 has not entered all_reduce",
        action="restart",
        path="hangs/round-0001/01",
    )


LINK, REFUSED = PeerSuspected(peer=LOST, sign="link lost"), PeerSuspected(peer=LOST, sign="refused")

CASES = [
    pytest.param(
        ended(Cause.WORKER, "rank 0 failed on n1: ValueError: bad label", rank0="ValueError: bad label"),
        {18.0: worker(0)},
        {18.2: worker(1)},
        ("exception", Blame.PROGRAM, Certainty.LIKELY, "n1", 0),
        id="an exception",
    ),
    pytest.param(
        ended(Cause.WORKER, "", rank0="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
        {18.0: worker(0)},
        {},
        ("cuda-out-of-memory", Blame.PROGRAM, Certainty.CERTAIN, "n1", 0),
        id="a known message",
    ),
    pytest.param(
        ended(Cause.WORKER, "", rank0=ECHO, rank1="ValueError: bad label"),
        {17.9: worker(0)},
        {18.0: worker(1)},
        ("exception", Blame.PROGRAM, Certainty.LIKELY, "n2", 1),
        id="an echo that is seen first",
    ),
    pytest.param(
        ended(Cause.WORKER, "", rank0="SystemExit: 1", rank1="ValueError: bad label"),
        {17.9: replace(worker(0), requested=True)},
        {18.0: worker(1)},
        ("exception", Blame.PROGRAM, Certainty.LIKELY, "n2", 1),
        id="a worker that was asked to stop has ended before",
    ),
    pytest.param(
        ended(Cause.WORKER, "rank 0 failed on n1: killed by SIGKILL"),
        {18.0: worker(0, -9)},
        {},
        ("signal", Blame.UNKNOWN, Certainty.LIKELY, "n1", 0),
        id="a signal of unknown origin",
    ),
    pytest.param(
        ended(Cause.NODE, "n2 was lost", LOST),
        {18.0: LINK, 18.1: REFUSED},
        {},
        ("processes-gone", Blame.NODE, Certainty.CERTAIN, "n2", None),
        id="all processes of a node",
    ),
    pytest.param(
        ended(Cause.NODE, "n2 was lost", LOST),
        {18.0: LINK},
        {},
        ("node-gone", Blame.NODE, Certainty.CERTAIN, "n2", None),
        id="a node whose connections broke",
    ),
    pytest.param(
        ended(Cause.NODE, "n2 was lost", LOST, rank0=ECHO),
        {18.0: LINK, 18.1: worker(0)},
        {},
        ("node-gone", Blame.NODE, Certainty.CERTAIN, "n2", None),
        id="a node, and the failures that followed",
    ),
    pytest.param(
        ended(Cause.NODE, "n2 was lost", LOST, rank0="ValueError: bad label"),
        {17.0: worker(0), 18.0: LINK},
        {},
        ("exception", Blame.PROGRAM, Certainty.LIKELY, "n1", 0),
        id="a failure before the loss of a node",
    ),
    pytest.param(
        ended(Cause.NODE, "n2 was lost", LOST),
        {},
        {},
        ("node-silent", Blame.NODE, Certainty.LIKELY, "n2", None),
        id="a node that became silent",
    ),
    pytest.param(
        ended(Cause.NODE, "n2 was lost", LOST),
        {},
        {17.0: StoreFailed(error="runs/r: Input/output error"), 19.0: Fenced(round=1)},
        ("lease-filesystem", Blame.FILESYSTEM, Certainty.CERTAIN, "n2", None),
        id="the filesystem of a node",
    ),
    pytest.param(
        ended(Cause.NODE, "n2 was lost", LOST),
        {},
        {19.0: Fenced(round=1)},
        ("lease-expired", Blame.NODE, Certainty.LIKELY, "n2", None),
        id="a node that hung",
    ),
    pytest.param(
        ended(Cause.NODE, "n2 was lost", LOST),
        {},
        {15.0: SignalReceived(signal="SIGTERM")},
        ("stopped-node", Blame.SCHEDULER, Certainty.LIKELY, "n2", None),
        id="a node that SLURM stopped",
    ),
    pytest.param(
        ended(Cause.NODE, "n2 was lost", LOST),
        {18.0: LINK, 18.1: REFUSED},
        {19.0: AgentRestarted(number=1, reason="killed by SIGKILL")},
        ("agent-died", Blame.NODE, Certainty.CERTAIN, "n2", None),
        id="an agent that was restarted",
    ),
    pytest.param(
        ended(Cause.WORKER, "rank 1 failed on n2: killed by SIGKILL, because it hung"),
        {},
        {17.0: workers_started(1, rank=1), 18.0: hang("behind"), 18.2: worker(1, -9)},
        ("hang-behind", Blame.PROGRAM, Certainty.CERTAIN, "n2", 1),
        id="a hang",
    ),
    pytest.param(
        ended(Cause.WORKER, "rank 0 failed on n1: killed by SIGKILL, because it hung"),
        {18.0: hang("mismatch"), 18.2: worker(0, -9)},
        {17.0: workers_started(1, rank=1)},
        ("hang-mismatch", Blame.PROGRAM, Certainty.CERTAIN, "n2", 1),
        id="a hang whose rank has not ended",
    ),
    pytest.param(
        ended(Cause.WORKER, ""),
        {18.0: hang("connection", certain=False)},
        {17.0: workers_started(1, rank=1), 18.2: worker(1, -9)},
        ("hang-connection", Blame.NETWORK, Certainty.LIKELY, "n2", 1),
        id="a hang of the network",
    ),
    pytest.param(
        ended(Cause.LEAVE, "n2 leaves within 60 s: SLURM preempts the job"),
        {},
        {18.0: Leaving(reason="SLURM preempts the job", seconds=60.0)},
        ("leave", Blame.SCHEDULER, Certainty.CERTAIN, "n2", None),
        id="a preemption",
    ),
    pytest.param(
        ended(Cause.LEAVE, "n2 is drained"),
        {},
        {18.0: Leaving(reason="n2 is drained", seconds=60.0)},
        ("leave", Blame.USER, Certainty.CERTAIN, "n2", None),
        id="a drain",
    ),
    pytest.param(
        ended(Cause.LEAVE, "n2 is drained by the scheduler"),
        {},
        {18.0: Leaving(reason="n2 is drained by the scheduler", seconds=60.0)},
        ("leave", Blame.SCHEDULER, Certainty.CERTAIN, "n2", None),
        id="a drain by the scheduler",
    ),
    pytest.param(
        ended(Cause.LEAVE, "n2 leaves within 60 s: GPUs: GPU 3: Xid 79"),
        {},
        {
            17.0: HardwareFound(check="GPUs", seen="GPU 3: Xid 79", severity="leave at once"),
            18.0: Leaving(reason="GPUs: GPU 3: Xid 79", seconds=0.0),
        },
        ("hardware", Blame.NODE, Certainty.CERTAIN, "n2", None),
        id="hardware",
    ),
    pytest.param(
        ended(Cause.JOIN, "n3 joins"), {}, {}, ("join", Blame.SCHEDULER, Certainty.CERTAIN, "", None), id="a node joins"
    ),
    pytest.param(ended(Cause.WORKER, ""), {}, {}, ("", Blame.UNKNOWN, None, "", None), id="nothing is known"),
    pytest.param(
        ended(Cause.WORKER, "", rank0=ECHO),
        {18.0: worker(0)},
        {},
        ("", Blame.UNKNOWN, None, "", None),
        id="only echoes",
    ),
]


@pytest.mark.parametrize(("explained", "n1", "n2", "expected"), CASES)
def test_the_cause_of_the_end_of_a_round(
    explained: Callable[..., Explanation],
    n1: dict[float, Event],
    n2: dict[float, Event],
    expected: tuple[str, Blame, Certainty | None, str, int | None],
) -> None:
    found = explained(n1, n2)
    assert (found.id, found.blame, found.certainty, found.node, found.rank) == expected
    assert found.cause.endswith(".") and found.cause[0].isupper() and "\n" not in found.cause
    assert found.known == (expected[2] is not None)


def test_the_chain_has_what_led_to_the_end_and_what_followed_with_evidence() -> None:
    first, second = failing_run()
    first.events.insert(4, first.events.pop(4))
    known = journal(first, second)
    found = explain_round(known, account(known), 1, {0: FailureText("ValueError: bad label", path="logs/x.err")})
    origin = found.chain[0].time
    assert [(round(link.time - origin, 3), link.node, link.text) for link in found.chain] == [
        (0.0, "n1", "rank 0 ended with 1"),
        (0.3, "n1", "decided:"),
        (2.5, "", "round 2 begins on 2 nodes"),
        (4.5, "", "the training continues"),
    ]
    assert [link.evidence for link in found.chain] == ["events/n1@0-a.jsonl:0"] * 2 + ["", ""]
    assert found.remedy == "read logs/x.err, and correct the script"


def test_the_last_fault_is_explained_first() -> None:
    known = journal(*failing_run())
    assert worst_round(account(known)) == 1
    node = Node("n1")
    begin(node)
    assert worst_round(account(journal(node, now=9.0))) == 1
    node.state(30.0, Phase.CLOSED, 1, reason="cancelled by eva")
    closed = journal(node)
    assert worst_round(account(closed)) == 1
    found = explain_round(closed, account(closed), 1, {})
    assert (found.id, found.blame, found.cause) == ("closed", Blame.USER, "The run was closed: cancelled by eva.")
    assert worst_round(account(journal())) is None


def test_a_round_that_goes_on_or_has_succeeded_has_no_fault() -> None:
    node = Node("n1")
    begin(node)
    running = journal(node, now=30.0)
    assert explain_round(running, account(running), 1, {}).id == "runs"
    node.state(30.0, Phase.SUCCEEDED, 1)
    done = journal(node)
    assert explain_round(done, account(done), 1, {}).id == "succeeded"


@pytest.mark.parametrize(
    ("states", "events", "expected"),
    [
        pytest.param(("TIMEOUT",), {}, ("slurm-time-limit", Blame.SCHEDULER, Certainty.CERTAIN), id="time limit"),
        pytest.param(("NODE_FAIL",) * 2, {}, ("slurm-node-failure", Blame.NODE, Certainty.CERTAIN), id="elements"),
        pytest.param(("CANCELLED",), {}, ("slurm-cancelled", Blame.USER, Certainty.LIKELY), id="cancelled"),
        pytest.param(("OUT_OF_MEMORY",), {}, ("memory-limit", Blame.PROGRAM, Certainty.CERTAIN), id="memory"),
        pytest.param(("FAILED", "TIMEOUT"), {}, ("", Blame.UNKNOWN, None), id="several states"),
        pytest.param((), {}, ("", Blame.UNKNOWN, None), id="nothing is known"),
        pytest.param(
            (),
            {29.0: SignalReceived(signal="SIGTERM")},
            ("stopped-run", Blame.UNKNOWN, Certainty.LIKELY),
            id="a signal",
        ),
    ],
)
def test_a_run_of_which_no_agent_is_left(
    states: tuple[str, ...], events: dict[float, Event], expected: tuple[str, Blame, Certainty | None]
) -> None:
    node = Node("n1")
    begin(node)
    for time, event in events.items():
        node.log(time, event)
    running = journal(node, now=500.0, last_sign=30.0)
    jobs = (Job("7", micros(-9.0), None, ("TIMEOUT", "FAILED")), Job("77", micros(0.0), None, states))
    known = replace(running, abandoned=True, jobs=jobs)
    accounts = account(known)
    assert worst_round(accounts) == 1
    found = explain_round(known, accounts, 1, {})
    assert (found.id, found.blame, found.certainty) == expected
    assert found.cause.startswith("No agent is left") and "--resume" in found.remedy
    if not found.known and states:
        assert "SLURM calls the jobs FAILED, TIMEOUT" in found.cause


def test_a_worker_that_was_stopped_while_an_exception_ended_it_is_at_fault() -> None:
    explained = ended(Cause.WORKER, "", rank0=ECHO, rank1="ValueError: bad label")
    found = explained({18.0: worker(0)}, {17.0: workers_started(1, rank=1)})
    assert (found.id, found.blame, found.certainty) == ("exception", Blame.PROGRAM, Certainty.LIKELY)
    assert (found.node, found.rank) == ("n2", 1)
    assert explained({18.0: worker(0)}, {}).id == "", "nobody knows where rank 1 was"
    message = "RuntimeError: Mismatched NCCL version detected"
    explained = ended(Cause.WORKER, f"rank 1 failed on n2: {message}", rank1=message)
    found = explained({}, {17.0: workers_started(1, rank=1)})
    assert (found.id, found.certainty) == ("nccl-version", Certainty.CERTAIN), "the round has ended by it"


def test_a_rank_that_hung_at_the_end_of_its_process_has_raised_an_exception() -> None:
    stopped = {17.0: workers_started(1, rank=1), 19.0: hang("behind")}
    raised = FailureText("ValueError: bad label (killed by SIGKILL)", "Traceback …\n[rank1]: ValueError: bad label\n")
    handled = replace(raised, traceback=f"{raised.traceback}step 8: loss 0.3\n")
    for text, expected in ((raised, ("exception", Certainty.LIKELY)), (handled, ("hang-behind", Certainty.CERTAIN))):
        found = ended(Cause.WORKER, "", rank1=text)({}, stopped)
        assert (found.id, found.certainty, found.rank) == (*expected, 1)


def test_decisions_about_the_next_round_are_no_part_of_the_chain() -> None:
    node = Node("n1")
    begin(node)
    node.fail(10.0, 1)
    node.state(11.0, Phase.JOINING, 1, cause=Cause.WORKER, reason="rank 0 failed on n1: x")
    node.log(12.0, Decided(version=3, phase=Phase.RUNNING, round=2, reason="round 2 formed", members=("n1",)))
    known = journal(node)
    texts = [link.text for link in explain_round(known, account(known), 1, {}).chain]
    assert texts == ["rank 0 ended with 1", "round 2 begins on 1 node"]
