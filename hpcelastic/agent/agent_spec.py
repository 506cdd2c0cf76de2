"""The arguments of an agent."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hpcelastic.agent.batch_system import BatchSystem
from hpcelastic.agent.session import Observe, SessionSpec
from hpcelastic.agent.settings import AgentSettings
from hpcelastic.backends.backend import Backend
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Member
from hpcelastic.rendezvous.run import Reading
from hpcelastic.storage.paths import RunPaths


@dataclass(frozen=True)
class AgentSpec:
    """The arguments of an agent."""

    paths: RunPaths
    backend: Backend
    run_id: str
    settings: Settings
    agent: AgentSettings
    member: Member
    found: Reading
    """The run as the agent has found it."""

    environ: Mapping[str, str]
    processors: Sequence[Collection[int]] = ()
    """The processors of each worker, by local rank; see `WorkerResources`."""

    batch_system: BatchSystem | None = None
    """The batch system that explains signals; None if only a person sends them."""

    observe: Observe | None = None

    restart: int = 0
    """How often in a row the agent was started again on this node because it had died."""

    job_start: float | None = None
    """The time at which SLURM started the job, in seconds since the epoch; None if it is unknown."""

    died: str = ""
    """The cause of death of the previous agent; empty where ``restart`` is 0."""

    @property
    def session(self) -> SessionSpec:
        """The arguments of the agent's session."""
        return SessionSpec(
            self.paths,
            self.backend,
            self.settings,
            self.member,
            self.found,
            self.agent.network,
            self.observe,
            self.job_start,
            self.agent.logs.keep_rounds,
        )
