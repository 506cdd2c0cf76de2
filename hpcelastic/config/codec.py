"""A configuration as plain JSON values, for the run's directory. Pure.

This module imports neither pydantic nor yaml: every agent reads its configuration with it, and starts in milliseconds.
Unknown fields come from a newer version and are ignored. A missing field is an error, because agents of different
versions would use different defaults. Fields with an old name are accepted.
"""

from typing import Any

from hpcelastic.config.job import RENAMED_KEYS, JobConfig
from hpcelastic.errors import ConfigError
from hpcelastic.protocol import codec


def encode(config: JobConfig) -> dict[str, Any]:
    """Return the configuration as JSON values. ``decode`` is the inverse."""
    plain: dict[str, Any] = codec.encode(config)
    return plain


def decode(data: object) -> JobConfig:
    """Return the configuration that ``encode`` wrote. Raises ConfigError."""
    try:
        return codec.decode(JobConfig, _with_new_names(data), complete=True)
    except ValueError as error:
        remedy = "the file is damaged, or another version of hpcelastic wrote it; submit the run again"
        raise ConfigError(f"the run's configuration is not valid: {error}; {remedy}") from error


def _with_new_names(data: object) -> object:
    """Return ``data`` with the new names of its fields: a run may have been submitted before a field was renamed."""
    if not isinstance(data, dict):
        return data
    groups = {
        group: {names.get(name, name): value for name, value in data[group].items()}
        for group, names in RENAMED_KEYS.items()
        if isinstance(data.get(group), dict)
    }
    return {**data, **groups}
