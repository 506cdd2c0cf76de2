"""The exception for a run that has failed, with that of the rank which failed first."""

from typing import NoReturn

from hpcelastic import values
from hpcelastic.agent.report import describe
from hpcelastic.errors import RunFailed
from hpcelastic.protocol.state import Failure, Phase, State, name_of
from hpcelastic.store.paths import RunPaths


def raise_failure(paths: RunPaths, state: State) -> NoReturn:
    """Raise RunFailed for a run that has ended in ``state``."""
    message = f"{paths.root.name} has {state.phase.value}: {state.reason}"
    if state.phase is not Phase.FAILED or not state.failures:
        raise RunFailed(message, state.failures)
    root = state.failures[0]
    cause, why_not = _raised_there(paths, root)
    message = "\n".join(part for part in (message, describe(root, full=True), why_not) if part)
    raise RunFailed(message, state.failures, rank=root.rank, node=name_of(root.node)) from cause


def _raised_there(paths: RunPaths, failure: Failure) -> tuple[BaseException | None, str]:
    """The exception that a function has raised on the rank; else None, and why if it is there and can't be loaded."""
    try:
        raised = values.load_pickle(paths.exception(failure.round, failure.rank))
    except FileNotFoundError:
        return None, ""  # a script, a signal, or what can't be pickled
    except Exception as error:  # whatever the user's own class does when it is made again
        return None, f"its exception can't be loaded here: {type(error).__name__}: {error}"
    return (raised, "") if isinstance(raised, BaseException) else (None, "")
