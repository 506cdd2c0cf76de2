"""Possible faults of what is pure in the supervision of progress: verdicts, examinations, budgets, returns.

Tables find them.
"""

from tests.protocol.under_test import BUDGET, EXAMINATION, HANGS, ROLLBACK, STRAGGLERS, Patch

MUTANTS = {
    "a rank that waits itself is named": Patch(HANGS, "first = behind - ahead", "first = behind"),
    "a rank that is ahead counts as behind": Patch(HANGS, "return ahead, behind", "return behind, ahead"),
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
    "the end of a worker by a signal is a crash loop": Patch(BUDGET, " or failure.exit_code < 0:", ":"),
    "an error of the operating system is a crash loop": Patch(BUDGET, " or _OF_SYSTEM.search(failure.message):", ":"),
    "repetitions are counted over other failures": Patch(
        BUDGET, "last.repeats + 1 if what and what == last.failure else 1", "last.repeats + 1"
    ),
    "a poisoned state is a crash loop": Patch(BUDGET, "if failure.rollback or", "if"),
    "returns to an older state are not counted": Patch(ROLLBACK, "last.number + 1 if", "1 if"),
    "returns because of other steps are counted": Patch(
        ROLLBACK, "last.failed_step == demand.failed_step", "last.failed_step >= 0"
    ),
    "a return excludes no round": Patch(ROLLBACK, "Rollback(failure.round, demand.step", "Rollback(0, demand.step"),
    "the node of a poisoned state stays": Patch(ROLLBACK, "if number == ATTEMPTS and", "if False and"),
    "a node is drained that the run needs": Patch(
        ROLLBACK, " and nodes.most_of(m.topology for m in there if m.name != name) >= nodes.min:", ":"
    ),
    "returns never end": Patch(ROLLBACK, "rollback.number <= ATTEMPTS", "True"),
    "another failure ends the returns": Patch(
        ROLLBACK, " or not any(failure.rollback for failure in state.failures):", ":"
    ),
    "a difference within the error of the samples is a straggler": Patch(
        STRAGGLERS, "_STANDARD_ERRORS * fraction.standard_error", "0.0"
    ),
    "a straggler vanishes by chance": Patch(STRAGGLERS, "_HYSTERESIS if", "1.0 if"),
    "each rank above the median is a straggler": Patch(STRAGGLERS, "> factor * median:", "> median:"),
    "of two ranks none is slow": Patch(STRAGGLERS, "[(len(fractions) - 1) // 2]", "[len(fractions) // 2]"),
    "steps before the last failure count": Patch(BUDGET, "max(0, progress - last.progress)", "max(0, progress)"),
}
