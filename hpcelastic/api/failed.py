"""The exception for a run that has failed, with the exception of the rank that failed first."""

from typing import NoReturn

from hpcelastic import values
from hpcelastic.agent.report import describe
from hpcelastic.errors import CrashLoop, RunFailed
from hpcelastic.protocol.budget import has_crash_loop
from hpcelastic.protocol.state import Failure, Phase, State, name_of
from hpcelastic.storage.paths import RunPaths


def raise_failure(paths: RunPaths, state: State) -> NoReturn:
    """Raise RunFailed, or CrashLoop, for a run that has ended in ``state``."""
    message = f"{paths.root.name} has {state.phase.value}: {state.reason}"
    if state.phase is not Phase.FAILED or not state.failures:
        raise RunFailed(message, state.failures)
    root, kind = state.failures[0], CrashLoop if has_crash_loop(state) else RunFailed
    cause, why_not = _original_exception(paths, root)
    message = "\n".join(part for part in (message, describe(root, full=True), why_not) if part)
    raise kind(message, state.failures, rank=root.rank, node=name_of(root.node)) from cause


def _original_exception(paths: RunPaths, failure: Failure) -> tuple[BaseException | None, str]:
    """Return the exception of the function on the rank, or None and the reason if it cannot be loaded."""
    try:
        raised = values.load_pickle(paths.exception(failure.round, failure.rank))
    except FileNotFoundError:
        return None, ""  # a script, a signal, or an exception that cannot be pickled
    except Exception as error:  # a user's class can raise anything when it is unpickled
        return None, f"its exception cannot be loaded here: {type(error).__name__}: {error}"
    return (raised, "") if isinstance(raised, BaseException) else (None, "")
