"""Rules that turn measurements into findings: one function for each check, in the order of the report.

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
    Trial,
    Visibility,
    latest,
    worst,
)
from hpcelastic.doctor.verdict import (
    NEVER,
    Conclusion,
    FilesystemReport,
    Severity,
    build_report,
    format_seconds,
)

Rule = Callable[[Measurements], Conclusion | None]
"""Returns None if the rule has no finding, because nothing was measured."""

OK, HANDLED, WARNING, UNSAFE = Severity.OK, Severity.HANDLED, Severity.WARNING, Severity.UNSAFE

MIN_FREE_BYTES, MIN_FREE_INODES = 1 << 30, 10_000
"""Least free space without a warning. A run itself writes little; checkpoints and logs need far more than this."""

SLOW = 0.1
"""Latency in seconds above which a filesystem is slow. A turn of the rendezvous publishes one or two files."""

LATE = 1.0
"""Lag in seconds up to which no setting has to change."""


def judge(measurements: Measurements) -> FilesystemReport:
    """Return the verdict that follows from ``measurements``."""
    findings = (rule(measurements) for rule in RULES)
    return build_report(measurements, [finding for finding in findings if finding is not None])


def _access(measured: Measurements) -> Conclusion | None:
    access = next((node.access for node in measured.nodes if node.access), None)
    if access is None:
        return None
    result = f"belongs to {'you' if access.ours else access.owner}, mode {access.mode:04o}"
    meaning = "a user who can rename entries of this directory can replace your run by other programs"
    remedy = "use a directory of your own: mkdir -m 700 NEW"
    restrict = f"chmod go-w, or {remedy}" if access.ours else remedy
    # The owner of a directory can rename all entries, also with the sticky bit.
    if not (access.ours or access.roots) or (access.mode & 0o002 and not access.sticky):
        return Conclusion("access", UNSAFE, result, meaning, restrict)
    if not access.sticky and access.mode & 0o020:
        return Conclusion("access", WARNING, f"{result}; the group can write", meaning, f"chmod g-w, or {remedy}")
    return Conclusion("access", OK, result)


def _space(measured: Measurements) -> Conclusion | None:
    spaces = [node.space for node in measured.nodes if node.space]
    if not spaces:
        return None
    space = min(spaces, key=lambda space: space.bytes)
    inodes = "" if space.inodes is None else f" and {space.inodes:,} inodes"
    result = f"{_format_size(space.bytes)}{inodes} free; quotas are not measured"
    low = space.bytes < MIN_FREE_BYTES or (space.inodes is not None and space.inodes < MIN_FREE_INODES)
    if not low:
        return Conclusion("space", OK, result)
    meaning = "checkpoints and logs may fill the filesystem; a run that cannot write its lease stops its workers"
    return Conclusion("space", WARNING, result, meaning, "free some space; continue a stopped run with --resume")


def _mount(measured: Measurements) -> Conclusion | None:
    first = measured.nodes[0]
    others = [node for node in measured.nodes if not node.mount.same_as(first.mount)]
    if others:
        other = others[0]
        result = f"{first.node} mounts {first.mount.kind} {first.mount.source}; {other.node} mounts it differently"
        meaning = f"{_difference(first, other)}; a measurement on one node may not hold on the other"
        remedy = "mount it in the same way on all nodes; until then the worse result counts"
        return Conclusion("mount", WARNING, result, meaning, remedy)
    if first.mount.local:
        result = f"{first.mount.kind} on {first.node}, a filesystem of one machine"
        meaning = "agents on other nodes cannot see it"
        return Conclusion("mount", WARNING, result, meaning, "use a directory on the cluster's shared filesystem")
    return Conclusion("mount", OK, f"{first.mount.kind} {first.mount.source}")


def _clients(measured: Measurements) -> Conclusion | None:
    if measured.across is None:
        result = "one node only; caches and visibility between nodes were not measured"
        remedy = "run doctor on several nodes at the same time: srun -N2 hpcelastic doctor --dir DIR"
        return Conclusion("nodes", WARNING if not measured.nodes[0].mount.local else OK, result, "", remedy)
    count = len(measured.nodes)
    if measured.one_client:
        result = f"{count} members, all on one machine and one mount"
        meaning = "the members share every cache, so nothing is known of what other nodes see"
        return Conclusion("nodes", WARNING, result, meaning, "run one task on each node: srun -N2 --ntasks-per-node=1")
    return Conclusion("nodes", OK, f"{count} members on {len({node.client for node in measured.nodes})} mounts")


def _trial(check: str, pick: Callable[[NodeMeasurements], Trial], ok: str, meaning: str, remedy: str) -> Rule:
    """Return a rule for a trial that every node runs by itself and that every safe filesystem passes."""

    def rule(measured: Measurements) -> Conclusion | None:
        trial = _worst_of(measured, pick)
        if trial.result is Result.UNMEASURED:
            return None
        return Conclusion(check, OK, ok) if trial.works else Conclusion(check, UNSAFE, trial.detail, meaning, remedy)

    return rule


def _links(measured: Measurements) -> Conclusion | None:
    hard, symbolic = _worst_of(measured, _hard_links), _worst_of(measured, lambda node: node.symbolic_links)
    if hard.result is Result.UNMEASURED or hard.works:
        return Conclusion("links", OK, "hard links work") if hard.works else None
    if symbolic.works:
        meaning = "a complete file cannot be published under its name by a hard link"
        remedy = "none; hpcelastic publishes by symbolic links, which are equally exclusive"
        return Conclusion("links", HANDLED, f"no hard links ({hard.detail}); symbolic links work", meaning, remedy)
    result = f"neither hard links ({hard.detail}) nor symbolic links ({symbolic.detail}) work"
    return Conclusion("links", UNSAFE, result, "a complete file cannot be created exclusively", _USE_ANOTHER)


def _exclusive(measured: Measurements) -> Conclusion | None:
    across = measured.across.exclusive if measured.across else UNTRIED
    trial = worst([_worst_of(measured, lambda node: node.exclusive), across])
    if trial.result is Result.UNMEASURED:
        return None
    if trial.bad:
        meaning = "two agents could each believe that they have made the run's next decision"
        return Conclusion("exclusive creation", UNSAFE, trial.detail, meaning, _USE_ANOTHER)
    return Conclusion("exclusive creation", OK, across.detail or "each name had one winner on this node")


def _replacement(measured: Measurements) -> Conclusion | None:
    trial = _worst_of(measured, lambda node: node.replacement)
    torn = sum(visibility.torn for visibility in _visibilities(measured))
    missing = sum(visibility.missing for visibility in _visibilities(measured))
    if trial.bad or torn:
        result = trial.detail if trial.bad else f"{torn} reads from another node found a torn file"
        meaning = "a reader can find an incomplete decision, lease or checkpoint"
        return Conclusion("replacement", UNSAFE, result, meaning, _USE_ANOTHER)
    if missing:
        meaning = "a file can be missing or stale for a moment while it is replaced"
        remedy = "none; hpcelastic reads again, and concludes nothing from a failed read"
        return Conclusion("replacement", HANDLED, f"{missing} reads from another node failed", meaning, remedy)
    return Conclusion("replacement", OK, "a replaced file is never torn and never missing") if trial.works else None


def _durable(measured: Measurements) -> Conclusion | None:
    trial = worst([_worst_of(measured, lambda n: n.durable_file), _worst_of(measured, lambda n: n.durable_directory)])
    if trial.result is Result.UNMEASURED:
        return None
    if trial.works:
        return Conclusion("fsync", OK, "fsync of files and directories works")
    meaning = "the last decisions can be lost if the file server loses power"
    return Conclusion("fsync", WARNING, trial.detail, meaning, "none as long as the file servers do not crash")


def _lag(
    check: str, pick: Callable[[Visibility], Lag | None], meaning: str, remedy: str, *, vital: bool = False
) -> Rule:
    """Return a rule for the lag with which nodes see a change; ``vital`` if runs must see the change at some time."""

    def rule(measured: Measurements) -> Conclusion | None:
        lag = latest(pick(visibility) for visibility in _visibilities(measured))
        if lag is None:
            return None
        if lag.seconds is not None:
            severity = OK if lag.seconds <= LATE else HANDLED
            explanation = ("", "") if severity is OK else (meaning, remedy)
            return Conclusion(check, severity, f"seen by other nodes {_format_delay(lag.seconds)}", *explanation)
        result = f"not seen by other nodes within {lag.limit:g} s"
        if not vital:
            return Conclusion(check, HANDLED, result, meaning, remedy)
        if lag.limit < NEVER:
            remedy_quick = f"run doctor without --quick to measure the delay; until then {_TIMINGS_RAISED}"
            return Conclusion(check, WARNING, result, meaning, remedy_quick)
        return Conclusion(check, UNSAFE, result, meaning, _USE_ANOTHER)

    return rule


def _round_trip(measured: Measurements) -> Conclusion | None:
    times = measured.across.round_trip if measured.across else None
    if times is None:
        return None
    median, longest = format_seconds(times.median), format_seconds(times.longest)
    result = f"a new name and its reply take {median}, at most {longest}"
    if times.longest <= LATE:
        return Conclusion("round trip", OK, result)
    return Conclusion("round trip", HANDLED, result, "new names are listed late", f"none; {_TIMINGS_RAISED}")


def _unlisted(measured: Measurements) -> Conclusion | None:
    if measured.across is None or not measured.across.unlisted:
        return None
    result = f"{measured.across.unlisted} existing names were not listed until their directory was touched"
    meaning = (
        "this client cannot distinguish changes within one tick of the server's clock, as with NFS version 3; the last "
        "of several decisions in quick succession may be seen late"
    )
    return Conclusion("names in one tick", WARNING, result, meaning, "mount it with NFS version 4.1 or 4.2")


def _order(measured: Measurements) -> Conclusion | None:
    backwards = sum(visibility.backwards for visibility in _visibilities(measured))
    if not backwards:
        if not _visibilities(measured):
            return None
        return Conclusion("order of reads", OK, "no read returned older content than the read before")
    meaning = "content that was already replaced can appear again"
    remedy = "none; hpcelastic never goes back to a lower revision, heartbeat or round"
    result = f"{backwards} reads returned older content than the read before"
    return Conclusion("order of reads", HANDLED, result, meaning, remedy)


def _latency(measured: Measurements) -> Conclusion | None:
    publishing = [node.publishing for node in measured.nodes if node.publishing]
    if not publishing:
        return None
    median = max(times.median for times in publishing)
    longest = max(times.longest for times in publishing)
    reads = [node.reading.median for node in measured.nodes if node.reading]
    lists = [node.listing.median for node in measured.nodes if node.listing]
    polls = f"; list {format_seconds(max(lists))}, read {format_seconds(max(reads))}" if reads and lists else ""
    result = f"publish {format_seconds(median)}, at most {format_seconds(longest)}{polls}"
    if median <= SLOW:
        return Conclusion("latency", OK, result)
    return Conclusion("latency", HANDLED, result, "each decision takes this long", f"none; {_TIMINGS_RAISED}")


def _worst_of(measured: Measurements, pick: Callable[[NodeMeasurements], Trial]) -> Trial:
    """Return the worst trial of all nodes, with the name of its node if there are several."""
    trial = worst(pick(node) for node in measured.nodes)
    if not trial.bad or len(measured.nodes) == 1:
        return trial
    where = next(node.node for node in measured.nodes if pick(node) == trial)
    return Trial(trial.result, f"on {where}: {trial.detail}")


def _hard_links(node: NodeMeasurements) -> Trial:
    return node.hard_links


def _visibilities(measured: Measurements) -> tuple[Visibility, ...]:
    return (measured.across or AcrossMeasurements()).visibility


def _difference(first: NodeMeasurements, other: NodeMeasurements) -> str:
    if (first.mount.kind, first.mount.source) != (other.mount.kind, other.mount.source):
        return f"{other.node} mounts {other.mount.kind} {other.mount.source}"
    added = ",".join(_only(other.mount.options, first.mount.options))
    return f"{other.node} has the options {added}" if added else f"{other.node} has fewer options"


def _only(ones: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the items of ``ones`` that ``others`` lacks."""
    known = set(others)
    return [one for one in ones if one not in known]


def _format_size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.4g} PiB"


def _format_delay(seconds: float) -> str:
    return f"after {format_seconds(seconds)}" if seconds >= 0.005 else "at once"


_USE_ANOTHER = "use another filesystem for the run's directory"
_TIMINGS_RAISED = "hpcelastic raises lease, margin and poll to match"
_CACHED_ABSENCE = "a client that looked for a name before it existed reports for this long that it does not exist"
_FOUND_BY_LISTING = "none; hpcelastic finds new names by listing and never polls a name"

RULES: tuple[Rule, ...] = (
    _access,
    _space,
    _mount,
    _clients,
    _trial(
        "own writes",
        lambda node: node.read_back,
        "a node reads back what it wrote",
        "not even the node that wrote a file can rely on its content",
        _USE_ANOTHER,
    ),
    _links,
    _exclusive,
    _replacement,
    _durable,
    _round_trip,
    _unlisted,
    _lag(
        "names by listing",
        lambda s: s.new_by_listing,
        "new names are listed late",
        f"none; {_TIMINGS_RAISED}",
        vital=True,
    ),
    _lag(
        "replaced content",
        lambda s: s.content,
        "a reader gets old content for this long",
        f"none; {_TIMINGS_RAISED}",
        vital=True,
    ),
    _lag("names polled by open", lambda s: s.new_by_open, _CACHED_ABSENCE, _FOUND_BY_LISTING),
    _lag("names polled by stat", lambda s: s.new_by_stat, _CACHED_ABSENCE, _FOUND_BY_LISTING),
    _lag(
        "modification times",
        lambda s: s.mtime,
        "a file that was written appears unmodified for this long",
        "none; hpcelastic detects live nodes by heartbeat counters, never by time stamps",
    ),
    _lag(
        "removed names",
        lambda s: s.gone,
        "a removed file appears to exist for this long",
        "none; hpcelastic announces an end by a new name, never by a removed one",
    ),
    _order,
    _latency,
)
