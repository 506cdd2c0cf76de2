"""torch's LogsSpecs, turned into where an agent of ours lets the workers' output go."""

import os
import tempfile
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import LogsSpecs, Std
from torch.distributed.launcher.api import LaunchConfig

from hpcelastic.agent.settings import LogSettings, RankStreams, Streams

_STREAMS: dict[Std, Streams] = {Std.NONE: "none", Std.OUT: "out", Std.ERR: "err", Std.ALL: "both"}

_PREFIX = "[${role_name}${local_rank}]:"
"""What torch begins a copied line with."""


def log_directory(specs: LogsSpecs | None) -> Path | None:
    """Where logs are to be kept; None for nowhere, where torch redirects nothing either."""
    return None if specs is None or specs.root_log_dir == os.devnull else Path(specs.root_log_dir).absolute()


def is_torchs_own(directory: Path) -> bool:
    """Whether torch has made this directory, since nobody had named one."""
    return directory.parent == Path(tempfile.gettempdir()).absolute() and directory.name.startswith("torchelastic_")


def log_settings(config: LaunchConfig) -> LogSettings:
    """Where the workers' output goes, but for the directory of the files."""
    prefix = _PREFIX if config.log_line_prefix_template is None else config.log_line_prefix_template
    specs = config.logs_specs
    if log_directory(specs) is None:
        return LogSettings(redirect="none", prefix=prefix)
    only = _given(specs, "_local_ranks_filter", None) or ()
    return LogSettings(
        _streams(_given(specs, "_redirects", Std.NONE)),
        _streams(_given(specs, "_tee", Std.NONE)),
        prefix,
        tuple(sorted(only)),
        tuple(getattr(config, "duplicate_stdout_filters", None) or ()),
        tuple(getattr(config, "duplicate_stderr_filters", None) or ()),
    )


def _given(specs: LogsSpecs | None, name: str, default: Any) -> Any:
    """What LogsSpecs was made with, for which it has no public name; a subclass may not have it."""
    return getattr(specs, name, default)


def _streams(given: Std | dict[int, Std]) -> Streams | RankStreams:
    return _STREAMS[given] if isinstance(given, Std) else {str(rank): _STREAMS[std] for rank, std in given.items()}
