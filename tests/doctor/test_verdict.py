"""The conclusions from measurements: whether a filesystem is safe, which times."""

from dataclasses import replace

import pytest

from hpcelastic.doctor.measurements import Access, Lag, Measurements, Result, Space, Times, Trial
from hpcelastic.doctor.rules import judge
from hpcelastic.doctor.verdict import FilesystemReport, Severity, advise, describe_changes
from hpcelastic.protocol.codec import decode, encode
from hpcelastic.protocol.settings import RENEWALS, NodeRange, RendezvousSettings, Settings
from hpcelastic.storage.mounts import Mount
from tests.doctor.measured import NEVER, NFS, alone, fails, late, together

HANGS = Trial(Result.HANGS, "no answer within 5 s")


def access(mode: int, *, ours: bool = True, roots: bool = False) -> dict[str, Access]:
    return {"access": Access("somebody", ours, roots, mode)}


UNSAFE = {
    "writable by others": (alone(**access(0o777)), "access"),
    "another's": (alone(**access(0o755, ours=False)), "access"),
    "another's, sticky": (alone(**access(0o1777, ours=False)), "access"),
    "own writes": (alone(read_back=fails("reads otherwise")), "own writes"),
    "disk full": (alone(read_back=fails("No space left on device")), "own writes"),
    "hangs": (alone(read_back=HANGS), "own writes"),
    "no links at all": (alone(hard_links=fails("EPERM"), symbolic_links=fails("EPERM")), "links"),
    "two winners here": (alone(exclusive=fails("2 racers created the same name")), "exclusive creation"),
    "two winners on one of two": (
        together(node={"exclusive": fails("2 racers created the same name")}),
        "exclusive creation",
    ),
    "two winners between nodes": (together(exclusive=fails("2 racers created the same name")), "exclusive creation"),
    "torn": (alone(replacement=fails("torn for a moment")), "replacement"),
    "torn between nodes": (together(visibility={"torn": 1}), "replacement"),
    "listing never shows": (together(visibility={"new_by_listing": NEVER}), "names by listing"),
    "content never changes": (together(visibility={"content": NEVER}), "replaced content"),
}


@pytest.mark.parametrize(("measured", "check"), UNSAFE.values(), ids=UNSAFE.keys())
def test_the_report_names_the_reason_of_an_unsafe_filesystem(measured: Measurements, check: str) -> None:
    verdict = judge(measured)
    assert not verdict.safe
    assert [finding.check for finding in verdict.findings if finding.severity is Severity.UNSAFE] == [check]
    assert verdict.reason.startswith(f"{check}: ")


HANDLED = {
    "no hard links": (alone(hard_links=fails("EPERM")), "links"),
    "negative entries, open": (together(visibility={"new_by_open": late(29.6)}), "names polled by open"),
    "negative entries, stat": (together(visibility={"new_by_stat": NEVER}), "names polled by stat"),
    "late mtime": (together(visibility={"mtime": late(2.6)}), "modification times"),
    "late removal": (together(visibility={"gone": late(11.7)}), "removed names"),
    "late content": (together(visibility={"content": late(4.0)}), "replaced content"),
    "late listings": (together(visibility={"new_by_listing": late(1.5)}), "names by listing"),
    "slow changes": (together(round_trip=Times(1.0, 3.0)), "round trip"),
    "older content after newer": (together(visibility={"backwards": 3}), "order of reads"),
    "missing while replaced": (together(visibility={"missing": 2}), "replacement"),
    "slow": (alone(publishing=Times(0.4, 0.9)), "latency"),
}

WARNED = {
    "little space": (alone(space=Space(1 << 20, None)), "space"),
    "few inodes": (alone(space=Space(1 << 40, 5)), "space"),
    "group may write": (alone(**access(0o770)), "access"),
    "one machine": (alone(mount=Mount("ext4", "/dev/vda", "/")), "mount"),
    "mounted otherwise": (together(node={"mount": replace(NFS, options=("rw", "vers=3"))}), "mount"),
    "another filesystem": (together(node={"mount": Mount("lustre", "s:/x", "/scratch", ("flock",))}), "mount"),
    "no fsync": (alone(durable_directory=fails("Invalid argument")), "fsync"),
    "listings of one tick": (together(unlisted=2), "names in one tick"),
    "one client": (together(node={"client": "n0"}), "nodes"),
    "one node": (alone(), "nodes"),
    "not seen in a quick check": (together(visibility={"content": Lag(None, 3.0)}), "replaced content"),
}


@pytest.mark.parametrize(
    ("measured", "check", "severity"),
    [
        *(pytest.param(*case, Severity.HANDLED, id=name) for name, case in HANDLED.items()),
        *(pytest.param(*case, Severity.WARNING, id=name) for name, case in WARNED.items()),
    ],
)
def test_handled_anomalies_are_reported(measured: Measurements, check: str, severity: Severity) -> None:
    verdict = judge(measured)
    assert verdict.safe
    assert check in [finding.check for finding in verdict.findings if finding.severity is severity]
    assert not [finding for finding in verdict.findings if finding.severity not in (Severity.OK, severity)] or (
        measured.across is None
    )


SOUND = {
    "two nodes": together(),
    "sticky directory of root": together(node=access(0o1777, ours=False, roots=True)),
    "seen within a second": together(visibility={"content": late(0.9), "mtime": late(0.9), "gone": late(0.9)}),
}


@pytest.mark.parametrize("measured", SOUND.values(), ids=SOUND.keys())
def test_a_filesystem_without_faults_has_no_findings(measured: Measurements) -> None:
    assert {finding.severity for finding in judge(measured).findings} == {Severity.OK}


@pytest.mark.parametrize("owner", [{"ours": True}, {"ours": False, "roots": True}])
def test_a_sticky_directory_of_root_or_of_the_user_is_safe(owner: dict[str, bool]) -> None:
    assert judge(alone(**access(0o1777, **owner))).safe


def nfs(*options: str) -> Mount:
    return replace(NFS, kind="nfs", options=("rw", *options))


LAGS = {
    "at once": (together(), 0.02),
    "round trip": (together(round_trip=Times(0.1, 0.8)), 0.8),
    "content, and the time for which it was watched": (together(visibility={"content": late(3.5)}), 5.0),
    "listing": (together(visibility={"new_by_listing": late(1.0)}), 2.5),
    "a short delay is no cache": (together(visibility={"content": late(0.2)}), 0.2),
    "never in a quick check": (together(visibility={"content": Lag(None, 3.0)}), 30.0),
    "anomalies without an effect do not count": (
        together(visibility={"mtime": NEVER, "new_by_stat": NEVER, "gone": NEVER}),
        0.02,
    ),
    "nocto": (alone(mount=nfs("nocto")), 60.0),
    "nocto, short caches": (alone(mount=nfs("nocto", "acregmax=3")), 3.0),
    "glusterfs": (alone(mount=Mount("fuse.glusterfs", "s:/gv0", "/g")), 1.0),
}


@pytest.mark.parametrize(("measured", "lag"), LAGS.values(), ids=LAGS.keys())
def test_the_measured_lag(measured: Measurements, lag: float) -> None:
    assert judge(measured).lag == pytest.approx(lag)


AUTO, DEFAULTS = RendezvousSettings(), RendezvousSettings(lease=10.0, margin=2.0)

ADVICE = {
    "prompt": (DEFAULTS, FilesystemReport(True, lag=0.03, latency=0.01, poll_duration=0.01), DEFAULTS),
    "late": (DEFAULTS, FilesystemReport(True, lag=5.0), replace(DEFAULTS, lease=20.0, margin=10.0)),
    "never": (DEFAULTS, FilesystemReport(True, lag=30.0), replace(DEFAULTS, lease=120.0, margin=60.0)),
    "slow": (DEFAULTS, FilesystemReport(True, latency=2.0), replace(DEFAULTS, lease=16.0)),
    "slow polls": (DEFAULTS, FilesystemReport(True, poll_duration=4.0), replace(DEFAULTS, lease=16.0, poll=4.0)),
    "chosen, prompt": (AUTO, FilesystemReport(True, lag=0.03, latency=0.01, poll_duration=0.01), AUTO),
    "chosen, late": (AUTO, FilesystemReport(True, lag=1.5), replace(AUTO, min_lease=6.0, margin=3.0)),
    "chosen, slow": (AUTO, FilesystemReport(True, latency=2.0), replace(AUTO, min_lease=16.0)),
    "chosen, slow polls": (AUTO, FilesystemReport(True, poll_duration=1.0), replace(AUTO, min_lease=4.0, poll=1.0)),
    "never lowered": (
        replace(DEFAULTS, lease=100.0, margin=50.0, poll=20.0),
        FilesystemReport(True, lag=5.0, latency=1.0, poll_duration=1.0),
        replace(DEFAULTS, lease=100.0, margin=50.0, poll=20.0),
    ),
    "short times of the user": (
        replace(DEFAULTS, lease=2.0, margin=0.5, poll=0.05),
        FilesystemReport(True, lag=1.02),
        replace(DEFAULTS, lease=4.1, margin=2.1, poll=0.05),
    ),
}


@pytest.mark.parametrize(("given", "verdict", "expected"), ADVICE.values(), ids=ADVICE.keys())
def test_times_are_raised_if_necessary(
    given: RendezvousSettings, verdict: FilesystemReport, expected: RendezvousSettings
) -> None:
    before, after = Settings(rendezvous=given), Settings(rendezvous=expected)
    assert advise(before, verdict) == after
    assert advise(after, verdict) == after
    assert bool(describe_changes(before, after, verdict)) is (given != expected)


@pytest.mark.parametrize(("nodes", "lease"), [(1, 10.0), (1024, 10.0), (4096, 16.0), (10_000, 25.0)])
def test_many_nodes_renew_their_leases_less_often(nodes: int, lease: float) -> None:
    before = Settings(NodeRange(1, nodes), DEFAULTS)
    after = advise(before, FilesystemReport(True, lag=0.5))
    assert after.rendezvous.lease == pytest.approx(lease)
    assert RENEWALS * nodes / after.rendezvous.lease <= 12 * nodes**0.5
    assert (f"{nodes} nodes" in describe_changes(before, after, FilesystemReport(True))) is (lease > 10)


@pytest.mark.parametrize(("nodes", "lease"), [(1, 2.0), (64, 2.0), (128, 2.9), (1024, 8.0)])
def test_many_nodes_choose_longer_leases(nodes: int, lease: float) -> None:
    after = advise(Settings(NodeRange(1, nodes)), FilesystemReport(True))
    assert after.rendezvous.lease == "auto" and after.rendezvous.min_lease == pytest.approx(lease)


@pytest.mark.parametrize("lag", [0.01, 0.3, 1.0, 5.0, 29.6, 60.0])
@pytest.mark.parametrize("lease", [0.5, 2.0, 10.0, 300.0])
def test_a_living_node_is_not_declared_dead(lease: float, lag: float) -> None:
    given = Settings(rendezvous=RendezvousSettings(lease=lease, margin=0.5, poll=lease / 4))
    times = advise(given, FilesystemReport(True, lag=lag)).rendezvous
    assert isinstance(times.lease, float)
    assert (1 - 1 / RENEWALS) * times.lease + times.margin >= 3 * lag
    assert times.margin >= 2 * lag
    assert times.poll <= times.lease / 4


def test_raised_times_are_reported_with_the_reason() -> None:
    verdict = FilesystemReport(True, lag=5.0, latency=0.2)
    given = Settings(rendezvous=DEFAULTS)
    line = describe_changes(given, advise(given, verdict), verdict)
    assert "rendezvous.lease from 10 to 20 s" in line
    assert "rendezvous.margin from 2 to 10 s" in line
    assert "5 s late" in line


@pytest.mark.parametrize("measured", [alone(), together(visibility={"content": NEVER})])
def test_a_verdict_is_stored_as_json(measured: Measurements) -> None:
    verdict = judge(measured)
    assert decode(FilesystemReport, encode(verdict)) == verdict
    assert decode(FilesystemReport, {**encode(verdict), "from a newer version": 1}) == verdict
    assert decode(FilesystemReport, {**encode(verdict), "lock": "soft"}) == verdict, "a field of an older version"
    assert decode(Measurements, encode(measured)) == measured
