"""``hpcelastic run``: run a job file on this machine, with several agents, each as if it were a node."""

import argparse
import signal
import sys
import time
from types import FrameType

from hpcelastic.agent.report import describe
from hpcelastic.api.jobs import LocalNodes
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.api.run import Run
from hpcelastic.cli.display import display
from hpcelastic.errors import ConfigError

_LOOK = 0.25
"""Seconds between two looks at the run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the job file (YAML)")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="keys to set otherwise, such as nodes=2..4")
    parser.add_argument("--nodes", type=int, metavar="N", help="agents to start; nodes.max if not given")
    parser.add_argument("--resume", action="store_true", help="continue a run that has ended, in its directory")


def run(args: argparse.Namespace) -> int:
    config = resolve(args.file, args.overrides)
    count = args.nodes or config.nodes.max
    if count < config.nodes.min:
        raise ConfigError(f"--nodes is {count}, less than nodes.min, {config.nodes.min}: the run could never start")
    paths = prepare(config, resume=args.resume)
    nodes, started = LocalNodes(paths, count), Run(paths.root)
    with _Interrupts(nodes) as interrupts, display(started, sys.stdout) as show:
        nodes.start()
        while nodes.alive():
            time.sleep(_LOOK)
            show()
        show()
    return _verdict(started, nodes, interrupted=interrupts.count > 0)


def _verdict(started: Run, nodes: LocalNodes, *, interrupted: bool) -> int:
    status = started.status()
    for i, failure in enumerate(status.failures if status.phase == "failed" else ()):
        print(describe(failure, full=i == 0), file=sys.stderr)
    if interrupted:
        print(
            f"interrupted; continue with: hpcelastic run --resume … (its state is in {status.directory})",
            file=sys.stderr,
        )
        return 130
    if status.phase not in ("succeeded", "failed", "closed"):
        logs = ", ".join(str(nodes.log(index)) for index, code in nodes.wait().items() if code)
        print(f"all agents ended before the run did; see {logs}", file=sys.stderr)
        return 1
    return 0 if status.phase == "succeeded" else 1


class _Interrupts:
    """Ctrl-C: the first asks the agents to stop, the second makes them do it at once."""

    def __init__(self, nodes: LocalNodes) -> None:
        self._nodes = nodes
        self.count = 0

    def __enter__(self) -> "_Interrupts":
        self._before = {s: signal.signal(s, self._interrupted) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _interrupted(self, _signum: int, _frame: FrameType | None) -> None:
        self.count += 1
        self._nodes.signal(signal.SIGTERM)
        if self.count == 1:
            print("stopping; press Ctrl-C again to stop at once", file=sys.stderr)
