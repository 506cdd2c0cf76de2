"""The examination of a round that makes no progress.

Pure. The agent that notices it requests an examination, unless another agent was faster. All agents then report on
their workers. The agent that has made the request, the examiner, collects the reports and concludes the examination.
The round continues meanwhile. If the examiner dies, the round ends in any case.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from hpcelastic.protocol.decide import Decision, describe
from hpcelastic.protocol.findings import Hang, HangAction
from hpcelastic.protocol.state import Participant, Phase, State
from hpcelastic.protocol.transitions import Mover, checked


def examine(state: State, round: int, examiner: str, why: str, seen: int) -> Decision:
    """Request an examination of ``round``. ``seen`` is the number of the newest examination that the requester knows.

    Nothing changes if the round has ended, or a newer examination was requested.
    """
    number = 0 if state.hang is None else state.hang.number
    if state.phase is not Phase.RUNNING or state.round != round or number != seen:
        return Decision(None, describe(state))
    return steer(state, replace(state, hang=Hang(number + 1, round, examiner), reason=why))


def conclude(state: State, number: int, verdict: str, ranks: Iterable[int], action: HangAction) -> Decision:
    """Conclude the examination ``number``. Nothing changes if the round has ended, or it is concluded already.

    To exclude the nodes of ``ranks`` becomes a restart if too few nodes would be left.
    """
    hang = state.hang
    if state.phase is not Phase.RUNNING or hang is None or hang.number != number or hang.action:
        return Decision(None, describe(state))
    names = {participant.name for participant in participants_of(state, ranks)}
    if action == "exclude" and state.settings.nodes.most_of(places_without(state, names)) < state.settings.nodes.min:
        action = "restart"
    concluded = replace(hang, verdict=verdict, ranks=tuple(ranks), action=action)
    drained = {*state.drained, *names} if action == "exclude" else state.drained
    reason = f"no hang: {verdict}" if action == "none" else verdict
    return steer(state, replace(state, hang=concluded, drained=tuple(sorted(drained)), reason=reason))


def places_without(state: State, names: Collection[str]) -> list[str]:
    """Return the places of the members of the round without the nodes with these names; see `NodeRange.most_of`."""
    return [participant.topology for participant in state.participants if participant.name not in names]


def participants_of(state: State, ranks: Iterable[int]) -> list[Participant]:
    """Return the members of the round that have workers with these ranks, in the order of ranks."""
    wanted, first, found = {*ranks}, 0, []
    for participant in state.participants:
        after = first + participant.local_world_size
        if wanted & {*range(first, after)}:
            found.append(participant)
        first = after
    return found


def steer(state: State, wanted: State) -> Decision:
    """Return the decision to make ``wanted`` the next state, in which the round continues."""
    return Decision(checked(Mover.STEER, state, wanted), wanted.reason)
