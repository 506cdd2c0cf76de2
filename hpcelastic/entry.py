"""The entry of a node into a run: the run is set up unless it exists, the node gets its name, and nothing is published
yet."""

import contextlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TextIO

from hpcelastic.agent.address import own_address
from hpcelastic.agent.guard_main import boottime
from hpcelastic.agent.member import NodeIdentity, dead_incarnations, new_member, require_topology
from hpcelastic.agent.node_name_lock import node_name_lock, numbered_identities
from hpcelastic.agent.report import reporter
from hpcelastic.backends.backend import Backend
from hpcelastic.backends.connect import open_agent_backend
from hpcelastic.doctor.run_check import check_race, ensure_verdict, mount_remarks
from hpcelastic.doctor.verdict import FilesystemReport, advise, describe_changes
from hpcelastic.errors import NameTaken
from hpcelastic.protocol.leaders import is_large
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Member, State
from hpcelastic.rendezvous.run import Reading, find_run
from hpcelastic.slurm.server import server_of
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths, safe_name


@dataclass(frozen=True)
class EnteredRun:
    """A run, and a node that may join it and has not published anything there yet."""

    backend: Backend
    """The agent's backend. `enter_run` closes it."""

    member: Member
    settings: Settings
    """The settings of the run, with the times that its filesystem needs."""

    found: Reading
    """The run as the node has found it."""

    report: Callable[[str], None]
    """Print one line for the user."""


@dataclass(frozen=True)
class Entry:
    """A request of a node to enter a run."""

    paths: RunPaths
    run_id: str
    settings: Settings
    identity: NodeIdentity
    interface: str | None = None
    """As `NetworkSettings.interface`."""

    workers: int = 1
    """Number of workers on this node."""

    role: str = ""
    is_host: bool | None = None
    """Whether this node serves the store of a run in ``c10d``; None to detect it."""

    any_name: bool = False
    """Whether the node takes the next free name (``n1.2``, ``n1.3``, ...) if another agent on this machine has its
    name."""

    again: bool = False
    """Whether the agent is started again on its node, because it had died."""

    output: TextIO | None = None
    """Where lines for the user are printed; None for standard error."""


@contextlib.contextmanager
def enter_run(entry: Entry) -> Iterator[EnteredRun]:
    """Set up the run unless it exists, and enter it. Until the exit, the node's name is locked.

    Raises ConfigError if the directory cannot be safe or has another run, and StoreError if the directory fails.
    """
    paths, settings, identity = entry.paths, entry.settings, entry.identity
    require_topology(identity, settings.nodes)
    identity = replace(identity, address=identity.address or own_address(entry.interface, identity.launcher))
    if not files.exists(paths.incidents):  # the last one of these
        for directory in (paths.root, paths.register, paths.leases, paths.incidents):
            files.make_directory(directory)
    report = reporter(safe_name(identity.name), entry.output)
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(server_of(paths, settings, identity, report))
        backend = open_agent_backend(paths, entry.run_id, settings.rendezvous, address, entry.is_host)
        stack.callback(backend.close)
        settings = _adjusted_settings(paths, settings, ensure_verdict(paths), identity, report)
        writer = f"{safe_name(identity.name)}@{secrets.token_hex(4)}"
        if settings.nodes.wanted > 1:
            check_race(paths, writer)
        found = find_run(backend, entry.run_id, settings, writer, boottime)
        member = stack.enter_context(_named_member(entry, backend, identity, found.state))
        yield EnteredRun(backend, member, settings, found, reporter(member.name, entry.output))


@contextlib.contextmanager
def _named_member(entry: Entry, backend: Backend, identity: NodeIdentity, state: State) -> Iterator[Member]:
    """Lock the name of the node, and yield the node with that name.

    The nodes of a large job that begins a run have no earlier incarnations, and do not all list the leases.
    All names are tried with one connection to the run's server: the server ends with its connection if this agent
    serves it.
    """
    begins = is_large(identity.job_nodes) and not (identity.restart or entry.again or state.round)
    for named in numbered_identities(identity):
        with contextlib.ExitStack() as stack:
            try:
                locked = stack.enter_context(node_name_lock(backend, named, alone=begins))
                dead = () if begins else dead_incarnations(backend, locked)
                member = new_member(locked, entry.workers, dead, entry.role)
            except NameTaken:
                if not entry.any_name:
                    raise
                continue
            yield member
            return
    raise AssertionError("numbered_identities is infinite")


def _adjusted_settings(
    paths: RunPaths,
    settings: Settings,
    verdict: FilesystemReport,
    identity: NodeIdentity,
    report: Callable[[str], None],
) -> Settings:
    """Return ``settings`` with the times that the run's filesystem needs, and report the changes and remarks."""
    adjusted = advise(settings, verdict)
    nodes = 1 if is_loopback(identity.address) else settings.nodes.wanted
    for line in (*mount_remarks(paths, verdict, nodes=nodes), describe_changes(settings, adjusted, verdict)):
        if line:
            report(line)
    return adjusted


def is_loopback(address: str) -> bool:
    """Return whether all agents are on this machine, as with `hpcelastic run`: others cannot connect to ``address``."""
    return address.startswith("127.")
