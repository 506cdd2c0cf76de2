"""Possible faults of the accounts and explanations of a run. Each is one edit of the source."""

from tests.protocol.under_test import (
    ACCOUNT,
    EVENT_LOG,
    EVIDENCE,
    EXPLANATION,
    FOLDED,
    JOURNAL,
    OLD_ROUNDS,
    ROUND_FACTS,
    RUN_ACCOUNTS,
    SEGMENTS,
    Patch,
)

_OF_ACCOUNTS = {
    "the time after the last event of a dead agent is left out": Patch(
        SEGMENTS, "yield lived, life.end, Category.UNKNOWN, after", "yield lived, lived, Category.UNKNOWN, after"
    ),
    "the death that others have noticed does not end the life of an agent": Patch(
        SEGMENTS, "if death is None else death.noticed)", "if death is None else last)"
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
        ACCOUNT, "if life.end >= began:", "if life.end >= until:"
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

_OF_OLD_ROUNDS = {
    "a removal changes the numbers of later lines": (
        Patch(EVENT_LOG, "number = int(following[1]) - 1", "pass"),
        "tests/storage/test_events.py",
    ),
    "the description of an agent is removed": (
        Patch(EVENT_LOG, "[line for line in removed if _STARTED in line] + ", ""),
        "tests/storage/test_events.py",
    ),
    "the clock of an agent is removed": (
        Patch(EVENT_LOG, " + [line for line in removed if _MEASURED in line][-1:]", ""),
        "tests/storage/test_events.py",
    ),
    "a large log is read at each event": (
        Patch(EVENT_LOG, "size + MAX_BYTES / 2) * random", "0) * random"),
        "tests/storage/test_events.py",
    ),
    "events that no account has are removed": (
        Patch(OLD_ROUNDS, "min(folded.kept, self._newest - self._keep + 1)", "self._newest - self._keep + 1"),
        "tests/agent/test_old_rounds.py",
    ),
    "the events of the last rounds are removed": (
        Patch(OLD_ROUNDS, "min(folded.kept, self._newest - self._keep + 1)", "folded.kept"),
        "tests/agent/test_old_rounds.py",
    ),
    "an unreadable account counts as none": (
        Patch(
            OLD_ROUNDS,
            "    with as_store_error(paths.account):\n",
            "    data = None\n    with contextlib.suppress(OSError):\n",
        ),
        "tests/agent/test_old_rounds.py",
    ),
    "the log of an agent is removed with its lease": (
        Patch(OLD_ROUNDS, "        if round <= first:\n", "        if True:\n"),
        "tests/agent/test_old_rounds.py",
    ),
    "the leases of the newest start of a job are removed": (
        Patch(OLD_ROUNDS, "restart < newest[job]", "restart <= newest[job]"),
        "tests/agent/test_old_rounds.py",
    ),
    "all leases are listed in each round": (
        Patch(OLD_ROUNDS, "        self._swept = True\n", ""),
        "tests/agent/test_old_rounds.py",
    ),
    "a damaged account is replaced by one of the last rounds": (
        Patch(RUN_ACCOUNTS, "if journal.fold is None and first > 1:", "if False:"),
        "tests/api/test_accounts.py",
    ),
    "the last agent of a job that has ended is forgotten": (
        Patch(FOLDED, 'else ("", agent.job)\n', "else None\n            if place is None:\n                continue\n"),
        "tests/accounting/test_folds.py",
    ),
    "all agents that have ever been are kept": (
        Patch(FOLDED, "for agent in ended if agent.node in logs}", "for agent in ended}"),
        "tests/accounting/test_folds.py",
    ),
    "the nodes of earlier starts of a job are forgotten": (
        Patch(FOLDED, "replace(agent, job_nodes=most or None)", "agent"),
        "tests/accounting/test_folds.py",
    ),
}

MUTANTS = _OF_ACCOUNTS | {name: patch for name, (patch, _) in _OF_OLD_ROUNDS.items()}
BY_TESTS = dict.fromkeys(_OF_ACCOUNTS, "tests/accounting") | {
    name: tests for name, (_, tests) in _OF_OLD_ROUNDS.items()
}
