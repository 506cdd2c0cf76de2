"""The examination of a filesystem by one node, or by several nodes together."""

import contextlib
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.doctor import across, probe, visibility
from hpcelastic.doctor.across import Depth
from hpcelastic.doctor.benchmark import MeasurerProcess, NodeSpeed, measure_speeds
from hpcelastic.doctor.coordination import Coordination, Members
from hpcelastic.doctor.measurements import Measurements
from hpcelastic.doctor.node_report import LocalNode, NodeReport, collect_node_reports, report_local_node
from hpcelastic.doctor.nodes import judge_nodes
from hpcelastic.doctor.rules import judge
from hpcelastic.doctor.speeds import Baseline, judge_speeds
from hpcelastic.doctor.verdict import Conclusion, FilesystemReport, Severity
from hpcelastic.errors import ConfigError, HpcElasticError, StoreError
from hpcelastic.protocol.codec import DecodeError, decode, encode
from hpcelastic.storage import files
from hpcelastic.storage.bounded import Hang, bounded
from hpcelastic.storage.errnos import retry
from hpcelastic.storage.paths import benchmark_baseline, doctor_verdict
from hpcelastic.worker.node_benchmark import COMMAND

QUICK = Depth(probe.QUICK, names=15, limits=visibility.QUICK)
FULL = Depth(probe.FULL, names=50, limits=visibility.FULL)

_TIMEOUT = 90.0
"""Seconds for which members wait for each other at each step."""

_ABORT_TIMEOUT = 5.0
"""Seconds for the message to the other members that this one gives up."""

_EXAMINATION_TIMEOUT = 240.0
"""Seconds for the whole examination, however the filesystem behaves."""

_CLEANUP_TIMEOUT = 15.0
"""Seconds for the removal of temporary files after an interrupt."""

LIMIT = _EXAMINATION_TIMEOUT + _CLEANUP_TIMEOUT
"""Seconds after which an examination counts as hung."""


@dataclass(frozen=True)
class Diagnosis:
    """The measurements, the verdict on the filesystem, and the findings on the nodes."""

    measurements: Measurements
    verdict: FilesystemReport
    nodes: tuple[Conclusion, ...] = ()
    """Findings on the nodes themselves."""

    speeds: tuple[NodeSpeed, ...] = ()
    """The measurements of the benchmark; empty without one."""

    @property
    def fit(self) -> bool:
        """True if runs can work in this directory, on these nodes."""
        return self.verdict.safe and all(finding.severity is not Severity.BAD for finding in self.nodes)


def examine(
    directory: Path,
    members: Members,
    here: LocalNode,
    depth: Depth,
    report: Callable[[str], None],
    *,
    benchmark: bool = False,
) -> Diagnosis | None:
    """Measure and judge the filesystem of ``directory``, and the nodes. Returns None for all members but the first.

    With ``benchmark``, also the speed of the nodes and of the connections between them is measured.
    ``report`` receives lines about the progress. Raises ConfigError if there is no such directory. Raises StoreError if
    it does not work or does not answer, or if other members do not appear. Temporary files are removed at the end.
    """
    if not retry(directory.is_dir):
        problem = "is a file" if directory.exists() else "no such directory"
        raise ConfigError(f"{directory}: {problem}; name the directory in which runs are, or will be")
    coordination = Coordination(directory, members, _TIMEOUT, report)
    try:
        with files.as_store_error(directory):
            found = bounded(
                lambda: _measure(directory, coordination, here, depth, report, benchmark),
                _EXAMINATION_TIMEOUT,
                str(directory),
            )
    except BaseException as error:
        reason = str(error) or type(error).__name__
        with contextlib.suppress(Exception):
            bounded(lambda: coordination.fail(reason), _ABORT_TIMEOUT, "abort")
        raise
    finally:
        if members.rank == 0 and members.count > 1 and coordination.created:
            probe.remove_tree(coordination.root, 10.0)
    if found is None:
        return None
    measured, node_reports, speeds = found
    findings = judge_nodes(node_reports)
    if speeds:
        findings += _judge_speeds(directory, speeds)
    return Diagnosis(measured, judge(measured), findings, tuple(speeds))


def _judge_speeds(directory: Path, speeds: Sequence[NodeSpeed]) -> tuple[Conclusion, ...]:
    """Return the findings of a benchmark, and keep its medians if they are the best so far."""
    path = benchmark_baseline(directory)
    try:
        baseline = decode(Baseline, files.read_json(path) or encode(Baseline()))
    except DecodeError:
        baseline = Baseline()  # of another version
    judged = judge_speeds(speeds, baseline)
    files.publish(path, files.to_json(encode(baseline.with_medians(judged.medians))))
    return judged.findings


def save_verdict(directory: Path, verdict: FilesystemReport) -> Path:
    """Write the verdict to the file that runs in ``directory`` read. Return its path."""
    path = doctor_verdict(directory)
    files.publish(path, files.to_json(encode(verdict)))
    return path


def _measure(
    directory: Path,
    coordination: Coordination,
    here: LocalNode,
    depth: Depth,
    report: Callable[[str], None],
    benchmark: bool,
) -> tuple[Measurements, tuple[NodeReport, ...], list[NodeSpeed]] | None:
    with contextlib.ExitStack() as stack:
        measurer = None
        if benchmark:  # it imports torch meanwhile
            environ = {**here.environ, "GLOO_SOCKET_IFNAME": here.interface}
            measurer = MeasurerProcess(COMMAND, environ)
            stack.callback(measurer.close)
        return _measure_all(directory, coordination, here, depth, report, measurer)


def _measure_all(
    directory: Path,
    coordination: Coordination,
    here: LocalNode,
    depth: Depth,
    report: Callable[[str], None],
    measurer: MeasurerProcess | None,
) -> tuple[Measurements, tuple[NodeReport, ...], list[NodeSpeed]] | None:
    host, members = os.uname().nodename.partition(".")[0], coordination.members

    def speeds() -> list[NodeSpeed] | None:
        if measurer is None:
            return []
        return measure_speeds(coordination, host, here.address, directory, measurer, report)

    if members.count == 1:
        report("measurements of this node")
        measured = Measurements((probe.measure_node(directory, host, depth.effort),))
        return measured, report_local_node(here), speeds() or []
    coordination.open()
    report(f"waiting for {members.count} members")
    coordination.publish("here")
    coordination.receive("here", range(members.count))
    node_reports = collect_node_reports(coordination, here, report)
    report("measurements of each node")
    node = probe.measure_node(directory, f"{host}:{members.rank}", depth.effort)
    if node.hangs:
        raise Hang(f"{directory}: does not answer on {host}; check that the filesystem is mounted and its server runs")
    measured_together = across.measure_together(coordination, node, depth, report)
    found = speeds()
    return (
        None
        if measured_together is None or node_reports is None or found is None
        else (measured_together, node_reports, found)
    )


def check_id(text: str) -> str:
    """Return ``text`` if it can identify an examination; ConfigError otherwise."""
    if not text or not all(letter.isalnum() or letter in "._-" for letter in text):
        raise ConfigError(
            f"--id is {text!r}; it is a part of a directory's name: use letters, digits, '.', '_' and '-'"
        )
    return text


def run_in_child(body: Callable[[], int], limit: float) -> int:
    """Run ``body`` in a child process and return its exit status.

    A child is needed because a process that waits for a dead filesystem may not be killable. Raises a ConfigError of
    ``body`` again, its other errors of hpcelastic as StoreError, and StoreError after ``limit`` seconds. Must be called
    before any thread is started.
    """
    result, errors = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = _run_child(body, errors)
        finally:  # the child must not return from this function
            os._exit(status)
    os.close(errors)
    with open(result, "rb") as pipe:
        ended = _wait_for_exit(child, limit)
        if not ended:
            os.kill(child, signal.SIGKILL)
            raise StoreError(f"no answer within {limit:g} s; check that the filesystem is mounted and its server runs")
        message = pipe.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if message:
        raise (ConfigError if status == ConfigError.exit_code else StoreError)(message)
    return status if status >= 0 else 128 - status


def _wait_for_exit(child: int, limit: float) -> bool:
    """Wait until a process ends. Ctrl-C reaches the process too, and then it gets `_CLEANUP_TIMEOUT` to clean up."""
    fd = os.pidfd_open(child)
    try:
        try:
            return bool(select.select([fd], [], [], limit)[0])
        except KeyboardInterrupt:
            return bool(select.select([fd], [], [], _CLEANUP_TIMEOUT)[0])
    finally:
        os.close(fd)


def _run_child(body: Callable[[], int], errors: int) -> int:
    try:
        status = body()
    except HpcElasticError as error:
        os.write(errors, str(error).encode(errors="backslashreplace"))
        status = error.exit_code
    except KeyboardInterrupt:
        status = 130
    except BaseException:
        traceback.print_exc()
        status = 1
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    return status
