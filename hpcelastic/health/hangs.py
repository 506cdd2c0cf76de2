"""Judges a hang: which rank is the reason why a round makes no progress.

Pure. Each agent reports on its workers (`RankReport`), and `judge` compares the reports of all ranks. A process group
counts the collectives that a rank has begun in it. A rank that has begun fewer than another member of the group keeps
that member waiting. Without such a difference, the stacks tell which ranks wait for others.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from hpcelastic.health.cuts import Cuts


class HangKind(str, Enum):
    """The kind of a hang, or why it is none."""

    STOPPED = "stopped"
    """A signal has stopped the process of a rank."""

    BEHIND = "behind"
    """A rank has not entered a collective in which others wait."""

    DEADLOCK = "deadlock"
    """Ranks wait for each other in different process groups."""

    MISMATCH = "mismatch"
    """Ranks have entered different collectives of one process group at the same time."""

    CONNECTION = "connection"
    """All ranks wait in the same collective, so a connection between them, or a device, does not work."""

    CUT = "cut"
    """Nodes do not reach each other although all of them are alive."""

    UNKNOWN = "unknown"
    """The reports do not tell which rank the others wait for."""

    PROGRESS = "progress"
    """The rank that others wait for still works: its stack changes, or it uses the processor."""


@dataclass(frozen=True)
class GroupReport:
    """A process group of a rank."""

    name: str
    """The name that torch gives the group. It is the same on all members."""

    description: str
    """The purpose of the group, as the script names it; may be empty."""

    size: int
    """Number of members."""

    begun: int
    """Number of collectives that the rank has begun in the group."""


@dataclass(frozen=True)
class RankReport:
    """The knowledge of an agent about a worker that makes no progress."""

    rank: int
    node: str
    state: str = ""
    """The state of the process in words, such as ``waiting``."""

    stopped: bool = False
    """Whether a signal has stopped the process."""

    blocked: bool = False
    """Whether the process is blocked in the kernel, so that no signal ends it."""

    frames: tuple[str, ...] = ()
    """The stack of the main thread, the innermost frame first, as ``FILE:LINE in FUNCTION``. Empty if it is unknown."""

    groups: tuple[GroupReport, ...] = ()
    """The process groups of the rank. Empty if it has none, or they are unknown."""

    works: bool = False
    """Whether the rank works although it makes no progress; see `HangKind.PROGRESS`."""

    progressed: bool = False
    """Whether the rank has made progress during the examination."""

    still: float = 0.0
    """Seconds for which its agent has seen no progress of the rank."""

    children: int | None = None
    """Number of processes that the worker has started and that have not ended; None if unknown."""


@dataclass(frozen=True)
class HangVerdict:
    """The result of an examination."""

    kind: HangKind
    ranks: tuple[int, ...]
    """The ranks that the others wait for. Empty if they are unknown, or no single rank is to blame."""

    certain: bool
    """Whether the reports prove it."""

    text: str
    """The result in one line."""


@dataclass(frozen=True)
class HangReport:
    """The knowledge of an agent in an examination."""

    node: str
    ranks: tuple[RankReport, ...]
    unreached: tuple[str, ...] = ()
    """The nodes of the round that this node does not reach."""


def cut_between(nodes: Sequence[HangReport], verdict: HangVerdict) -> HangVerdict:
    """Return the verdict if nodes do not reach each other, and no rank is to blame; else ``verdict``.

    ``nodes`` are in the order of ranks. The ranks of the verdict are those of the fewest nodes without which the others
    reach each other.
    """
    cuts = Cuts([report.node for report in nodes], [(each.node, other) for each in nodes for other in each.unreached])
    if not cuts.pairs or verdict.kind in (HangKind.STOPPED, HangKind.BEHIND, HangKind.PROGRESS):
        return verdict
    without = cuts.fewest()
    ranks = tuple(each.rank for report in nodes if report.node in without for each in report.ranks)
    return HangVerdict(HangKind.CUT, ranks, True, cuts.describe())


def judge(reports: Sequence[RankReport], missing: Sequence[str] = ()) -> HangVerdict:
    """Return the verdict on the ranks of a round. ``missing`` are nodes that have not reported."""
    by_rank = {report.rank: report for report in sorted(reports, key=lambda report: report.rank)}
    progressed = [rank for rank, report in by_rank.items() if report.progressed]
    if progressed:
        return HangVerdict(HangKind.PROGRESS, tuple(progressed), True, f"{_ranks(progressed)} made progress meanwhile")
    stopped = [rank for rank, report in by_rank.items() if report.stopped]
    if stopped:
        return _verdict(HangKind.STOPPED, by_rank, stopped, certain=True)
    verdict = _by_counts(by_rank) or _by_stacks(by_rank)
    working = [rank for rank in by_rank if by_rank[rank].works]
    if {*verdict.ranks} <= {*working} if verdict.ranks else working:
        return HangVerdict(
            HangKind.PROGRESS,
            verdict.ranks,
            False,
            f"{verdict.text}; {_ranks(working)} still work{'s' * (len(working) == 1)}",
        )
    if missing:
        names = ", ".join(missing)
        text = f"{verdict.text}; {names} {'has' if len(missing) == 1 else 'have'} not reported"
        return HangVerdict(verdict.kind, verdict.ranks, False, text)
    return verdict


# Counts of collectives


def _by_counts(by_rank: dict[int, RankReport]) -> HangVerdict | None:
    """Judge by the collectives that the ranks have begun in each group; None if these do not differ."""
    ahead, behind = _ahead_and_behind(by_rank)
    if not ahead:
        return None
    first = behind - ahead
    outside = [rank for rank in sorted(first) if not _in_collective(by_rank[rank])]
    if outside:
        return _verdict(HangKind.BEHIND, by_rank, outside, certain=True)
    if first:
        places = "; ".join(_place(by_rank[rank]) for rank in sorted(first | ahead)[:4])
        return HangVerdict(HangKind.MISMATCH, (), False, f"the ranks wait in different collectives: {places}")
    # Each rank is ahead of another one. A rank whose stack shows that it waits for no other rank has only begun a
    # collective in advance.
    idle = {rank for rank in ahead if by_rank[rank].frames and not waits(by_rank[rank])}
    first = behind & idle
    if first:
        return _verdict(HangKind.BEHIND, by_rank, sorted(first), certain=False)
    ranks = sorted(ahead)
    places = "; ".join(_place(by_rank[rank]) for rank in ranks[:4])
    return HangVerdict(HangKind.DEADLOCK, (), True, f"{_ranks(ranks)} wait for each other: {places}")


def _ahead_and_behind(by_rank: dict[int, RankReport]) -> tuple[set[int], set[int]]:
    """Return the ranks that are ahead of others in a process group, and those that are behind others in one."""
    counts: dict[str, dict[int, int]] = {}
    for rank, report in by_rank.items():
        for group in report.groups:
            counts.setdefault(group.name, {})[rank] = group.begun
    ahead, behind = set[int](), set[int]()
    for begun in counts.values():
        least, most = min(begun.values()), max(begun.values())
        ahead |= {rank for rank, count in begun.items() if count > least}
        behind |= {rank for rank, count in begun.items() if count < most}
    return ahead, behind


# Stacks


def _by_stacks(by_rank: dict[int, RankReport]) -> HangVerdict:
    """Judge by the stacks. All ranks have begun as many collectives, or the numbers are unknown."""
    waiting = [rank for rank, report in by_rank.items() if waits(report)]
    others = [rank for rank in by_rank if rank not in waiting]
    if others and (waiting or len(by_rank) == 1):
        known = all(by_rank[rank].frames for rank in others)
        return _verdict(HangKind.BEHIND, by_rank, others, certain=known)
    if others:
        blocked = [rank for rank in others if by_rank[rank].blocked]
        if blocked:
            return _verdict(HangKind.BEHIND, by_rank, blocked, certain=False)
        places = "; ".join(_place(by_rank[rank]) for rank in others[:3])
        return HangVerdict(HangKind.UNKNOWN, (), False, f"no rank waits for another one: {places}")
    names = {rank: collective(by_rank[rank]) for rank in waiting}
    count = Counter(names.values())
    if len(count) > 1:
        (common, most), *_ = count.most_common()
        tie = list(count.values()).count(most) > 1
        ranks = [rank for rank in waiting if not tie and names[rank] != common]
        calls = ", ".join(f"{_ranks([r for r in waiting if names[r] == name])} in {name}" for name in count)
        return HangVerdict(HangKind.MISMATCH, tuple(ranks), not tie, f"the ranks call different collectives: {calls}")
    name = next(iter(count), "a collective")
    return HangVerdict(HangKind.CONNECTION, (), False, f"all ranks wait in {name}: a connection between them is broken")


_COLLECTIVES = "torch/distributed/distributed_c10d.py"
_WAITS = (
    _COLLECTIVES,
    "torch/distributed/_functional_collectives.py",
    "torch/distributed/rendezvous.py",
    "hpcelastic/training/stop.py",
    "hpcelastic/training/transfer.py",
)
"""Files in whose functions a rank waits for other ranks."""

_BACKWARD = "torch/autograd/graph.py"
"""The file of the backward pass, in which DistributedDataParallel waits for other ranks."""

_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/hpcelastic/training/", "<frozen ")


def waits(report: RankReport) -> bool:
    """Return whether the stack shows that the rank waits for other ranks."""
    return _in_collective(report) or _in_backward(report)


def _in_collective(report: RankReport) -> bool:
    return any(file in frame for frame in report.frames for file in _WAITS)


def _in_backward(report: RankReport) -> bool:
    return bool(report.frames) and _BACKWARD in report.frames[0] and bool(report.groups)


def collective(report: RankReport) -> str:
    """Return the name of the collective in which the rank waits, as its stack shows it."""
    for frame in report.frames:
        if _COLLECTIVES in frame:
            return frame.rpartition(" in ")[2]
    return "the backward pass" if _in_backward(report) else "a collective"


# Descriptions


def _verdict(kind: HangKind, by_rank: dict[int, RankReport], ranks: Sequence[int], *, certain: bool) -> HangVerdict:
    first = by_rank[ranks[0]]
    others = f", and {_ranks(ranks[1:])}" if len(ranks) > 1 else ""
    text = f"rank {first.rank} on {first.node}{others} "
    if kind is HangKind.STOPPED:
        text += f"{'is' if not others else 'are'} {first.state}"
    else:
        text += f"{'has' if not others else 'have'} not entered {_missed(by_rank, first)}"
        text += f"; rank {first.rank} is {_where(first)}"
    return HangVerdict(kind, tuple(ranks), certain, text)


def _missed(by_rank: dict[int, RankReport], behind: RankReport) -> str:
    """Return the collective that a rank has not entered, with the number of ranks that wait in it."""
    for group in behind.groups:
        ahead = [
            report
            for report in by_rank.values()
            for theirs in report.groups
            if theirs.name == group.name and theirs.begun > group.begun
        ]
        if ahead:
            of_group = f" of {group.description}" if group.description not in ("", "default_pg") else ""
            name = next((collective(report) for report in ahead if waits(report)), "collective")
            # Not one more than the number of the rank itself, which is old if the rank holds the interpreter lock.
            number = min(g.begun for report in ahead for g in report.groups if g.name == group.name)
            return f"{name} #{number}{of_group}, which {_waits(len(ahead))}"
    waiting = [report for report in by_rank.values() if waits(report) and report.rank != behind.rank]
    return f"{collective(waiting[0])}, which {_waits(len(waiting))}" if waiting else "its next step"


def _waits(count: int) -> str:
    return "1 other waits in" if count == 1 else f"{count} others wait in"


def _place(report: RankReport) -> str:
    return f"rank {report.rank} is {_where(report)}"


def _where(report: RankReport) -> str:
    """Say where a rank is: its innermost frame outside libraries, the call in which it is, the state of its process."""
    state = f" ({report.state})" if report.blocked or not report.frames else ""
    if not report.frames:
        return f"at an unknown place{state}"
    user = next((frame for frame in report.frames if not any(part in frame for part in _LIBRARIES)), report.frames[0])
    inner = "" if user == report.frames[0] else f", in {_short(report.frames[0])}"
    if report.children == 0 and any("dataloader.py" in frame for frame in report.frames):
        inner += ", and its data loader processes have ended"
    return f"at {_short(user)}{inner}{state}"


def _short(frame: str) -> str:
    return frame.rpartition("/")[2]


def _ranks(ranks: Sequence[int]) -> str:
    numbers = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"
