"""``hpcelastic run``: run a job file on this machine, with several agents, each as if it were a node."""

import argparse
import os
import shlex
import signal
import sys
import time
from types import FrameType

from hpcelastic.agent.report import describe
from hpcelastic.api.display import display
from hpcelastic.api.jobs import LocalNodes
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.api.registry import note
from hpcelastic.api.run import Run
from hpcelastic.api.status import RunStatus
from hpcelastic.cli.job import add_job, add_resume
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.store.bounded import bounded

_LOOK = 0.25
"""Seconds between two looks at the run."""

_PATIENCE = 5.0
"""Seconds that the last look may take."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument("--nodes", type=int, metavar="N", help="agents to start; nodes.max + nodes.spares if not given")
    add_resume(parser)


def run(args: argparse.Namespace) -> int:
    config = resolve(args.file, args.overrides, args.profile)
    count = config.nodes.wanted if args.nodes is None else args.nodes
    if count < config.nodes.min:
        raise ConfigError(f"--nodes is {count}, less than nodes.min, {config.nodes.min}: the run could never start")
    paths = prepare(config, resume=args.resume)
    nodes, started = LocalNodes(paths, count), Run(paths.root)
    with _Interrupts(nodes) as interrupts, display(started, sys.stdout) as show:
        nodes.start()
        note(started.directory)
        interrupts.reach_the_nodes()
        while nodes.alive():
            time.sleep(_LOOK)
            show()
        show()
    status = _status(started)
    if status is not None and status.ended:
        return _verdict(status)
    if interrupts.signum:
        print(f"interrupted; continue with: {_again(args, started)}", file=sys.stderr)
        return 128 + interrupts.signum
    logs = ", ".join(str(nodes.log(index)) for index, code in nodes.wait().items() if code)
    print(f"all agents ended before the run did; see {logs}", file=sys.stderr)
    print(f"continue with: {_again(args, started)}", file=sys.stderr)
    return 1


def _again(args: argparse.Namespace, started: Run) -> str:
    """The command line that resumes the run."""
    overrides = [item for item in args.overrides if not item.startswith("run.name=")]
    given = [] if args.nodes is None else ["--nodes", str(args.nodes)]
    given += [] if args.profile is None else ["--profile", args.profile]
    return shlex.join(["hpcelastic", "run", args.file, *overrides, f"run.name={started.name}", *given, "--resume"])


def _status(started: Run) -> RunStatus | None:
    """How the run stands; None if its directory does not tell, which is said."""
    try:
        return bounded(started.status, _PATIENCE, str(started.directory))
    except (OSError, StoreError) as error:
        print(f"hpcelastic run: {error}", file=sys.stderr)
        return None


def _verdict(status: RunStatus) -> int:
    for i, failure in enumerate(status.failures if status.phase == "failed" else ()):
        print(describe(failure, full=i == 0), file=sys.stderr)
    return 0 if status.phase == "succeeded" else 1


class _Interrupts:
    """Ctrl-C, or a terminal that is closed: the first asks the agents to stop, the second makes them do it at once."""

    def __init__(self, nodes: LocalNodes) -> None:
        self._nodes = nodes
        self.signum = 0
        """The first signal; 0 if there was none."""
        self._started = False

    def __enter__(self) -> "_Interrupts":
        caught = [s for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) != signal.SIG_IGN]
        self._before = {signum: signal.signal(signum, self._interrupted) for signum in caught}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def reach_the_nodes(self) -> None:
        """All nodes have been started: from now on they can be told, also of a signal that came while they were."""
        self._started = True
        if self.signum:
            self._nodes.signal(signal.SIGTERM)

    def _interrupted(self, signum: int, _frame: FrameType | None) -> None:
        if self._started:
            self._nodes.signal(signal.SIGTERM)
        if not self.signum:
            self.signum = signum
            os.write(sys.stderr.fileno(), b"stopping; press Ctrl-C again to stop at once\n")
