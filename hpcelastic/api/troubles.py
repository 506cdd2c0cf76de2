"""What a run's directory holds against nodes, for people."""

from collections.abc import Mapping

from hpcelastic.config.codec import decode
from hpcelastic.health.memory import remembered
from hpcelastic.health.settings import HealthSettings
from hpcelastic.health.verdict import Verdict
from hpcelastic.store import files
from hpcelastic.store.paths import RunPaths


def troubles(paths: RunPaths) -> Mapping[str, Verdict]:
    """What went wrong on nodes of the run, by node, as it counts now."""
    if not files.names(paths.incidents):
        return {}
    config = files.read_json(paths.config)  # a run that was started by flags has none
    health = HealthSettings() if config is None else decode(config).health
    return remembered(paths, health.half_life)


def bad_nodes(paths: RunPaths) -> str:
    """Which nodes are out, and why, in words; empty if none is."""
    out = ((host, verdict) for host, verdict in troubles(paths).items() if verdict.out)
    return "; ".join(f"{host}: {verdict.reasons[0]}" for host, verdict in out)
