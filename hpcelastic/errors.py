"""The exceptions of hpcelastic. A message says what happened, where, and what to do next."""

import contextlib
import traceback
from collections.abc import Iterator


class HpcElasticError(Exception):
    """Base class of all errors of hpcelastic. ``exit_code`` is the exit status of a command that raises it."""

    exit_code = 1


class InternalError(HpcElasticError):
    """A bug in hpcelastic. The message contains the traceback."""

    exit_code = 70  # EX_SOFTWARE of sysexits.h; no other error uses it


@contextlib.contextmanager
def internal_errors() -> Iterator[None]:
    """Raise InternalError for an exception that is no HpcElasticError."""
    try:
        yield
    except HpcElasticError:
        raise
    except Exception as error:
        raise InternalError(f"internal error: {traceback.format_exc()}; {error}") from error


class ConfigError(HpcElasticError):
    """The input is wrong, and nothing was started: a job file, an option, a script, a directory."""

    exit_code = 2


class NameTaken(ConfigError):
    """Another agent on this machine already uses the node name in the run."""


class StoreError(HpcElasticError):
    """The run's directory cannot be used: missing permissions, no space, an invalid file."""


class VisibilityError(StoreError):
    """A file that another node has written is listed, but this node cannot open it yet."""


class RendezvousTimeout(HpcElasticError):
    """No round formed within the join time-out."""


class RunFailed(HpcElasticError):
    """The run has ended without success. ``failures`` contains the reports of failed ranks, the root cause first.

    ``rank`` and ``node`` are the place of the root cause, or None if no rank failed. ``__cause__`` is the exception of
    that rank, if the entry point is a function and the exception could be loaded.
    """

    def __init__(
        self, message: str, failures: tuple[object, ...] = (), *, rank: int | None = None, node: str | None = None
    ) -> None:
        super().__init__(message)
        self.failures = failures
        self.rank = rank
        self.node = node


class CrashLoop(RunFailed):
    """The run has ended because the same error has occurred in the same step repeatedly: a new attempt cannot help."""

    exit_code = 4


class PoisonedState(HpcElasticError):
    """The state of a training is not usable: a loss is not finite or has risen suddenly, or replicas differ."""


class SlurmError(HpcElasticError):
    """A SLURM command failed, or SLURM does not answer."""
