"""The stragglers of a round in the state of the run.

Pure. The agent of rank 0 compares the ranks of the round; see `hpcelastic.health.stragglers`. It records what it finds,
so that every observer of the run sees it. It may exclude the nodes of the stragglers if other nodes stand by.
"""

from collections.abc import Collection
from dataclasses import replace

from hpcelastic.protocol.decide import Decision, describe
from hpcelastic.protocol.findings import Slow
from hpcelastic.protocol.hangs import participants_of, places_without, steer
from hpcelastic.protocol.state import Phase, State


def record_stragglers(state: State, slow: Slow, exclude: Collection[int] = ()) -> Decision:
    """Record ``slow``. Nothing changes if its round has ended, or all is recorded already.

    The nodes of the ranks in ``exclude`` are drained if as many nodes stand by, and others stay.
    """
    names, nodes = {participant.name for participant in participants_of(state, exclude)}, state.settings.nodes
    # It is not known where the others stand by, so with nodes.within the members that are left must be enough.
    if nodes.within:
        enough = nodes.most_of(places_without(state, names)) >= nodes.min
    else:
        enough = len(state.participants) > len(names)
    if len(names) > len(state.standbys) or not enough:
        names = set()
    drained = tuple(sorted({*state.drained, *names}))
    if state.phase is not Phase.RUNNING or state.round != slow.round or (state.slow, state.drained) == (slow, drained):
        return Decision(None, describe(state))
    reason = state.reason
    if names:
        reason = f"{slow.text}; {', '.join(sorted(names))} {'is' if len(names) == 1 else 'are'} replaced"
    return steer(state, replace(state, slow=slow, drained=drained, reason=reason))
