"""Every exception that hpcelastic raises on purpose. A message says what happened, where, and what to do next."""


class HpcElasticError(Exception):
    """Base of all errors of hpcelastic; ``exit_code`` is the status with which a command ends on it."""

    exit_code = 1


class InternalError(HpcElasticError):
    """A mistake in hpcelastic itself; the message has the traceback."""

    exit_code = 70  # EX_SOFTWARE of sysexits.h; no other error has it


class ConfigError(HpcElasticError):
    """The input is wrong and nothing was started: a job file, a flag, a script, a directory."""

    exit_code = 2


class NameTaken(ConfigError):
    """An agent of this machine takes part in the run under the name that another one was to have."""


class StoreError(HpcElasticError):
    """The run's directory cannot be used: missing rights, no space, a file that makes no sense."""


class RendezvousTimeout(HpcElasticError):
    """No round formed within the join timeout."""


class RunFailed(HpcElasticError):
    """The run has ended without success; ``failures`` holds the reports of ranks that failed, the root cause first.

    ``rank`` and ``node`` are where that happened, None where no rank failed; ``__cause__`` is the exception that was
    raised there, if a function was and it could be brought over.
    """

    def __init__(
        self, message: str, failures: tuple[object, ...] = (), *, rank: int | None = None, node: str | None = None
    ) -> None:
        super().__init__(message)
        self.failures = failures
        self.rank = rank
        self.node = node


class SlurmError(HpcElasticError):
    """A SLURM command failed or SLURM cannot be reached."""
