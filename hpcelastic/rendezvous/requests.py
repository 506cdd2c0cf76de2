"""Requests of the members of a group for a run that belongs to another user (``run.group``).

A request names one of three changes, and nodes. An agent executes it as the run's owner. No part of it is executed as
code, or used as a path.
"""

import enum
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from hpcelastic.backends.backend import Backend
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.protocol import decide
from hpcelastic.protocol.codec import decode, encode
from hpcelastic.protocol.decide import Decision
from hpcelastic.protocol.state import State
from hpcelastic.rendezvous.notifier import Notifier
from hpcelastic.rendezvous.run import close_run, read_state, steer_run
from hpcelastic.storage import files
from hpcelastic.storage.foreign import owner_of, user_name
from hpcelastic.storage.mailbox import Mailbox, Message
from hpcelastic.storage.paths import RunPaths

ANSWER_TIMEOUT = 30.0
"""Seconds for which a member of the group waits for an agent. The agents look every few seconds."""

_POLL_INTERVAL = 0.2

_NODE = re.compile(r"[\w.:@-]{1,100}", re.ASCII)
"""The name of a node or a machine. Other text would be shown in logs."""


class Change(enum.Enum):
    """A change that a member of the group may request."""

    CHECKPOINT = "checkpoint"
    DRAIN = "drain"
    CANCEL = "cancel"


@dataclass(frozen=True)
class Request:
    """A request for a change of a run."""

    change: Change
    nodes: tuple[str, ...] = ()
    """The nodes to drain, by name or by machine."""

    undo: bool = False
    """Whether drained nodes are admitted again."""

    def __str__(self) -> str:
        return " ".join([self.change.value, *self.nodes, *(["--undo"] if self.undo else [])])

    def execute(self, backend: Backend, author: str, notifier: Notifier | None) -> State:
        """Change the run, and return its state. Raises StoreError."""
        if self.change is Change.CANCEL:
            return close_run(backend, author, f"cancelled by {author}", notifier)
        return steer_run(backend, author, self._decide, notifier, confirm=True)

    def _decide(self, state: State) -> Decision:
        if self.change is Change.CHECKPOINT:
            return decide.checkpoint(state)
        return decide.drain(state, self.nodes, undo=self.undo)


@dataclass(frozen=True)
class Answer:
    """The answer of an agent."""

    error: str | None = None
    """Why the request was not executed."""


def ask(paths: RunPaths, request: Request, timeout: float = ANSWER_TIMEOUT) -> None:
    """Request a change of another user's run, and wait until an agent has executed it.

    Raises ConfigError if the run has no group, no agent answers in ``timeout`` seconds, or the agent refuses. Raises
    StoreError if this user may not write to the mailbox.
    """
    mailbox = Mailbox(paths)
    if not mailbox.exists:
        raise ConfigError(
            f"{paths.root}: the run belongs to {owner_of(paths.root)}; only this user may change it, because the job "
            "file has no run.group"
        )
    name, deadline = mailbox.put(files.to_json(encode(request))), time.monotonic() + timeout
    while (data := mailbox.answer_to(name)) is None:
        if time.monotonic() > deadline:
            what = "no agent has" if mailbox.withdraw(name) else "an agent has taken the request, but not"
            raise ConfigError(
                f"{paths.root}: {what} answered in {timeout:g} s; look at hpcelastic status {paths.root}, or ask "
                f"{owner_of(paths.root)}"
            )
        time.sleep(_POLL_INTERVAL)
    try:
        answer = decode(Answer, json.loads(data))
    except ValueError as error:
        raise StoreError(f"{paths.answers / name}: is no answer: {error}") from error
    if answer.error is not None:
        raise ConfigError(f"{paths.root.name}: the agents refuse: {answer.error}")


@dataclass(frozen=True)
class Executed:
    """A request that was executed or refused."""

    author: str
    request: Request | None
    """None if the message was no request."""

    error: str | None = None


def execute_requests(
    paths: RunPaths, backend: Backend, notifier: Notifier | None, told: Callable[[Executed], None]
) -> None:
    """Execute the requests in the mailbox as the owner of the run. Raises StoreError.

    ``told`` is called with each before its author gets the answer.
    """
    mailbox = Mailbox(paths)
    for message in mailbox.take():
        executed = _execute(message, backend, notifier)
        told(executed)
        mailbox.answer(message, files.to_json(encode(Answer(executed.error))))


def _execute(message: Message, backend: Backend, notifier: Notifier | None) -> Executed:
    author = user_name(message.uid)
    try:
        request = decode(Request, json.loads(message.data or b""))
    except (ValueError, RecursionError):
        request = None
    if request is None or not all(map(_NODE.fullmatch, request.nodes)):
        return Executed(author, None, "this is no request; the versions of hpcelastic may differ")
    if refusal := _refusal(request, backend):
        return Executed(author, request, refusal)
    request.execute(backend, author, notifier)
    return Executed(author, request)


def _refusal(request: Request, backend: Backend) -> str | None:
    """Explain why a request is not executed; None if it is."""
    state = read_state(backend)
    if state.phase.final:
        return f"the run has {state.phase.value}"
    if request.change is not Change.DRAIN:
        return None
    members = [lease.member for lease in backend.leases().values()]
    known = {*(member.name for member in members), *(member.machine for member in members), *state.drained}
    unknown = sorted({*request.nodes} - known)
    return f"there is no node {unknown[0]!r} in the run" if unknown else None
