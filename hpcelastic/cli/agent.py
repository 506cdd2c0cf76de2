"""``hpcelastic agent``: take part in a run as one node."""

import argparse
import os
import re
import secrets
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from hpcelastic.agent.node import Place
from hpcelastic.agent.outlet import free_output
from hpcelastic.agent.settings import AgentSettings
from hpcelastic.cli import torchrun
from hpcelastic.config.job import NODES, node_range
from hpcelastic.config.rdzv_conf import RdzvConf, read_conf
from hpcelastic.config.slurm import TIME
from hpcelastic.errors import ConfigError, HpcElasticError
from hpcelastic.network.settings import NetworkSettings
from hpcelastic.protocol.settings import (
    EMBEDDED,
    FILE,
    STATIC,
    NodeRange,
    RestartSettings,
    Settings,
)
from hpcelastic.slurm.entry import Task, place_here, take_part, take_part_by_a_free_name, task_of_run
from hpcelastic.slurm.environment import beside_the_steps, slurm_task
from hpcelastic.store.paths import RunPaths

_HOST = re.compile(r"[^/]*:\d*")
"""A server as an endpoint."""

_NO_STEP = (
    "in a SLURM job, but not started by srun: no warning before a preemption or the time limit reaches this agent, and "
    "it never requeues the job; write: srun --ntasks=1 hpcelastic agent ..."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "hpcelastic agent [options] SCRIPT [ARG ...]\n       hpcelastic agent --run-dir DIR"
    run = parser.add_argument_group("a run that `hpcelastic submit` or `hpcelastic run` has set up")
    run.add_argument("--run-dir", metavar="DIR", help="the run's directory, with its config.json")
    line = parser.add_argument_group("a run of its own, with torchrun's flags")
    line.add_argument("--nnodes", default="1", metavar="MIN:MAX", help="number of nodes, or a range")
    line.add_argument("--max-restarts", "--max_restarts", type=int, default=0, metavar="N", help="failures to survive")
    line.add_argument("--rdzv-id", "--rdzv_id", metavar="ID", help="name of the run; the SLURM job's id if not given")
    what = "a directory that all nodes share; with another --rdzv-backend, HOST:PORT"
    line.add_argument("--rdzv-endpoint", "--rdzv_endpoint", metavar="DIR", help=what)
    what = "file (if not given), c10d, static, etcd or etcd-v2; no other than file where the endpoint is a directory"
    line.add_argument("--rdzv-backend", "--rdzv_backend", metavar="NAME", help=what)
    what = "where a run is kept whose endpoint is HOST:PORT: a directory that all nodes share"
    line.add_argument("--runs", default="runs", metavar="DIR", help=what)
    what = "endpoint of --rdzv-backend=static; SLURM's first node and a port by the job's number if not given"
    line.add_argument("--master-addr", "--master_addr", metavar="HOST", help=what)
    line.add_argument("--master-port", "--master_port", type=int, default=29500, metavar="PORT", help=argparse.SUPPRESS)
    line.add_argument(
        "--rdzv-conf", "--rdzv_conf", default="", metavar="K=V,...", help="join_timeout, last_call, lease, margin, poll"
    )
    what = "a run on this node alone, in a new directory for temporary files; --rdzv-* are not looked at"
    line.add_argument("--standalone", action="store_true", help=what)
    torchrun.add_options(parser)
    parser.epilog = "docs/torchrun.md has every option of torchrun's."
    job = parser.add_argument_group("the SLURM job that it runs in; as the run's config.json says if not given")
    job.add_argument(
        "--total-time",
        metavar="TIME",
        help="start the job again after its time limit, until it has run so long: MINUTES, HH:MM:SS, D-HH:MM:SS",
    )
    job.add_argument("--max-requeues", type=int, metavar="N", help="how often its agents may start it again")
    job.add_argument("--warning", type=float, metavar="SECONDS", help="the N of its own #SBATCH --signal=USR2@N")
    job.add_argument("--no-requeue", action="store_true", help="do not start it again after a preemption")
    where = parser.add_argument_group("where this agent runs; found out if not given")
    where.add_argument("--node-name", metavar="NAME", help="name of this node, unique in the run")
    where.add_argument(
        "--local-addr", "--local_addr", metavar="ADDRESS", help="address at which others reach this node"
    )
    where.add_argument(
        "--interface", metavar="NAME", help="interface at which others reach this node: ib0, or a network: 10.1.0.0/16"
    )
    where.add_argument(
        "--no-doorbell", action="store_true", help="never ring other agents; look in the run's directory only"
    )
    where.add_argument("--no-health-check", action="store_true", help="join without a look at this node's health")
    where.add_argument("--node-rank", "--node_rank", type=int, metavar="N", help="place of this node among new ones")
    where.add_argument("--job", type=_job, metavar="NAME:NODES", help=argparse.SUPPRESS)
    parser.add_argument("script", nargs="?", help="what each worker runs")
    parser.add_argument("script_args", nargs=argparse.REMAINDER, metavar="ARG", help="its arguments")
    torchrun.take_defaults(parser, os.environ)


def run(args: argparse.Namespace) -> int:
    with free_output():
        try:
            task = task_of(args)
            if args.job is None and beside_the_steps(os.environ):
                print(f"hpcelastic agent: {_NO_STEP}", file=sys.stderr)
            place = place_of_flags(args)
            if args.node_name or place.job:
                return take_part(task, place)
            return take_part_by_a_free_name(task, place)
        except HpcElasticError as error:  # told here, for elsewhere a full disk or a hung one could stop us
            print(f"hpcelastic agent: {error}", file=sys.stderr)
            return error.exit_code


def task_of(args: argparse.Namespace) -> Task:
    """What the agent is to take part in. Raises ConfigError."""
    task = _in_role(task_of_run(args.run_dir), args) if args.run_dir else _from_flags(args)
    return _of_the_job(_unchecked(_networked(task, args), args), args)


def _from_flags(args: argparse.Namespace) -> Task:
    torchrun.refuse(args)
    entrypoint = torchrun.entrypoint(args)
    for line in torchrun.unneeded(args):
        print(f"hpcelastic agent: {line}", file=sys.stderr)
    directory, server = (None, (FILE, "")) if args.standalone else _kept(args)
    try:
        backend, endpoint = server
        conf = _conf(args.rdzv_conf, backend, endpoint)
        settings = Settings(_nodes(args.nnodes), conf.settings, RestartSettings(args.max_restarts))
        agent = AgentSettings(entrypoint, torchrun.workers(args), torchrun.logs(args))
    except ValueError as error:
        raise ConfigError(torchrun.in_flags(str(error))) from error
    if directory is None:
        directory = _alone(settings.nodes)
    run_id = (None if args.standalone else args.rdzv_id) or _default_id(settings.nodes)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", run_id):
        raise ConfigError(f"--rdzv-id is {run_id!r}; it names a directory: use letters, digits, '.', '_' and '-'")
    paths = RunPaths(directory / run_id)
    return Task(paths, run_id, settings, agent, is_host=conf.is_host)


def _in_role(task: Task, args: argparse.Namespace) -> Task:
    """``task`` with the role that the flags give this node's workers."""
    workers = task.agent.workers
    return replace(task, agent=replace(task.agent, workers=replace(workers, role=args.role or workers.role)))


def _networked(task: Task, args: argparse.Namespace) -> Task:
    """``task`` with what the flags say of the network, which goes before its own settings."""
    network = task.agent.network
    try:
        network = NetworkSettings(args.interface or network.interface, network.doorbell and not args.no_doorbell)
    except ValueError as error:
        raise ConfigError(str(error).replace("network.interface", "--interface", 1)) from error
    return replace(task, agent=replace(task.agent, network=network))


def _unchecked(task: Task, args: argparse.Namespace) -> Task:
    """``task`` without the check of this node, if the flags say so."""
    health = task.agent.health
    return replace(
        task, agent=replace(task.agent, health=replace(health, check=health.check and not args.no_health_check))
    )


def _of_the_job(task: Task, args: argparse.Namespace) -> Task:
    """``task`` with what the flags say of this agent's job, which may be another than that which began the run."""
    if args.total_time is not None and not TIME.fullmatch(args.total_time):
        form = "MINUTES, HH:MM:SS, D-HH:MM:SS or UNLIMITED"
        raise ConfigError(f"--total-time is {args.total_time!r}; write {form}")
    if args.total_time is not None and args.no_requeue:
        raise ConfigError("--total-time starts the job again, and --no-requeue forbids it; leave one of them out")
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


def _alone(nodes: NodeRange) -> Path:
    """A new directory for a run that no other node shares; as torchrun's logs it is kept."""
    if nodes.max > 1:
        raise ConfigError(f"--standalone is a run on this node alone, and --nnodes allows {nodes.max}; leave one out")
    directory = Path(tempfile.gettempdir(), f"hpcelastic-{secrets.token_hex(4)}")
    print(f"hpcelastic agent: --standalone: this run is kept in {directory}", file=sys.stderr)
    return directory


def _kept(args: argparse.Namespace) -> tuple[Path, tuple[str, str]]:
    """The directory of runs; the backend and its endpoint, which is a directory's files wherever one is named."""
    text, backend = args.rdzv_endpoint or "", args.rdzv_backend or FILE
    remedy = "name a directory that all nodes share, such as /scratch/me/runs"
    if not text and backend == STATIC:
        text = f"{args.master_addr}:{args.master_port}" if args.master_addr else ""
        return _directory("--runs", args.runs), (backend, text)
    if not text:
        raise ConfigError(f"--rdzv-endpoint is missing: {remedy}")
    if not _is_server(text):
        return _directory("--rdzv-endpoint", text), (FILE, "")
    if backend == FILE:
        what = f"--rdzv-endpoint is {text!r}, a host and a port, of which no run needs any: {remedy}"
        raise ConfigError(f"{what}; or say what runs there, such as --rdzv-backend=c10d")
    return _directory("--runs", args.runs), (backend, text)


def _is_server(text: str) -> bool:
    servers = text == EMBEDDED or all(_HOST.fullmatch(part.partition("//")[2] or part) for part in text.split(","))
    return text.startswith(("file:", "http://", "https://")) or (servers and not Path(text).expanduser().exists())


def _directory(flag: str, text: str) -> Path:
    directory = Path(text).expanduser().absolute()
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{flag} is {text!r}, and {directory} is a file: name a directory that all nodes share")
    return directory


def _nodes(text: str) -> NodeRange:
    if not NODES.fullmatch(text):
        raise ConfigError(f"--nnodes is {text!r}; write a number of nodes, or MIN:MAX")
    return node_range(text)


def _conf(text: str, backend: str, endpoint: str) -> RdzvConf:
    """What --rdzv-conf says; what it says in vain is told."""
    pairs = (pair.partition("=") for pair in filter(None, text.split(",")))
    try:
        conf = read_conf({name.strip(): value for name, _, value in pairs}, backend, endpoint)
    except ValueError as error:
        raise ConfigError(f"--rdzv-conf: {error}") from error
    for line in conf.unneeded:
        print(f"hpcelastic agent: --rdzv-conf: {line}", file=sys.stderr)
    return conf


def _default_id(nodes: NodeRange) -> str:
    task = slurm_task(os.environ)
    if task is None and nodes.max > 1:
        raise ConfigError("--rdzv-id is missing: give every agent of the run the same name")
    return f"job-{task.job_id}" if task else f"alone-{os.getpid()}"


def place_of_flags(args: argparse.Namespace) -> Place:
    """Where this agent runs: as found out, or as the flags say."""
    place = place_here()
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
