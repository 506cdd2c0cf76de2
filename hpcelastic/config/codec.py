"""A configuration as plain JSON values, for the run's directory. Pure.

Imports neither pydantic nor yaml: every agent reads its configuration with this, and starts in milliseconds.
Unknown fields come from a newer version and are ignored; a missing one would be decided differently by each agent,
and is refused.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_origin, get_type_hints

from hpcelastic.config.job import JobConfig
from hpcelastic.errors import ConfigError

REMEDY = "the file is damaged or of another version of hpcelastic; submit the run again"


def encode(config: JobConfig) -> dict[str, Any]:
    """The configuration as JSON values; ``decode`` is its inverse."""
    plain = _plain(config)
    assert isinstance(plain, dict)
    return plain


def decode(data: object) -> JobConfig:
    """The configuration that ``encode`` wrote; raises ConfigError."""
    try:
        config = _typed(JobConfig, data, "")
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the run's configuration makes no sense: {error}; {REMEDY}") from error
    assert isinstance(config, JobConfig)
    return config


def _plain(value: object) -> object:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _typed(kind: Any, value: Any, path: str) -> object:
    """``value`` as ``kind``: a dataclass, a mapping or a tuple is built, anything else is taken as it is."""
    if is_dataclass(kind):
        return _dataclass(kind, _require(Mapping, value, path), path)
    if get_origin(kind) is tuple:
        return tuple(_require(list, value, path))
    if get_origin(kind) is Mapping:
        return dict(_require(Mapping, value, path))
    return value


def _dataclass(kind: Any, value: Mapping[str, Any], path: str) -> object:
    inside = f"{path}." if path else ""
    missing = [inside + field.name for field in fields(kind) if field.name not in value]
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}")
    hints = get_type_hints(kind)
    return kind(
        **{field.name: _typed(hints[field.name], value[field.name], inside + field.name) for field in fields(kind)}
    )


def _require(kind: Any, value: Any, path: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{path or 'the whole'} is {value!r}, not a {kind.__name__.lower()}")
    return value
