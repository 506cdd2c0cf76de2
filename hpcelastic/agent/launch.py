"""The settings and resources with which a node starts its workers."""

from collections.abc import Mapping
from dataclasses import dataclass

from hpcelastic.agent.environment import RunFacts
from hpcelastic.agent.file_timers import FileTimers
from hpcelastic.agent.settings import AgentSettings
from hpcelastic.agent.worker import WorkerResources
from hpcelastic.agent.workers import WorkerGroup
from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.protocol.assignment import Assignment


@dataclass(frozen=True)
class Launch:
    """The settings and resources with which a node starts its workers, in every round."""

    settings: AgentSettings
    run: RunFacts
    resources: WorkerResources
    control_page: ControlPage
    timers: FileTimers
    environ: Mapping[str, str]

    def make_group(self, part: Assignment) -> WorkerGroup:
        """Return the worker group of an assignment. Its workers are not started yet."""
        return WorkerGroup(part, self.settings, self.run, self.resources)
