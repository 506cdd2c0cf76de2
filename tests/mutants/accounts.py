"""Possible faults of the accounts and explanations of a run. Each is one edit of the source."""

from tests.protocol.under_test import ACCOUNT, EVIDENCE, EXPLANATION, JOURNAL, ROUND_FACTS, SEGMENTS, Patch

MUTANTS = {
    "the time after the last event of a dead agent is left out": Patch(
        SEGMENTS, "yield lived, life.end, Category.UNKNOWN, after", "yield lived, lived, Category.UNKNOWN, after"
    ),
    "the death that others have noticed does not end the life of an agent": Patch(
        SEGMENTS, "end = max(last, death.noticed)", "end = last"
    ),
    "a dead agent has done what it did at its last event until its death was noticed": Patch(
        SEGMENTS, "max(life.last, renewed or 0)", "life.end"
    ),
    "a dead agent was dead since its last event": Patch(SEGMENTS, "max(life.last, renewed or 0)", "life.last"),
    "a round without marks so far is unknown": Patch(
        ROUND_FACTS, "                found.told = True\n", "                pass\n"
    ),
    "steps that are made again count as useful": Patch(
        SEGMENTS, "(redone, Category.REDONE)", "(redone, Category.USEFUL)"
    ),
    "the time of saves counts twice": Patch(
        SEGMENTS, "(left - saving - compiling, Category.USEFUL)", "(left - compiling, Category.USEFUL)"
    ),
    "a hang counts as detection": Patch(
        SEGMENTS,
        "yield faulty, end, Category.HANG if round.hung else Category.DETECTION, round.number\n\n\n",
        "yield faulty, end, Category.DETECTION, round.number\n\n\n",
    ),
    "workers that are asked to stop count as stopped": Patch(
        SEGMENTS, "stops_at_step = training.training is not None and", "stops_at_step = False and"
    ),
    "events are ordered by the clocks of the nodes": Patch(
        JOURNAL, "by_boot = offset is not None and event.up is not None", "by_boot = False"
    ),
    "the steps of earlier rounds are forgotten": Patch(
        ROUND_FACTS, "furthest = max(furthest, before + each.steps)", "furthest = 0"
    ),
    "the fault begins with the decision": Patch(
        ROUND_FACTS,
        "signs = [*facts.worker_ends, *facts.fenced, *seen]",
        "signs = [*facts.fenced]",
    ),
    "an echo is the cause": Patch(
        EXPLANATION,
        "first = next((each for each in evidence.failed() if not each.is_echo), None)",
        "first = next(iter(evidence.failed()), None)",
    ),
    "the loss of a node is the cause whatever came before": Patch(
        EXPLANATION,
        "own = [each for each in evidence.failed() if not each.is_echo and each.node != name]",
        "own = list[FailedWorker]()",
    ),
    "a worker that was asked to stop has failed": Patch(
        EVIDENCE,
        "if event.exit_code and not event.requested:",
        "if event.exit_code:",
    ),
    "an agent is left out that has ended in a round whose events are kept": Patch(
        ACCOUNT, "if life.end < began", "if life.end < until"
    ),
    "the time that was folded counts twice": Patch(ACCOUNT, "max(segment.begin, begin))", "segment.begin)"),
    "the steps of folded rounds are forgotten": Patch(ROUND_FACTS, "fold.steps if fold else 0", "0"),
    "folded faults are forgotten": Patch(ACCOUNT, "faults=(*before.faults, *faults)", "faults=(*faults,)"),
    "the sums over folded faults are forgotten": Patch(
        ACCOUNT, "fault_sums=before.fault_sums + sums_of(faults)", "fault_sums=sums_of(faults)"
    ),
    "folded faults are summed twice": Patch(
        ACCOUNT, "for fault in faults if fault.round >= before.kept", "for fault in faults"
    ),
    "a fold describes all faults": Patch(ACCOUNT, "tuple(faults[-KEPT_FAULTS:])", "tuple(faults)"),
    "the faults of kept rounds are folded": Patch(
        ACCOUNT, "for fault in found.faults if fault.round < kept", "for fault in found.faults"
    ),
    "the sums of kept rounds are folded": Patch(
        ACCOUNT, "for number, each in sums.items() if number < kept", "for number, each in sums.items()"
    ),
}

BY_TESTS = dict.fromkeys(MUTANTS, "tests/accounting")
