"""``hpcelastic agent``: run one node of a run."""

import argparse
import contextlib
import io
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from hpcelastic.agent.member import NodeIdentity
from hpcelastic.agent.nonblocking_output import nonblocking_stdio
from hpcelastic.agent.session import Observe
from hpcelastic.agent.settings import AgentSettings, HangSettings, StragglerSettings
from hpcelastic.bootstrap import Task, local_identity, run_node_agent, task_of_run
from hpcelastic.cli import torchrun
from hpcelastic.cli.error_file import record_cause
from hpcelastic.cli.parser import RenamedFlag, number_of
from hpcelastic.config.endpoint import bare_name_error, is_bare_name
from hpcelastic.config.job import NODES, node_range
from hpcelastic.config.pairs import read_settings, split_pairs
from hpcelastic.config.rdzv_conf import RdzvConf, read_conf
from hpcelastic.config.slurm import check_time
from hpcelastic.errors import ConfigError, HpcElasticError
from hpcelastic.network.sockets import endpoint
from hpcelastic.protocol.settings import (
    EMBEDDED,
    FILE,
    STATIC,
    NodeRange,
    RestartSettings,
    Settings,
)
from hpcelastic.slurm.environment import outside_of_steps, slurm_task
from hpcelastic.slurm.restart import FIRST, Restart, start_agent
from hpcelastic.storage.home import expand_home
from hpcelastic.storage.paths import RunPaths

T = TypeVar("T")

C10D = "c10d"

_MASTER_PORT = 29500
"""The default of torchrun."""

_HOST = re.compile(r"[^/]*:\d*")
"""A server in an endpoint."""

_NOT_IN_A_STEP = (
    "this agent runs in a SLURM job, but srun did not start it: it receives no warning before a preemption or the time "
    "limit, and it never requeues the job; write: srun --ntasks=1 hpcelastic agent ..."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "hpcelastic agent [options] SCRIPT [ARG ...]\n       hpcelastic agent --run-dir DIR"
    run = parser.add_argument_group("a run that `hpcelastic submit` or `hpcelastic run` has created")
    run.add_argument("--run-dir", metavar="DIR", help="directory of the run, which contains its config.json")
    line = parser.add_argument_group("a run without a job file, with the options of torchrun")
    line.add_argument("--nnodes", default="1", metavar="MIN:MAX", help="number of nodes, or a range (default: 1)")
    line.add_argument(
        "--max-restarts",
        "--max_restarts",
        type=int,
        default=0,
        metavar="N",
        help="maximum number of restarts after failures (default: 0)",
    )
    line.add_argument(
        "--rdzv-id", "--rdzv_id", metavar="ID", help="name of the run (default: from the id of the SLURM job)"
    )
    what = "a directory that all nodes share; for a --rdzv-backend with a server, HOST:PORT"
    line.add_argument("--rdzv-endpoint", "--rdzv_endpoint", metavar="DIR", help=what)
    what = "file (default), c10d, static, etcd or etcd-v2; always file if the endpoint is a directory"
    line.add_argument("--rdzv-backend", "--rdzv_backend", metavar="NAME", help=what)
    what = "directory of runs if the endpoint is HOST:PORT; all nodes must share it (default: runs)"
    line.add_argument("--runs", default="runs", metavar="DIR", help=what)
    what = "endpoint of --rdzv-backend=static (default: the first node of the SLURM job, and a port from its job id)"
    line.add_argument("--master-addr", "--master_addr", metavar="HOST", help=what)
    line.add_argument("--master-port", "--master_port", type=int, metavar="PORT", help=argparse.SUPPRESS)
    what = "settings of the rendezvous in seconds: join_timeout, last_call, lease, margin, poll, checkpoint_grace"
    line.add_argument("--rdzv-conf", "--rdzv_conf", default="", metavar="K=V,...", help=what)
    what = "detection of hangs, such as action=report or action=ignore; the keys are those of hangs in a job file"
    line.add_argument("--hangs", default="", metavar="K=V,...", help=what)
    what = "search for stragglers, such as action=exclude; the keys are those of stragglers in a job file"
    line.add_argument("--stragglers", default="", metavar="K=V,...", help=what)
    what = "a run on this node only, in a new temporary directory; ignores the --rdzv-* options"
    line.add_argument("--standalone", action="store_true", help=what)
    torchrun.add_options(parser)
    parser.epilog = "docs/torchrun.md describes every option of torchrun."
    job = parser.add_argument_group("the SLURM job of this agent (defaults: the run's config.json)")
    job.add_argument(
        "--total-time",
        metavar="TIME",
        help="requeue the job at its time limit until it has taken TIME in all: MINUTES, HH:MM:SS, D-HH:MM:SS",
    )
    job.add_argument(
        "--max-requeues", type=int, metavar="N", help="maximum number of requeues of the job by its agents"
    )
    job.add_argument(
        "--warning",
        type=number_of("seconds", or_zero=True),
        metavar="SECONDS",
        help="the value N in the #SBATCH --signal=USR2@N of the job",
    )
    job.add_argument("--no-requeue", action="store_true", help="do not requeue the job after a preemption")
    where = parser.add_argument_group("the node of this agent (defaults: detected)")
    where.add_argument("--node-name", metavar="NAME", help="name of this node; it must be unique in the run")
    where.add_argument(
        "--local-addr", "--local_addr", metavar="ADDRESS", help="address at which other nodes reach this node"
    )
    where.add_argument(
        "--interface",
        metavar="NAME",
        help="interface at which other nodes reach this node, such as ib0, or a network, such as 10.1.0.0/16",
    )
    where.add_argument(
        "--ports",
        metavar="A-B",
        help="ports at which this agent and the store of the workers listen, such as 29500-29600",
    )
    how = where.add_mutually_exclusive_group()
    what = "do not notify other agents over the network; poll the run's directory only"
    how.add_argument("--no-notifications", action="store_true", help=what)
    how.add_argument("--no-doorbell", action=RenamedFlag, new_name="--no-notifications")
    where.add_argument("--no-health-check", action="store_true", help="join without the health check of this node")
    where.add_argument(
        "--node-rank", "--node_rank", type=int, metavar="N", help="position of this node in the order of new nodes"
    )
    where.add_argument("--job", type=_job, metavar="NAME:NODES", help=argparse.SUPPRESS)
    parser.add_argument("script", nargs="?", help="the script of each worker")
    parser.add_argument("script_args", nargs=argparse.REMAINDER, metavar="ARG", help="arguments of the script")
    torchrun.apply_environment_defaults(parser, os.environ)


def run(args: argparse.Namespace) -> int:
    messages = io.StringIO()  # printed after the fork: a thread that cannot write to a full disk would prevent it
    with contextlib.redirect_stderr(messages), _print_errors() as failed:
        task = task_of(args)
        if args.job is None and outside_of_steps(os.environ):
            print(f"hpcelastic agent: {_NOT_IN_A_STEP}", file=sys.stderr)
    restart = start_agent() if not failed and args.job is None and slurm_task(os.environ) else FIRST
    with nonblocking_stdio():
        if restart == FIRST:
            print(messages.getvalue(), end="", file=sys.stderr)
        if failed:
            return failed[0]
        with _print_errors(task.paths) as failed:
            return _run_task(task, args, restart)
    return failed[0]


def _run_task(task: Task, args: argparse.Namespace, restart: Restart) -> int:
    """Run the agent, and report it to torch's events and metrics if the flags ask for it. Return the exit status."""
    place, event_handler = place_of_flags(args), torchrun.event_handler(args)

    def run_agent(observe: Observe | None = None) -> int:
        return run_node_agent(task, place, observe, restart, any_name=not (args.node_name or place.job))

    if event_handler is None:
        return run_agent()
    from hpcelastic.pytorch.reporting import run_reported  # it imports torch, which other agents need not load

    return run_reported(run_agent, task, event_handler, torchrun.monitor_interval(args))


@contextlib.contextmanager
def _print_errors(paths: RunPaths | None = None) -> Iterator[list[int]]:
    """Print an error, store its exit status in the list, and write the error file of an outer launcher.

    The error must not be printed outside of `nonblocking_stdio`: a disk that is full or hangs could block the agent.
    ``paths`` are the paths of the run, once they are known.
    """
    failed: list[int] = []
    try:
        yield failed
    except HpcElasticError as error:
        print(f"hpcelastic agent: {error}", file=sys.stderr)
        record_cause(error, paths, os.environ)
        failed.append(error.exit_code)


def task_of(args: argparse.Namespace) -> Task:
    """Return the task of the agent. Raises ConfigError."""
    task = _with_role(task_of_run(args.run_dir), args) if args.run_dir else _from_flags(args)
    return _with_job_settings(_with_health_check(_with_network(task, args), args), args)


def _from_flags(args: argparse.Namespace) -> Task:
    torchrun.check_options(args)
    entrypoint = torchrun.entrypoint(args)
    for line in (*torchrun.unneeded(args), *torchrun.unserved(os.environ)):
        print(f"hpcelastic agent: {line}", file=sys.stderr)
    alone = args.standalone or _is_single_node(args)
    directory, server = (None, (FILE, "")) if alone else _location(args)
    try:
        backend, endpoint = server
        conf = _conf(args.rdzv_conf, backend, endpoint)
        restarts = RestartSettings(args.max_restarts, refill_interval=0, refill_steps=0, identical=0)  # as torchrun
        settings = Settings(_nodes(args.nnodes), conf.settings, restarts)
        port = 0 if backend == STATIC else args.master_port or 0  # static: --master-port is the port of the rendezvous
        workers, logs = torchrun.workers(args), torchrun.logs(args)
        hangs = _settings(HangSettings, "--hangs", args.hangs)
        stragglers = _settings(StragglerSettings, "--stragglers", args.stragglers)
        agent = AgentSettings(entrypoint, workers, logs, hangs=hangs, stragglers=stragglers, store_port=port)
    except ValueError as error:
        raise ConfigError(torchrun.with_flag_names(str(error))) from error
    if directory is None:
        directory = _temporary_directory(settings.nodes)
    run_id = (None if args.standalone else args.rdzv_id) or _default_id(settings.nodes)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", run_id):
        raise ConfigError(
            f"--rdzv-id is {run_id!r}; use letters, digits, '.', '_' and '-': it is the name of a directory"
        )
    paths = RunPaths(directory / run_id)
    return Task(paths, run_id, settings, agent, is_host=conf.is_host)


def _with_role(task: Task, args: argparse.Namespace) -> Task:
    """Return ``task`` with the role of this node's workers from the flags."""
    workers = task.agent.workers
    return replace(task, agent=replace(task.agent, workers=replace(workers, role=args.role or workers.role)))


def _with_network(task: Task, args: argparse.Namespace) -> Task:
    """Return ``task`` with the network settings from the flags, which override its own settings."""
    network = task.agent.network
    try:
        network = replace(
            network,
            interface=args.interface or network.interface,
            ports=args.ports or network.ports,
            notifications=network.notifications and not args.no_notifications,
        )
    except ValueError as error:
        raise ConfigError(str(error).replace("network.", "--", 1)) from error
    return replace(task, agent=replace(task.agent, network=network))


def _with_health_check(task: Task, args: argparse.Namespace) -> Task:
    """Return ``task`` without the health check if the flags disable it."""
    health = task.agent.health
    return replace(
        task, agent=replace(task.agent, health=replace(health, check=health.check and not args.no_health_check))
    )


def _with_job_settings(task: Task, args: argparse.Namespace) -> Task:
    """Return ``task`` with the settings of this agent's job from the flags. A run can have several jobs."""
    if args.total_time is not None:
        try:
            check_time("--total-time", args.total_time)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    if args.total_time is not None and args.no_requeue:
        raise ConfigError("--total-time requeues the job, and --no-requeue forbids it; remove one of them")
    slurm = task.slurm
    try:
        slurm = replace(
            slurm,
            requeue=slurm.requeue and not args.no_requeue,
            max_requeues=slurm.max_requeues if args.max_requeues is None else args.max_requeues,
            warning=slurm.warning if args.warning is None else args.warning,
        )
    except ValueError as error:
        raise ConfigError(re.sub(r"slurm\.(\w+)", lambda key: f"--{key[1]}".replace("_", "-"), str(error))) from error
    return replace(task, slurm=slurm, total_time=args.total_time or task.total_time)


def _is_single_node(args: argparse.Namespace) -> bool:
    """True for one node without an endpoint: torchrun handles it as --standalone too."""
    if args.rdzv_endpoint or args.master_addr or _nodes(args.nnodes).max > 1:
        return False
    if args.rdzv_backend == STATIC:
        return slurm_task(os.environ) is None  # in a SLURM job, the endpoint is derived from it
    return args.rdzv_backend in (None, FILE, C10D)


def _temporary_directory(nodes: NodeRange) -> Path:
    """Return a new directory for a run on this node only. It is kept, like the logs of torchrun."""
    if nodes.max > 1:
        raise ConfigError(f"--standalone runs on one node, but --nnodes allows {nodes.max} nodes; remove one of them")
    directory = Path(tempfile.gettempdir(), f"hpcelastic-{secrets.token_hex(4)}")
    print(f"hpcelastic agent: this run is stored in {directory}", file=sys.stderr)
    return directory


def _location(args: argparse.Namespace) -> tuple[Path, tuple[str, str]]:
    """Return the directory of runs, the backend and its endpoint. A directory as the endpoint implies file."""
    text, backend = args.rdzv_endpoint or "", args.rdzv_backend or (STATIC if args.master_addr else FILE)
    remedy = "write a directory that all nodes share, such as /scratch/me/runs"
    if not text and backend == STATIC:
        if args.master_port and not args.master_addr:
            raise ConfigError(
                "--master-port is the port of --master-addr, which is missing; name that address, or remove the port: "
                "the backend static finds both in a SLURM job"
            )
        text = endpoint(args.master_addr, args.master_port or _MASTER_PORT) if args.master_addr else ""
        return _directory("--runs", args.runs), (backend, text)
    if not text:
        raise ConfigError(f"--rdzv-endpoint is missing; {remedy}")
    if is_bare_name(text) and text != EMBEDDED:
        if backend == FILE:
            raise ConfigError(bare_name_error("--rdzv-endpoint", text))
        return _directory("--runs", args.runs), (backend, text)
    if not _is_server(text):
        return _directory("--rdzv-endpoint", text), (FILE, "")
    if backend == FILE:
        what = f"--rdzv-endpoint is {text!r}, a host and a port, but the backend is file; {remedy}"
        raise ConfigError(f"{what}, or name the backend of the server, such as --rdzv-backend=c10d")
    return _directory("--runs", args.runs), (backend, text)


def _is_server(text: str) -> bool:
    servers = text == EMBEDDED or all(_HOST.fullmatch(part.partition("//")[2] or part) for part in text.split(","))
    if text.startswith(("file:", "http://", "https://")):
        return True
    return servers and not os.path.exists(os.path.expanduser(text))


def _directory(flag: str, text: str) -> Path:
    directory = expand_home(text).absolute()
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{flag} is {text!r}, but {directory} is a file; write a directory that all nodes share")
    return directory


def _nodes(text: str) -> NodeRange:
    if not NODES.fullmatch(text):
        raise ConfigError(f"--nnodes is {text!r}; write a number of nodes, or MIN:MAX")
    return node_range(text)


def _conf(text: str, backend: str, endpoint: str) -> RdzvConf:
    """Parse --rdzv-conf, and print its warnings. Raises ConfigError."""
    try:
        conf = read_conf(split_pairs(text), backend, endpoint)
    except ValueError as error:
        raise ConfigError(f"--rdzv-conf: {error}") from error
    for line in conf.warnings:
        print(f"hpcelastic agent: --rdzv-conf: {line}", file=sys.stderr)
    return conf


def _settings(kind: type[T], flag: str, text: str) -> T:
    """Return the settings ``kind`` that ``flag`` has; raises ConfigError."""
    try:
        return read_settings(kind, split_pairs(text))
    except ValueError as error:
        raise ConfigError(f"{flag}: {str(error).removeprefix(flag[2:] + '.')}") from error


def _default_id(nodes: NodeRange) -> str:
    task = slurm_task(os.environ)
    if task is None and nodes.max > 1:
        raise ConfigError("--rdzv-id is missing; write the same name for every agent of the run")
    return f"job-{task.job_id}" if task else f"alone-{os.getpid()}"


def place_of_flags(args: argparse.Namespace) -> NodeIdentity:
    """Return the place of this agent: from the flags, else detected."""
    place = local_identity()
    job, nodes = args.job or (place.job, place.job_nodes)
    order = place.order if args.node_rank is None else args.node_rank
    return replace(
        place,
        name=args.node_name or place.name,
        host=place.host or (place.name if args.node_name else ""),
        job=job,
        job_nodes=nodes,
        order=order,
        address=args.local_addr or "",
    )


def _job(text: str) -> tuple[str, int]:
    name, _, nodes = text.rpartition(":")
    return name, int(nodes)
