"""A run as seen from outside a rendezvous: create it, read it, change it, end it.

Functions take the backend that keeps the run. Its owner has opened it, and closes it.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from hpcelastic.backends.backend import AnyRegister, Backend
from hpcelastic.backends.connect import record_backend
from hpcelastic.backends.state_copies import StateCopies
from hpcelastic.errors import ConfigError, StoreError, VisibilityError
from hpcelastic.protocol.changes import difference, pack
from hpcelastic.protocol.codec import decode, encode
from hpcelastic.protocol.decide import Decision, close, decide, fail, reopen
from hpcelastic.protocol.settings import Settings
from hpcelastic.protocol.state import Failure, Phase, Seen, State, View
from hpcelastic.rendezvous.notifier import Notifier
from hpcelastic.storage.paths import RunPaths
from hpcelastic.storage.register import Version

_OPEN_ATTEMPTS = 30
"""Attempts to read a version that is listed. Each of them takes `storage.register.VISIBILITY_TIMEOUT`."""

_FRESH = 5.0
"""Seconds for which what a node has read before it joined is as good as another reading."""


@dataclass(frozen=True)
class Reading:
    """A version of the register, and its state."""

    number: int
    state: State
    began: float
    """The time at which it was read, by the clock of the reader."""


def is_fresh(reading: Reading, now: float) -> bool:
    """Return whether a node that joins needs to read no more."""
    return now < reading.began + _FRESH


def announce_run(paths: RunPaths, run_id: str, settings: Settings) -> None:
    """Prepare a run that its first agent will create in the backend of ``settings``."""
    value = encode(State(run_id, settings, reason="no agent has joined yet"))
    StateCopies(paths).write_first(value)
    record_backend(paths, run_id, settings.rendezvous)


def open_run(backend: Backend, run_id: str, settings: Settings, writer: str) -> State:
    """Create the run unless it exists, and return its state. Raises ConfigError if it has other settings."""
    return find_run(backend, run_id, settings, writer, lambda: 0.0).state


def find_run(backend: Backend, run_id: str, settings: Settings, writer: str, clock: Callable[[], float]) -> Reading:
    """Create the run unless it exists, and read it. Raises ConfigError if it has other settings."""
    register, began = backend.register(writer), clock()
    version = _read_visible(register)
    if version.number == 0:
        with contextlib.suppress(VisibilityError):  # another node has created the run since that reading
            register.commit(0, encode(State(run_id, settings)))
        version = _read_visible(register)
    state = decode_state(register, version)
    if state.run_id != run_id:
        raise ConfigError(f"{backend.root}: holds the run {state.run_id!r}, not {run_id!r}; use another directory")
    if state.settings != settings:
        raise ConfigError(
            f"{backend.root}: the run was created with {_differences(state.settings, settings)}; every agent of a run "
            "must use the same settings: repeat those, or use another run id"
        )
    return Reading(version.number, state, began)


def _read_visible(register: AnyRegister) -> Version:
    """Read the register of a run that is being opened.

    Several nodes may create a run at once. The node that was slower may remember for up to a minute that the name of
    the first version was absent.
    """
    for _ in range(_OPEN_ATTEMPTS):
        with contextlib.suppress(VisibilityError):
            return register.read()
    return register.read()


def read_state(backend: Backend) -> State:
    """Return the newest state of a run. Raises StoreError if the backend holds none."""
    return read_run(backend, lambda: 0.0).state


def read_run(backend: Backend, clock: Callable[[], float]) -> Reading:
    """Read the newest version of a run. Raises StoreError if the backend holds none."""
    began = clock()
    version, state = _newest(backend, backend.register(writer=""))
    return Reading(version.number, state, began)


def close_run(backend: Backend, writer: str, reason: str, notifier: Notifier | None = None) -> State:
    """Close a run and return its final state. A run that has ended stays as it is."""
    return _change(backend, writer, lambda state: close(state, reason).next, notifier)


def fail_run(
    backend: Backend, writer: str, reason: str, failures: tuple[Failure, ...] = (), notifier: Notifier | None = None
) -> State:
    """Fail a run and return its final state. A run that has ended stays as it is."""
    return _change(backend, writer, lambda state: fail(state, reason, failures).next, notifier)


def conclude_run(backend: Backend, writer: str, notifier: Notifier | None = None) -> State:
    """End a run whose participants have all published their success; any other run stays as it is.

    The agent that publishes last may be the only one left, and about to end too.
    """
    published = {lease.member.node: Seen(lease.member, alive=True) for lease in backend.leases().values()}

    def change(state: State) -> State | None:
        unseen = {node: Seen(None, alive=True) for node in state.ranks}
        decided = decide(state, View(unseen | published)).next
        return decided if decided is not None and decided.phase is Phase.SUCCEEDED else None

    return _change(backend, writer, change, notifier)


def steer_run(
    backend: Backend,
    writer: str,
    change: Callable[[State], Decision],
    notifier: Notifier | None = None,
    *,
    confirm: bool = False,
) -> State:
    """Commit a change that a user requests, such as a drain, and return the state after it.

    A read may be outdated, so a change that seems to have been made already may be needed. With ``confirm``, the state
    is then committed as it is. The commit fails if the state was outdated, and the change is tried again.
    """

    def changed(state: State) -> State | None:
        return change(state).next or (state if confirm and not state.phase.final else None)

    return _change(backend, writer, changed, notifier)


def reopen_run(backend: Backend, writer: str, settings: Settings) -> State:
    """Reopen a run that has ended, or whose agents are gone, with ``settings``, and return its state."""
    return _change(backend, writer, lambda state: reopen(state, settings))


def _change(
    backend: Backend, writer: str, change: Callable[[State], State | None], notifier: Notifier | None = None
) -> State:
    """Commit the result of ``change`` on the newest state, and retry while others commit. None changes nothing."""
    register = backend.register(writer)
    while True:
        version, state = _newest(backend, register)
        changed = change(state)
        if changed is None:
            return state
        if register.commit(version.number, encode(changed)):
            if notifier is not None:
                notifier.notify(changed.participants, version.number + 1, pack(difference(state, changed)))
            return changed


def _newest(backend: Backend, register: AnyRegister) -> tuple[Version, State]:
    version = register.read()
    if version.number == 0:
        raise StoreError(f"{backend.root}: holds no run")
    return version, decode_state(register, version)


def decode_state(register: AnyRegister, version: Version) -> State:
    """Return the state in a version of the register. Raises StoreError if the version cannot be decoded."""
    try:
        return decode(State, version.value)
    except ValueError as error:
        what = (
            f"version {version.number} cannot be decoded ({error}); another version of hpcelastic may have written it"
        )
        raise StoreError(f"{register.where}: {what}") from error


def _differences(theirs: Settings, ours: Settings) -> str:
    old, new = encode(theirs), encode(ours)
    pairs = [(f"{part}.{key}", old[part][key], new[part][key]) for part in old for key in old[part]]
    return ", ".join(f"{key} = {was} (here {now})" for key, was, now in pairs if was != now)
