"""The recorded incidents of nodes, as the user of a run sees and forgives them."""

import contextlib
from collections.abc import Collection, Mapping

from hpcelastic.config.codec import decode
from hpcelastic.errors import ConfigError
from hpcelastic.health.memory import forgive_nodes, node_verdicts
from hpcelastic.health.settings import HealthSettings
from hpcelastic.health.verdict import NodeVerdict
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths


def incidents(paths: RunPaths) -> Mapping[str, NodeVerdict]:
    """Return the current verdict on each node with incidents, of the run or in the shared record."""
    return node_verdicts(paths, _health(paths))


def forgive(paths: RunPaths, nodes: Collection[str] | None) -> tuple[str, ...]:
    """Ignore the incidents of nodes, or of all nodes of the run. Return the nodes that had incidents."""
    return forgive_nodes(paths, _health(paths), nodes)


def bad_nodes(paths: RunPaths) -> str:
    """Describe the excluded nodes with the reasons; empty if there are none."""
    out = ((host, verdict) for host, verdict in incidents(paths).items() if verdict.out)
    return "; ".join(f"{host}: {verdict.reasons[0]}" for host, verdict in out)


def _health(paths: RunPaths) -> HealthSettings:
    """Return the settings of a run; the defaults if it has no job file, or that of another version."""
    config = files.read_json(paths.config)
    with contextlib.suppress(ConfigError):
        return HealthSettings() if config is None else decode(config).health
    return HealthSettings()
