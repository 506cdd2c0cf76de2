"""The configuration of a job: from a YAML file to typed, resolved settings."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hpcelastic.config.codec import decode, encode
from hpcelastic.config.job import JobConfig, RunSettings, default_name, node_range
from hpcelastic.config.slurm import SlurmSettings

if TYPE_CHECKING:
    from hpcelastic.config.display import show
    from hpcelastic.config.overrides import Override, overrides_from_keywords
    from hpcelastic.config.profiles import choose_profile
    from hpcelastic.config.resolve import Resolved, from_mapping, load

__all__ = [
    "JobConfig",
    "Override",
    "Resolved",
    "RunSettings",
    "SlurmSettings",
    "choose_profile",
    "decode",
    "default_name",
    "encode",
    "from_mapping",
    "load",
    "node_range",
    "overrides_from_keywords",
    "show",
]

# These need pydantic and yaml, which an agent must not load.
_ON_DEMAND = {
    "Override": "overrides",
    "overrides_from_keywords": "overrides",
    "Resolved": "resolve",
    "choose_profile": "profiles",
    "from_mapping": "resolve",
    "load": "resolve",
    "show": "display",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ON_DEMAND[name]}"), name)
