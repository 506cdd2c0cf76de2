"""The environment variables that Grid Engine sets for a task of a parallel job.

Source: qsub(1), ENVIRONMENTAL VARIABLES, and sge_pe(5).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcelastic.agent.member import NodeIdentity

_NO_ARRAY = "undefined"
"""The number of the task in a job that is no array."""


@dataclass(frozen=True)
class GridEngineTask:
    """A task of a Grid Engine job, such as one that ``qrsh -inherit`` has started."""

    job: str
    """The id of the job, or of the task of an array as ``JOB.TASK``."""

    node: str
    hostfile: str
    """The path of the file of its nodes."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the job; empty if their file cannot be read here.

        If the spool directories are not shared, it is on the first node only.
        """
        try:
            lines = Path(self.hostfile).read_text().splitlines()
        except OSError:
            return ()
        return tuple(_short(line.split()[0]) for line in lines if line.strip())

    @property
    def identity(self) -> NodeIdentity:
        """The identity of the node."""
        nodes = self.nodes
        return NodeIdentity(self.node, order=nodes.index(self.node) if self.node in nodes else 0)


def grid_engine_task(environ: Mapping[str, str]) -> GridEngineTask | None:
    """Return the Grid Engine task of this process; None outside of a job."""
    if not (environ.get("SGE_JOB_SPOOL_DIR") and environ.get("JOB_ID") and environ.get("HOSTNAME")):
        return None
    array_task = environ.get("SGE_TASK_ID", _NO_ARRAY)
    job = environ["JOB_ID"] if array_task == _NO_ARRAY else f"{environ['JOB_ID']}.{array_task}"
    return GridEngineTask(job, _short(environ["HOSTNAME"]), environ.get("PE_HOSTFILE", ""))


def _short(name: str) -> str:
    return name.partition(".")[0]
