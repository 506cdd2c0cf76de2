"""A configuration as plain JSON values, for the run's directory. Pure.

Imports neither pydantic nor yaml: every agent reads its configuration with this, and starts in milliseconds.
Unknown fields come from a newer version and are ignored; a missing one would be decided differently by each agent,
and is refused.
"""

from typing import Any

from hpcelastic.config.job import JobConfig
from hpcelastic.errors import ConfigError
from hpcelastic.protocol import codec


def encode(config: JobConfig) -> dict[str, Any]:
    """The configuration as JSON values; ``decode`` is its inverse."""
    plain: dict[str, Any] = codec.encode(config)
    return plain


def decode(data: object) -> JobConfig:
    """The configuration that ``encode`` wrote; raises ConfigError."""
    try:
        return codec.decode(JobConfig, data, complete=True)
    except ValueError as error:
        remedy = "the file is damaged or of another version of hpcelastic; submit the run again"
        raise ConfigError(f"the run's configuration makes no sense: {error}; {remedy}") from error
