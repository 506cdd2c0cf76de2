"""Exporters that notify a person: when a run has ended, when a fault has ended a round, and when a round hangs.

A job file names them:

    exporters: [hpcelastic.notifications:to_webhook, hpcelastic.notifications:to_mail]

Their addresses are secrets, so they do not stand in the job file or in the run's directory. They are in the files
``webhook`` and ``mail`` of the user's configuration directory, ``~/.config/hpcelastic``, which all nodes must see.

Of the agents of a run, the one that first creates a file for a notification in the run's directory sends it. So each
notification is sent at most once. If this agent dies meanwhile, it is not sent.
"""

import contextlib
import email.message
import json
import os
import secrets
import smtplib
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.exporters import Exporter, ExporterContext
from hpcelastic.protocol.events import Event, HangExamined, RunEnded, StateChanged, WorkersStarted
from hpcelastic.protocol.state import Cause
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths

M = TypeVar("M")

_SENDERS = 3
"""Number of nodes that may send: the first ones of the newest round."""

_MAX_SUBJECT = 200
"""Characters of the subject of an e-mail."""

_TIMEOUT = 4.0
"""Seconds for sending. An agent waits 5 s for its exporters at its end."""


@dataclass(frozen=True)
class Notification:
    """One notification."""

    id: str
    """Unique in the run."""

    text: str


def to_webhook(context: ExporterContext) -> Exporter:
    """Post ``{"text": ...}`` to the address in ``~/.config/hpcelastic/webhook``, as Slack and Mattermost take it.

    Raises ConfigError if there is no address.
    """
    address = _address("webhook")
    if not address.startswith(("https://", "http://")):
        raise ConfigError(f"{_file('webhook')}: contains no address that begins with https://")

    def request_of(text: str) -> urllib.request.Request:
        data = json.dumps({"text": text}).encode()
        return urllib.request.Request(address, data, {"Content-Type": "application/json"})

    def send(request: urllib.request.Request) -> None:
        with urllib.request.urlopen(request, timeout=_TIMEOUT):
            pass

    return _exporter(context, "webhook", request_of, send)


def to_mail(context: ExporterContext) -> Exporter:
    """Send an e-mail to the address in ``~/.config/hpcelastic/mail``, by the mail server of the node.

    A second line in the file names another server, as ``HOST`` or ``HOST:PORT``. Raises ConfigError if there is no
    address.
    """
    address, _, server = _address("mail").partition("\n")
    if "@" not in address:
        raise ConfigError(f"{_file('mail')}: contains no e-mail address")
    host, _, port = server.strip().partition(":")

    def message_of(text: str) -> email.message.EmailMessage:
        message = email.message.EmailMessage()
        subject = " ".join(text.splitlines()[0].split())[:_MAX_SUBJECT]  # a header contains no line break of any kind
        message["Subject"], message["From"], message["To"] = subject, address, address
        message.set_content(text)
        return message

    def send(message: email.message.EmailMessage) -> None:
        here = os.uname().nodename  # without it, smtplib asks a name server
        with smtplib.SMTP(host or "localhost", int(port or 25), here, timeout=_TIMEOUT) as connection:
            connection.send_message(message)

    return _exporter(context, "mail", message_of, send)


def _file(name: str) -> Path:
    given = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".config") / "hpcelastic" / name


def _address(name: str) -> str:
    """Return the content of a file of the user's configuration directory. Raises ConfigError."""
    path = _file(name)
    try:
        content, mode = path.read_text().strip(), path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; write the address there, and chmod 600 the file") from error
    if mode & 0o077:
        raise ConfigError(f"{path}: other users can read the address; chmod 600 the file")
    return content


def _exporter(
    context: ExporterContext, channel: str, message_of: Callable[[str], M], send: Callable[[M], None]
) -> Exporter:
    """Return an exporter that sends each notification of the run, unless another agent does."""
    group_rank = version = 0

    def export(time: float, event: Event) -> None:
        nonlocal group_rank, version
        if isinstance(event, WorkersStarted):
            group_rank = event.group_rank
        elif isinstance(event, StateChanged):
            version = event.version
        notification = notification_of(context.run, event, version)
        if notification is None or group_rank >= _SENDERS:
            return
        # An exception's text may contain anything. A message that cannot be made must not be claimed.
        message = message_of(notification.text.encode(errors="backslashreplace").decode())
        with contextlib.suppress(StoreError):  # reported elsewhere
            if _claim(RunPaths(context.directory), f"{channel}-{notification.id}", context.node):
                send(message)

    return export


def notification_of(run: str, event: Event, version: int) -> Notification | None:
    """Return the notification of an event at this version of the register; None if it is not notified."""
    match event:
        case RunEnded(phase=phase, reason=reason):
            # A run that is resumed ends again. The final state has one version, which all agents read.
            return Notification(f"end-{version}", f"{run} has {phase.value}: {reason}")
        case StateChanged(cause=Cause.WORKER | Cause.NODE, round=round, reason=reason):
            text = f"{run}: round {round} has ended: {reason}. See hpcelastic why {run}"
            return Notification(f"fault-{round}", text)
        case HangExamined(action=action, round=round, number=number, text=text) if action != "none":
            return Notification(f"hang-{number}", f"{run}: no progress in round {round}: {text} ({action})")
    return None


def _claim(paths: RunPaths, id: str, node: str) -> bool:
    """Return whether this agent sends the notification, because no other agent has claimed it. Raises StoreError."""
    files.make_directory(paths.notifications, within=paths.root)
    data = files.to_json({"node": node, "claim": secrets.token_hex(8)})
    return id not in files.names(paths.notifications) and files.publish_new(paths.notifications / id, data)
