"""``hpcelastic run``: run a job file on this machine, with one agent for each node of the job."""

import argparse
import contextlib
import os
import shlex
import signal
import sys
import time
from types import FrameType

from hpcelastic.agent.nonblocking_output import nonblocking_stdio
from hpcelastic.agent.report import describe
from hpcelastic.api.display import display
from hpcelastic.api.jobs import LocalNodes
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.api.registry import record_run
from hpcelastic.api.run import Run
from hpcelastic.api.status import RunStatus
from hpcelastic.cli.job import add_job, add_resume, exit_status, warning_printer
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.storage.bounded import bounded

_POLL_INTERVAL = 0.25
"""Seconds between two updates of the display."""

_TIMEOUT = 5.0
"""Seconds for reading the status at the end."""

_STALL_TIMEOUT = 60.0
"""Seconds to wait for a reader of the output that takes nothing, such as a pager. The agents do not wait for it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument(
        "--nodes", type=int, metavar="N", help="number of agents to start (default: nodes.max + nodes.spares)"
    )
    add_resume(parser)


def run(args: argparse.Namespace) -> int:
    config = resolve(args.file, args.overrides, args.profile, warning_printer("run"))
    count = config.nodes.wanted if args.nodes is None else args.nodes
    if count < config.nodes.min:
        raise ConfigError(
            f"--nodes is {count}, less than nodes.min, {config.nodes.min}; start at least {config.nodes.min} nodes"
        )
    paths = prepare(config, resume=args.resume)
    with nonblocking_stdio(_STALL_TIMEOUT):  # the run goes on if its terminal is gone, or the disk is full
        return _supervise(args, LocalNodes(paths, count), Run(paths.root))


def _supervise(args: argparse.Namespace, nodes: LocalNodes, started: Run) -> int:
    """Start the agents, show the run until all of them have ended, and return the exit status."""
    with _Interrupts(nodes) as interrupts, display(started, sys.stdout) as show:
        nodes.start()
        record_run(started.directory)
        interrupts.enable_forwarding()
        while nodes.alive():
            time.sleep(_POLL_INTERVAL)
            show()
        show()
    status = _status(started)
    if status is not None and status.ended:
        return _report_result(status)
    if interrupts.signum:
        print(f"interrupted; continue with: {_resume_command(args, started)}", file=sys.stderr)
        return 128 + interrupts.signum
    logs = ", ".join(str(nodes.log(index)) for index, code in nodes.wait().items() if code)
    print(f"all agents ended before the end of the run; see {logs}", file=sys.stderr)
    print(f"continue with: {_resume_command(args, started)}", file=sys.stderr)
    return 1


def _resume_command(args: argparse.Namespace, started: Run) -> str:
    """Return the command line that resumes the run."""
    overrides = [item for item in args.overrides if not item.startswith("run.name=")]
    given = [] if args.nodes is None else ["--nodes", str(args.nodes)]
    given += [] if args.profile is None else ["--profile", args.profile]
    return shlex.join(["hpcelastic", "run", args.file, *overrides, f"run.name={started.name}", *given, "--resume"])


def _status(started: Run) -> RunStatus | None:
    """Return the status of the run. Prints an error and returns None if the directory cannot be read."""
    try:
        return bounded(started.status, _TIMEOUT, str(started.directory))
    except (OSError, StoreError) as error:
        print(f"hpcelastic run: {error}", file=sys.stderr)
        return None


def _report_result(status: RunStatus) -> int:
    for i, failure in enumerate(status.failures if status.phase == "failed" else ()):
        print(describe(failure, full=i == 0), file=sys.stderr)
    if status.crash_loop:
        print(f"hpcelastic run: {status.reason}", file=sys.stderr)
    return exit_status(status)


class _Interrupts:
    """Handle Ctrl-C or a closed terminal: the first signal stops the agents, the second one stops them at once."""

    def __init__(self, nodes: LocalNodes) -> None:
        self._nodes = nodes
        self.signum = 0
        """The first signal; 0 if none was received."""
        self._started = False

    def __enter__(self) -> "_Interrupts":
        caught = [s for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) != signal.SIG_IGN]
        self._before = {signum: signal.signal(signum, self._handle_signal) for signum in caught}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def enable_forwarding(self) -> None:
        """Forward signals to the agents, now that all are started. Forwards an earlier signal at once."""
        self._started = True
        if self.signum:
            self._nodes.signal(signal.SIGTERM)

    def _handle_signal(self, signum: int, _frame: FrameType | None) -> None:
        if self._started:
            self._nodes.signal(signal.SIGTERM)
        if not self.signum:
            self.signum = signum
            with contextlib.suppress(OSError):  # the terminal may be gone
                os.write(sys.stderr.fileno(), b"stopping; press Ctrl-C again to stop at once\n")
