"""The recorded incidents of nodes in a run's directory, for display."""

from collections.abc import Mapping

from hpcelastic.config.codec import decode
from hpcelastic.health.memory import node_verdicts
from hpcelastic.health.settings import HealthSettings
from hpcelastic.health.verdict import NodeVerdict
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths


def incidents(paths: RunPaths) -> Mapping[str, NodeVerdict]:
    """Return the current verdict on each node of the run that has incidents."""
    if not files.names(paths.incidents):
        return {}
    config = files.read_json(paths.config)  # a run without a job file has no config.json
    health = HealthSettings() if config is None else decode(config).health
    return node_verdicts(paths, health.half_life)


def bad_nodes(paths: RunPaths) -> str:
    """Describe the excluded nodes with the reasons; empty if there are none."""
    out = ((host, verdict) for host, verdict in incidents(paths).items() if verdict.out)
    return "; ".join(f"{host}: {verdict.reasons[0]}" for host, verdict in out)
