"""Whether a node takes part in a run: it is checked, and its past is looked at, before it says its first word."""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from hpcelastic.agent.signals import Handler, handled
from hpcelastic.errors import StoreError
from hpcelastic.health.checks import Premises, check_node
from hpcelastic.health.incidents import Incident, Trouble, note
from hpcelastic.health.memory import remembered
from hpcelastic.health.settings import HealthSettings
from hpcelastic.health.verdict import Verdict, in_words
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Member, Phase, Stand, State
from hpcelastic.rendezvous.rendezvous import read_state
from hpcelastic.store.backend import backend_of
from hpcelastic.store.bounded import bounded
from hpcelastic.store.paths import RunPaths

UNFIT = 3
"""Exit status of an agent whose node failed its check, or broke."""

_PATIENCE = 10.0
"""Seconds that the run's directory may take to be told why a node stays away."""

_NEEDED = 60.0
"""Seconds without a round after which a node that is out is taken all the same; never more than half of
``rendezvous.join_timeout``, after which the others give up."""

_LOOK = 2.0
"""Seconds between two looks of a node that stands aside."""


@dataclass(frozen=True)
class Candidate:
    """A node that may join."""

    paths: RunPaths
    member: Member
    settings: Settings
    health: HealthSettings
    environ: Mapping[str, str]
    movable: bool = False
    """Whether what started the agent can start it on another node instead."""


def refusal(candidate: Candidate, report: Callable[[str], None]) -> int | None:
    """None once the node may join; else the status with which its agent ends, at once or when the run has.

    ``report`` is given lines for a person. A node that is out stands aside until it is forgiven, its past has faded, or
    the run has had no round for so long that it seems to need the node. An agent that is movable does so only while
    no round runs.
    """
    if candidate.health.check and (seen := _checked(candidate, report)):
        _tell(candidate, Incident(candidate.member.machine, Trouble.CHECK, seen, time.time()))
        report(f"this node does not take part (status {UNFIT}); once it is put right: {_forgive(candidate)}")
        return UNFIT
    if candidate.health.exclude and (verdict := _out(candidate)):
        return _stand_aside(candidate, verdict, report)
    return None


def _checked(candidate: Candidate, report: Callable[[str], None]) -> str:
    """What is bad about the node, in words; empty if nothing is."""
    findings = check_node(Premises(candidate.paths, candidate.environ, candidate.health))
    for finding in findings:
        report(f"{'node check failed: ' if finding.bad else 'warning: '}{finding}")
    return "; ".join(f"{finding.check}: {finding.seen}" for finding in findings if finding.bad)


def _tell(candidate: Candidate, incident: Incident | None) -> None:
    """Say in the run's directory that this node stays away, so that nobody waits for it, and why."""

    def tell() -> None:
        if incident:
            note(candidate.paths, incident)
        # Under a name of its own: who has left never comes back, and this node may yet join.
        away = replace(candidate.member, node=f"{candidate.member.node}-away", stand=Stand.LEFT)
        backend_of(candidate.paths).lease(away.node).renew(away)

    with contextlib.suppress(StoreError, OSError):  # the others will find out by themselves, later
        bounded(tell, _PATIENCE, str(candidate.paths.root))


def _forgive(candidate: Candidate) -> str:
    return f"hpcelastic forgive {candidate.paths.root} {candidate.member.machine}"


def _out(candidate: Candidate) -> Verdict | None:
    """The verdict on this node if it is out."""
    machine = candidate.member.machine
    verdict = remembered(candidate.paths, candidate.health.half_life, machine).get(machine)
    return verdict if verdict is not None and verdict.out else None


def _stand_aside(candidate: Candidate, verdict: Verdict, report: Callable[[str], None]) -> int | None:
    """Wait until the node may join, or the run has ended; see `refusal`."""
    report(f"this node was bad lately: {'; '.join(verdict.reasons[:3])}")
    report(f"it stands aside for {in_words(verdict.back_in)}; to take it in now: {_forgive(candidate)}")
    _tell(candidate, None)
    patience = min(_NEEDED, candidate.settings.rendezvous.join_timeout / 2)
    idle_since: float | None = None
    with _signals_end_it():
        while True:
            time.sleep(max(_LOOK, candidate.settings.rendezvous.poll))
            try:
                state, still = read_state(candidate.paths), _out(candidate)
            except StoreError:
                continue  # the run's agents say what is wrong with it
            if state.phase.final:
                return _ended(state)
            if still is None:
                report("this node takes part again")
                return None
            if candidate.movable and state.phase is Phase.RUNNING:
                return UNFIT
            now = time.monotonic()
            idle_since = None if state.phase is Phase.RUNNING else idle_since or now
            if idle_since is not None and now - idle_since >= patience:
                report(f"no round for {patience:g} s: this node takes part although it was bad lately")
                return None


def _ended(state: State) -> int:
    print(f"hpcelastic: the run has {state.phase.value}: {state.reason}", file=sys.stderr)
    return 0 if state.phase is Phase.SUCCEEDED else 1


@contextlib.contextmanager
def _signals_end_it() -> Iterator[None]:
    """Within the block SIGTERM ends this process, whoever has installed another handler, and warnings do not."""

    def end(signum: int, _frame: object) -> None:
        sys.exit(128 + signum)

    handlers: dict[int, Handler] = dict.fromkeys((signal.SIGTERM, signal.SIGINT), end)
    handlers |= dict.fromkeys((signal.SIGUSR1, signal.SIGUSR2), signal.SIG_IGN)
    with handled(handlers):
        yield
