"""The rules by which measurements become findings: one function for each check, in the order of the report.

Pure. `judge` applies them all.
"""

from collections.abc import Callable, Iterable

from hpcelastic.doctor.measurements import (
    UNTRIED,
    AcrossMeasurements,
    Lag,
    Measurements,
    NodeMeasurements,
    Result,
    Sight,
    Trial,
    latest,
    worst,
)
from hpcelastic.doctor.verdict import (
    NEVER,
    Finding,
    Severity,
    Verdict,
    in_seconds,
    lock_kind,
    locks_stay_local,
    verdict_on,
)
from hpcelastic.store.locks import LockKind

Rule = Callable[[Measurements], Finding | None]
"""None: there is nothing to say, for nothing was measured."""

FINE, HANDLED, WARNING, UNSAFE = Severity.FINE, Severity.HANDLED, Severity.WARNING, Severity.UNSAFE

LITTLE_BYTES, LITTLE_INODES = 1 << 30, 10_000
"""A run writes little itself; checkpoints and logs need far more than this."""

SLOW = 0.1
"""Seconds; a turn of the rendezvous publishes one or two files."""

LATE = 1.0
"""Seconds of lag that no setting needs to follow."""


def judge(measurements: Measurements) -> Verdict:
    """What ``measurements`` mean for a run."""
    findings = (rule(measurements) for rule in RULES)
    return verdict_on(measurements, [finding for finding in findings if finding is not None])


def _access(measured: Measurements) -> Finding | None:
    access = next((node.access for node in measured.nodes if node.access), None)
    if access is None:
        return None
    whose = f"belongs to {'you' if access.ours else access.owner}, mode {access.mode:04o}"
    meaning = "whoever can change its names can put another run, with other programs, in the place of yours"
    remedy = "use a directory of your own: mkdir -m 700 NEW"
    shut = f"chmod go-w, or {remedy}" if access.ours else remedy
    if not access.sticky and (access.mode & 0o002 or not (access.ours or access.roots)):
        return Finding("access", UNSAFE, whose, meaning, shut)
    if not access.sticky and access.mode & 0o020:
        return Finding("access", WARNING, f"{whose}: its group may write", meaning, f"chmod g-w, or {remedy}")
    return Finding("access", FINE, whose)


def _space(measured: Measurements) -> Finding | None:
    spaces = [node.space for node in measured.nodes if node.space]
    if not spaces:
        return None
    space = min(spaces, key=lambda space: space.bytes)
    inodes = "" if space.inodes is None else f", {space.inodes:,} files"
    result = f"{_size(space.bytes)}{inodes} free; quotas are not measured"
    little = space.bytes < LITTLE_BYTES or (space.inodes is not None and space.inodes < LITTLE_INODES)
    if not little:
        return Finding("space", FINE, result)
    meaning = "checkpoints and logs may fill it; a run that cannot write its lease stops its workers"
    return Finding("space", WARNING, result, meaning, "free some space; a stopped run goes on with --resume")


def _mount(measured: Measurements) -> Finding | None:
    first = measured.nodes[0]
    others = [node for node in measured.nodes if not node.mount.same_as(first.mount)]
    if others:
        other = others[0]
        result = f"{first.node} has {first.mount.kind} {first.mount.source}; {other.node} has it otherwise"
        meaning = f"{_difference(first, other)}; what holds on one node need not hold on the other"
        return Finding("mount", WARNING, result, meaning, "tell your administrators; the worse of both counts")
    if first.mount.local:
        result = f"{first.mount.kind} on {first.node}, a filesystem of one machine"
        meaning = "agents on other nodes cannot see it"
        return Finding("mount", WARNING, result, meaning, "name a directory on the cluster's shared filesystem")
    return Finding("mount", FINE, f"{first.mount.kind} {first.mount.source}")


def _clients(measured: Measurements) -> Finding | None:
    if measured.across is None:
        result = "one node only; locks, caches and visibility between nodes were not measured"
        remedy = "run it on several nodes at once: srun -N2 hpcelastic doctor --dir DIR"
        return Finding("nodes", WARNING if not measured.nodes[0].mount.local else FINE, result, "", remedy)
    count = len(measured.nodes)
    if measured.one_client:
        result = f"{count} members, all on one machine and one mount"
        meaning = "they share every cache: nothing was learned of what other nodes see"
        return Finding("nodes", WARNING, result, meaning, "run one task on each node: srun -N2 --ntasks-per-node=1")
    return Finding("nodes", FINE, f"{count} members on {len({node.client for node in measured.nodes})} mounts")


def _trial(check: str, pick: Callable[[NodeMeasurements], Trial], fine: str, meaning: str, remedy: str) -> Rule:
    """A rule for what every node tries by itself, and without which nothing is safe."""

    def rule(measured: Measurements) -> Finding | None:
        trial = _worst_of(measured, pick)
        if trial.result is Result.UNMEASURED:
            return None
        return Finding(check, FINE, fine) if trial.works else Finding(check, UNSAFE, trial.detail, meaning, remedy)

    return rule


def _links(measured: Measurements) -> Finding | None:
    hard, symbolic = _worst_of(measured, _hard), _worst_of(measured, lambda node: node.symbolic_links)
    if hard.result is Result.UNMEASURED or hard.works:
        return Finding("links", FINE, "hard links work") if hard.works else None
    if symbolic.works:
        meaning = "a finished file cannot be given a second name"
        remedy = "hpcelastic publishes by symbolic links, which are as exclusive"
        return Finding("links", HANDLED, f"no hard links ({hard.detail}); symbolic links work", meaning, remedy)
    result = f"neither hard links ({hard.detail}) nor symbolic links ({symbolic.detail})"
    return Finding("links", UNSAFE, result, "no complete file can be created exclusively", _OTHER)


def _exclusive(measured: Measurements) -> Finding | None:
    across = measured.across.exclusive if measured.across else UNTRIED
    trial = worst([_worst_of(measured, lambda node: node.exclusive), across])
    if trial.result is Result.UNMEASURED:
        return None
    if trial.bad:
        meaning = "two agents could both believe that their decision is the next one"
        return Finding("exclusive creation", UNSAFE, trial.detail, meaning, _OTHER)
    return Finding("exclusive creation", FINE, across.detail or "each name had one winner on this node")


def _replacement(measured: Measurements) -> Finding | None:
    trial = _worst_of(measured, lambda node: node.replacement)
    torn = sum(sight.torn for sight in _sights(measured))
    missing = sum(sight.missing for sight in _sights(measured))
    if trial.bad or torn:
        result = trial.detail if trial.bad else f"{torn} reads from another node found a torn file"
        meaning = "a reader can find half a decision, half a lease or half a checkpoint"
        return Finding("replacement", UNSAFE, result, meaning, _OTHER)
    if missing:
        meaning = "a file that is being replaced is not there, or stale, for a moment"
        remedy = "hpcelastic reads again, and takes silence for news of nothing"
        return Finding("replacement", HANDLED, f"{missing} reads from another node failed", meaning, remedy)
    return Finding("replacement", FINE, "never torn, never missing") if trial.works else None


def _durable(measured: Measurements) -> Finding | None:
    trial = worst([_worst_of(measured, lambda n: n.durable_file), _worst_of(measured, lambda n: n.durable_directory)])
    if trial.result is Result.UNMEASURED:
        return None
    if trial.works:
        return Finding("fsync", FINE, "of files and directories works")
    meaning = "what was decided last can be lost if the file server loses power"
    return Finding("fsync", WARNING, trial.detail, meaning, "nothing to do while servers do not crash")


def _locks(measured: Measurements) -> Finding | None:
    kind = lock_kind(measured)
    local = next((reason for node in measured.nodes if (reason := locks_stay_local(node.mount))), "")
    own = _worst_of(measured, lambda node: node.flock)
    across = measured.across.flock if measured.across and not measured.one_client else UNTRIED
    if kind is LockKind.NATIVE:
        where = f"exclude between nodes{_handover(measured)}" if across.works else "exclude on this node"
        return Finding("locks", FINE, f"flock locks {where}") if own.works else None
    said = across.detail if across.bad else own.detail if own.bad else f"locks exclude on one node only: {local}"
    meaning = "two nodes can hold the same lock; software that trusts it loses data"
    with_what = "lock files" if kind is LockKind.SOFT else "no lock"
    remedy = f"hpcelastic uses {with_what} to wait in turn; its decisions rest on exclusive creation alone"
    return Finding("locks", HANDLED, f"{said}" + (f" ({local})" if across.bad and local else ""), meaning, remedy)


def _posix(measured: Measurements) -> Finding | None:
    across = measured.across.posix_lock if measured.across and not measured.one_client else UNTRIED
    trial = worst([_worst_of(measured, lambda node: node.posix_lock), across])
    if trial.bad:
        return Finding(
            "POSIX locks", HANDLED, trial.detail, "fcntl locks do not exclude", "hpcelastic does not use them"
        )
    where = "between nodes" if across.works else "on this node"
    return Finding("POSIX locks", FINE, f"exclude {where}") if trial.works else None


def _lag(check: str, pick: Callable[[Sight], Lag | None], meaning: str, remedy: str, *, vital: bool = False) -> Rule:
    """A rule for how late nodes see what another has changed; ``vital`` if we must see it at last."""

    def rule(measured: Measurements) -> Finding | None:
        lag = latest(pick(sight) for sight in _sights(measured))
        if lag is None:
            return None
        if lag.seconds is not None:
            severity = FINE if lag.seconds <= LATE else HANDLED
            told = ("", "") if severity is FINE else (meaning, remedy)
            return Finding(check, severity, f"seen by others {_after(lag.seconds)}", *told)
        result = f"not seen by others within {lag.limit:g} s"
        if not vital:
            return Finding(check, HANDLED, result, meaning, remedy)
        if lag.limit < NEVER:
            return Finding(check, WARNING, result, meaning, f"{_RAISED}; doctor without --quick tells how late it is")
        return Finding(check, UNSAFE, result, meaning, _OTHER)

    return rule


def _round_trip(measured: Measurements) -> Finding | None:
    times = measured.across.round_trip if measured.across else None
    if times is None:
        return None
    result = f"there and back in {in_seconds(times.median)}, at most {in_seconds(times.longest)}"
    if times.longest <= LATE:
        return Finding("news between nodes", FINE, result)
    return Finding("news between nodes", HANDLED, result, "listings are late", _RAISED)


def _unlisted(measured: Measurements) -> Finding | None:
    if measured.across is None or not measured.across.unlisted:
        return None
    result = f"{measured.across.unlisted} names that were there stayed unlisted until the directory was touched"
    meaning = (
        "changes within one tick of the server's clock look like one to this client, as on NFS version 3; the last of "
        "several decisions in a row may be seen late"
    )
    return Finding("names in a row", WARNING, result, meaning, "mount it with NFS version 4.1 or 4.2")


def _order(measured: Measurements) -> Finding | None:
    backwards = sum(sight.backwards for sight in _sights(measured))
    if not backwards:
        return Finding("order of reads", FINE, "never back to older content") if _sights(measured) else None
    meaning = "a read can give older content than the read before"
    remedy = "hpcelastic never goes back to a lower version, beat or round"
    return Finding("order of reads", HANDLED, f"{backwards} reads went back in time", meaning, remedy)


def _latency(measured: Measurements) -> Finding | None:
    publishing = [node.publishing for node in measured.nodes if node.publishing]
    if not publishing:
        return None
    median = max(times.median for times in publishing)
    longest = max(times.longest for times in publishing)
    reads = [node.reading.median for node in measured.nodes if node.reading]
    lists = [node.listing.median for node in measured.nodes if node.listing]
    looks = f"; list {in_seconds(max(lists))}, read {in_seconds(max(reads))}" if reads and lists else ""
    result = f"publish {in_seconds(median)}, at most {in_seconds(longest)}{looks}"
    if median <= SLOW:
        return Finding("latency", FINE, result)
    return Finding("latency", HANDLED, result, "each decision takes as long", _RAISED)


def _worst_of(measured: Measurements, pick: Callable[[NodeMeasurements], Trial]) -> Trial:
    """The worst trial of all nodes, with the name of its node where there are several."""
    trial = worst(pick(node) for node in measured.nodes)
    if not trial.bad or len(measured.nodes) == 1:
        return trial
    where = next(node.node for node in measured.nodes if pick(node) == trial)
    return Trial(trial.result, f"on {where}: {trial.detail}")


def _hard(node: NodeMeasurements) -> Trial:
    return node.hard_links


def _sights(measured: Measurements) -> tuple[Sight, ...]:
    return (measured.across or AcrossMeasurements()).sights


def _handover(measured: Measurements) -> str:
    lag = measured.across.handover if measured.across else None
    if lag is None:
        return ""
    return f", handed over {_after(lag.seconds)}" if lag.seconds is not None else ", but a released one stays held"


def _difference(first: NodeMeasurements, other: NodeMeasurements) -> str:
    if (first.mount.kind, first.mount.source) != (other.mount.kind, other.mount.source):
        return f"there it is {other.mount.kind} {other.mount.source}"
    return f"options there: {','.join(_only(other.mount.options, first.mount.options)) or 'fewer'}"


def _only(ones: Iterable[str], others: Iterable[str]) -> list[str]:
    known = set(others)
    return [one for one in ones if one not in known]


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.4g} PiB"


def _after(seconds: float) -> str:
    return f"after {in_seconds(seconds)}" if seconds >= 0.005 else "at once"


_OTHER = "use another filesystem for the run's directory"
_RAISED = "hpcelastic raises lease, margin and poll to match"

RULES: tuple[Rule, ...] = (
    _access,
    _space,
    _mount,
    _clients,
    _trial(
        "own writes",
        lambda node: node.read_back,
        "are read back",
        "not even the node that wrote a file can rely on it",
        _OTHER,
    ),
    _links,
    _exclusive,
    _replacement,
    _durable,
    _locks,
    _posix,
    _round_trip,
    _unlisted,
    _lag("names by listing", lambda s: s.new_by_listing, "listings are late", _RAISED, vital=True),
    _lag("replaced content", lambda s: s.content, "old content is read for so long", _RAISED, vital=True),
    _lag(
        "names polled by open",
        lambda s: s.new_by_open,
        "who asked for a name before it was there is told for so long that it is not",
        "hpcelastic finds names by listing, and never polls one",
    ),
    _lag(
        "names polled by stat",
        lambda s: s.new_by_stat,
        "who asked for a name before it was there is told for so long that it is not",
        "hpcelastic finds names by listing, and never polls one",
    ),
    _lag(
        "modification times",
        lambda s: s.mtime,
        "a file that is written to seems untouched for so long",
        "hpcelastic judges life by counters in files, never by time stamps",
    ),
    _lag(
        "removed names",
        lambda s: s.gone,
        "a removed file seems to be there for so long",
        "hpcelastic says what has ended by new names, never by removed ones",
    ),
    _order,
    _latency,
)
