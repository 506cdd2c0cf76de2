"""Possible faults of the verdict on a hang, of its examination, and of the restart budget. Tables find them."""

from tests.protocol.under_test import BUDGET, EXAMINATION, HANGS, Patch

_CHAIN = "first = {other for others in awaited.values() for other in others} - awaited.keys()"

MUTANTS = {
    "a rank that waits itself is named": Patch(HANGS, _CHAIN, _CHAIN.removesuffix(" - awaited.keys()")),
    "a rank that is ahead counts as behind": Patch(HANGS, "if theirs < count}", "if theirs > count}"),
    "a rank that works is ended": Patch(HANGS, "if {*verdict.ranks} <= {*working} if", "if False if"),
    "a rank that progresses is ended": Patch(HANGS, "    if progressed:\n", "    if False:\n"),
    "a stopped rank is not noticed": Patch(HANGS, "    if stopped:\n", "    if False:\n"),
    "the ranks of the common collective are named": Patch(HANGS, "names[rank] != common", "names[rank] == common"),
    "a node that has not reported makes no difference": Patch(HANGS, "    if missing:\n", "    if False:\n"),
    "a collective that was begun in advance is waited for": Patch(
        HANGS, "if by_rank[rank].frames and not waits(by_rank[rank])}", "if False}"
    ),
    "a later request replaces an examination": Patch(EXAMINATION, " or number != seen:", ":"),
    "a round that has ended is examined": Patch(EXAMINATION, " or state.round != round or", " or"),
    "an examination is concluded twice": Patch(EXAMINATION, " or hang.action:", ":"),
    "a node is excluded that the run needs": Patch(EXAMINATION, "< state.settings.nodes.min:", "< 0:"),
    "the budget returns without time": Patch(BUDGET, "int(passed // settings.refill_interval)", "1"),
    "more of the budget returns than was spent": Patch(
        BUDGET, "min(state.restarts, by_time + by_steps)", "by_time + by_steps"
    ),
    "the rest of an interval is lost": Patch(BUDGET, "is_rest = by_time < state.restarts and", "is_rest = False and"),
    "a crash loop goes on": Patch(BUDGET, "state.charge.repeats >= limit", "False"),
    "failures at different steps are a crash loop": Patch(BUDGET, 'f"step {failure.step}, ', 'f"'),
    "failures at different places are a crash loop": Patch(BUDGET, "{':'.join(places[-1])}: ", ""),
    "the failure of a collective is a crash loop": Patch(BUDGET, " or failure.collective or", " or"),
    "an error of the operating system is a crash loop": Patch(BUDGET, " or _OF_SYSTEM.search(failure.message):", ":"),
    "repetitions are counted over other failures": Patch(
        BUDGET, "last.repeats + 1 if what and what == last.failure else 1", "last.repeats + 1"
    ),
    "steps before the last failure count": Patch(BUDGET, "max(0, progress - last.progress)", "max(0, progress)"),
}
