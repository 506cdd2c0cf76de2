"""Convert torch's LogsSpecs to the agent's settings of the workers' output."""

import os
import tempfile
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import LogsSpecs, Std
from torch.distributed.launcher.api import LaunchConfig

from hpcelastic.agent.settings import LogSettings, RankStreams, Streams

_STREAMS: dict[Std, Streams] = {Std.NONE: "none", Std.OUT: "out", Std.ERR: "err", Std.ALL: "both"}

_PREFIX = "[${role_name}${local_rank}]:"
"""The prefix of a copied line in torch."""


def log_directory(specs: LogsSpecs | None) -> Path | None:
    """Return the directory of log files; None if there are none, in which case torch redirects nothing either."""
    return None if specs is None or specs.root_log_dir == os.devnull else Path(specs.root_log_dir).absolute()


def is_default_directory(directory: Path) -> bool:
    """Return whether torch has created this directory because the user named none."""
    return directory.parent == Path(tempfile.gettempdir()).absolute() and directory.name.startswith("torchelastic_")


def log_settings(config: LaunchConfig) -> LogSettings:
    """Return the settings of the workers' output, without the directory of the files."""
    prefix = _PREFIX if config.log_line_prefix_template is None else config.log_line_prefix_template
    specs = config.logs_specs
    if log_directory(specs) is None:
        return LogSettings(redirect="none", prefix=prefix)
    local_ranks = _private(specs, "_local_ranks_filter", None) or ()
    return LogSettings(
        _streams(_private(specs, "_redirects", Std.NONE)),
        _streams(_private(specs, "_tee", Std.NONE)),
        prefix,
        tuple(sorted(local_ranks)),
        tuple(getattr(config, "duplicate_stdout_filters", None) or ()),
        tuple(getattr(config, "duplicate_stderr_filters", None) or ()),
    )


def _private(specs: LogsSpecs | None, name: str, default: Any) -> Any:
    """Return a private attribute of LogsSpecs, which has no public name for it. A subclass may lack it."""
    return getattr(specs, name, default)


def _streams(given: Std | dict[int, Std]) -> Streams | RankStreams:
    return _STREAMS[given] if isinstance(given, Std) else {str(rank): _STREAMS[std] for rank, std in given.items()}
