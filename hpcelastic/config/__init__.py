"""The configuration of a job: from a YAML file to typed, resolved settings."""

from typing import TYPE_CHECKING

from hpcelastic.config.codec import decode, encode
from hpcelastic.config.job import JobConfig, RunSettings, default_name, node_range
from hpcelastic.config.slurm import SlurmSettings
from hpcelastic.lazy_names import lazy_names

if TYPE_CHECKING:
    from hpcelastic.config.display import show
    from hpcelastic.config.overrides import Override, overrides_from_keywords
    from hpcelastic.config.profiles import choose_profile
    from hpcelastic.config.resolve import Resolved, from_mapping, load
    from hpcelastic.config.site import read_site

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
    "read_site",
    "show",
]

# These need pydantic and yaml, which an agent must not load.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Override": ".overrides",
        "Resolved": ".resolve",
        "choose_profile": ".profiles",
        "from_mapping": ".resolve",
        "load": ".resolve",
        "overrides_from_keywords": ".overrides",
        "read_site": ".site",
        "show": ".display",
    },
)
