"""The examination of a filesystem, alone or together with other nodes."""

import contextlib
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.doctor import across, probe, sight
from hpcelastic.doctor.across import Depth
from hpcelastic.doctor.measurements import Measurements
from hpcelastic.doctor.meeting import Meeting, Members
from hpcelastic.doctor.nodes import judge_nodes
from hpcelastic.doctor.rules import judge
from hpcelastic.doctor.stock import Here, Stock, take_stock, take_stock_alone
from hpcelastic.doctor.verdict import Finding, Severity, Verdict
from hpcelastic.errors import ConfigError, HpcElasticError, StoreError
from hpcelastic.protocol.codec import encode
from hpcelastic.store import files
from hpcelastic.store.bounded import Hang, bounded
from hpcelastic.store.errnos import repeated
from hpcelastic.store.paths import doctors_verdict

QUICK = Depth(probe.QUICK, names=15, patience=sight.QUICK)
FULL = Depth(probe.FULL, names=50, patience=sight.FULL)

_PATIENCE = 90.0
"""Seconds for which members wait for each other at a step."""

_FAREWELL = 5.0
"""Seconds that telling the others may take."""

_WHOLE = 240.0
"""Seconds that everything may take, however the filesystem behaves."""

_TIDYING = 15.0
"""Seconds for which what was made may be removed after an interrupt."""

LIMIT = _WHOLE + _TIDYING
"""Seconds after which an examination that has not ended never will."""


@dataclass(frozen=True)
class Diagnosis:
    """What was measured, and what it means."""

    measurements: Measurements
    verdict: Verdict
    nodes: tuple[Finding, ...] = ()
    """What is to be thought of the nodes themselves."""

    @property
    def fit(self) -> bool:
        """True if runs can work here, on these nodes."""
        return self.verdict.safe and all(finding.severity is not Severity.BAD for finding in self.nodes)


def examine(
    directory: Path, members: Members, here: Here, depth: Depth, tell: Callable[[str], None]
) -> Diagnosis | None:
    """Measure and judge the filesystem of ``directory``, and the nodes; None for a member that is not the first.

    ``tell`` is given lines about the progress. Raises ConfigError if there is no such directory, StoreError if it does
    not work or does not answer, or if other members do not turn up. What was made is removed again.
    """
    if not repeated(directory.is_dir):
        what = "is a file" if directory.exists() else "no such directory"
        raise ConfigError(f"{directory}: {what}; name the directory in which runs are, or will be")
    meeting = Meeting(directory, members, _PATIENCE, tell)
    try:
        with files.explained(directory):
            found = bounded(lambda: _measure(directory, meeting, here, depth, tell), _WHOLE, str(directory))
    except BaseException as error:
        why = str(error) or type(error).__name__
        with contextlib.suppress(Exception):
            bounded(lambda: meeting.fail(why), _FAREWELL, "farewell")
        raise
    finally:
        if members.rank == 0 and members.count > 1 and meeting.opened:
            probe.remove_tree(meeting.root, 10.0)
    if found is None:
        return None
    measured, stock = found
    return Diagnosis(measured, judge(measured), judge_nodes(stock))


def remember(directory: Path, verdict: Verdict) -> Path:
    """Leave the verdict where runs in ``directory`` look for it."""
    path = doctors_verdict(directory)
    files.publish(path, files.to_json(encode(verdict)))
    return path


def _measure(
    directory: Path, meeting: Meeting, here: Here, depth: Depth, tell: Callable[[str], None]
) -> tuple[Measurements, tuple[Stock, ...]] | None:
    host, members = os.uname().nodename.partition(".")[0], meeting.members
    if members.count == 1:
        tell("this node by itself")
        return Measurements((probe.measure_node(directory, host, depth.effort),)), take_stock_alone(here)
    meeting.open()
    tell(f"waiting for {members.count} members")
    meeting.say("here")
    meeting.hear("here", range(members.count))
    stock = take_stock(meeting, here, tell)
    tell("each node by itself")
    node = probe.measure_node(directory, f"{host}:{members.rank}", depth.effort)
    if node.hangs:
        raise Hang(f"{directory}: does not answer on {host}; check that the filesystem is mounted and its server runs")
    measured = across.take_part(meeting, node, depth, tell)
    return None if measured is None or stock is None else (measured, stock)


def check_id(text: str) -> str:
    """``text`` if it can name a meeting; ConfigError otherwise."""
    if not text or not all(letter.isalnum() or letter in "._-" for letter in text):
        raise ConfigError(f"--id is {text!r}; it names a directory: use letters, digits, '.', '_' and '-'")
    return text


def outlived(body: Callable[[], int], limit: float) -> int:
    """The exit status of ``body``, run in a child process: one that waits for a dead filesystem may be beyond killing.

    Raises what ``body`` raises of our errors, and StoreError if it takes more than ``limit`` seconds. To be called
    before any thread is started.
    """
    result, said = os.pipe()
    child = os.fork()
    if child == 0:
        os._exit(_child(body, said))
    os.close(said)
    with open(result, "rb") as pipe:
        ended = _ended(child, limit)
        if not ended:
            os.kill(child, signal.SIGKILL)
            raise StoreError(f"no answer within {limit:g} s; check that the filesystem is mounted and its server runs")
        message = pipe.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if message:
        raise (ConfigError if status == ConfigError.exit_code else StoreError)(message)
    return status if status >= 0 else 128 - status


def _ended(child: int, limit: float) -> bool:
    """Wait for the end of a process; Ctrl-C reaches it as well, and it gets a moment to clean up."""
    fd = os.pidfd_open(child)
    try:
        try:
            return bool(select.select([fd], [], [], limit)[0])
        except KeyboardInterrupt:
            return bool(select.select([fd], [], [], _TIDYING)[0])
    finally:
        os.close(fd)


def _child(body: Callable[[], int], said: int) -> int:
    try:
        status = body()
    except HpcElasticError as error:
        os.write(said, str(error).encode())
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
