"""Notifications: each is sent at most once in a run, and the address is not in its directory."""

import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import replace
from email.message import EmailMessage
from pathlib import Path

import pytest

from hpcelastic.errors import ConfigError
from hpcelastic.exporters import ExporterContext
from hpcelastic.notifications import notification_of, to_mail, to_webhook
from hpcelastic.protocol.events import Event, Fenced, HangExamined, RunEnded, StateChanged, WorkersStarted
from hpcelastic.protocol.state import Cause, Phase

FAULT = StateChanged(
    version=3, phase=Phase.JOINING, round=2, restarts=1, reason="n2 was lost", cause=Cause.NODE, lost="n2@0-a"
)
ENDED = RunEnded(phase=Phase.SUCCEEDED, reason="all workers of round 3 succeeded")


def hang(action: str) -> HangExamined:
    return HangExamined(
        round=2, number=1, verdict="behind", ranks=(1,), certain=True, text="rank 1 hangs", action=action, path="/"
    )


def workers(group_rank: int) -> WorkersStarted:
    return WorkersStarted(
        round=1,
        world_size=4,
        group_rank=group_rank,
        group_world_size=4,
        role_rank=0,
        role_world_size=4,
        pids={0: 1},
        cpus="0",
    )


@pytest.mark.parametrize(
    ("event", "id", "text"),
    [
        (ENDED, "end-9", "digits has succeeded: all workers of round 3 succeeded"),
        (FAULT, "fault-2", "digits: round 2 has ended: n2 was lost. See hpcelastic why digits"),
        (hang("restart"), "hang-1", "digits: no progress in round 2: rank 1 hangs (restart)"),
    ],
    ids=["the end", "a fault", "a hang"],
)
def test_what_is_notified(event: Event, id: str, text: str) -> None:
    found = notification_of("digits", event, 9)
    assert found is not None and (found.id, found.text) == (id, text)


@pytest.mark.parametrize(
    "event",
    [
        Fenced(round=1),
        hang("none"),
        StateChanged(version=3, phase=Phase.JOINING, round=2, restarts=1, reason="n3 joins", cause=Cause.JOIN),
        StateChanged(version=3, phase=Phase.RUNNING, round=2, restarts=1, reason="x"),
    ],
    ids=["another kind", "no hang", "a node joins", "a round begins"],
)
def test_what_is_not_notified(event: Event) -> None:
    assert notification_of("digits", event, 9) is None


class Received:
    """A server that takes webhooks and mails."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        received = self.texts

        class Webhook(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # the name of the library
                received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        class Mail(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(b"220 here\r\n")
                data = False
                lines: list[str] = []
                for raw in self.rfile:
                    line = raw.decode().rstrip("\r\n")
                    if data and line == ".":
                        data = False
                        received.append("\n".join(lines))
                        self.wfile.write(b"250 ok\r\n")
                    elif data:
                        lines.append(line)
                    elif line.lower() == "data":
                        data = True
                        self.wfile.write(b"354 go\r\n")
                    elif line.lower() == "quit":
                        self.wfile.write(b"221 bye\r\n")
                        return
                    else:
                        self.wfile.write(b"250 ok\r\n")

        self.servers = [
            http.server.ThreadingHTTPServer(("127.0.0.1", 0), Webhook),
            socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mail),
        ]
        for server in self.servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()

    def close(self) -> None:
        for server in self.servers:
            server.shutdown()
            server.server_close()


@pytest.fixture
def received(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    server = Received()
    home = tmp_path / "config" / "hpcelastic"
    home.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home.parent))
    web, mail = (each.server_address[1] for each in server.servers)
    for name, text in (("webhook", f"http://127.0.0.1:{web}/secret"), ("mail", f"eva@example.org\n127.0.0.1:{mail}")):
        (home / name).write_text(f"{text}\n")
        (home / name).chmod(0o600)
    yield server
    server.close()


def contexts(root: Path) -> list[ExporterContext]:
    (root / "digits").mkdir(exist_ok=True)
    return [ExporterContext("digits", root / "digits", f"n{i}") for i in range(4)]


@pytest.mark.parametrize("factory", [to_webhook, to_mail])
def test_one_agent_sends_each_notification(factory, received: Received, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]  # a factory
    exporters = [factory(context) for context in contexts(tmp_path)]
    threads = []
    for rank, export in enumerate(exporters):

        def events(rank: int = rank, export=export) -> None:  # type: ignore[no-untyped-def]  # as above
            for event in (workers(rank), FAULT, FAULT, hang("restart"), ENDED):
                export(0.0, event)

        threads.append(threading.Thread(target=events))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert len(received.texts) == 3
    for text in ("n2 was lost", "rank 1 hangs", "has succeeded"):
        assert sum(text in each for each in received.texts) == 1
    for path in (tmp_path / "digits").rglob("*"):
        assert path.is_dir() or (b"secret" not in path.read_bytes() and b"example.org" not in path.read_bytes())


@pytest.mark.parametrize("factory", [to_webhook, to_mail])
def test_any_text_of_a_failure_is_sent(factory, received: Received, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]  # a factory
    reason = f"rank 0 failed: 50%\r100%\x0b\udcff\0 {'x' * 300}\nsecond line"
    factory(contexts(tmp_path)[0])(0.0, replace(FAULT, reason=reason))
    (text,) = received.texts
    assert "rank 0 failed: 50%" in text


def test_a_notification_whose_message_cannot_be_made_is_left_to_another_agent(
    received: Received, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(message: EmailMessage, text: str) -> None:
        raise ValueError("a defect")

    first, second = (to_mail(context) for context in contexts(tmp_path)[:2])
    with monkeypatch.context() as broken:
        broken.setattr(EmailMessage, "set_content", fail)
        with pytest.raises(ValueError, match="a defect"):
            first(0.0, ENDED)
    second(0.0, ENDED)
    assert len(received.texts) == 1


def test_each_end_of_a_run_that_is_resumed_is_notified(received: Received, tmp_path: Path) -> None:
    for version in (3, 8):
        ends = StateChanged(version=version, phase=Phase.SUCCEEDED, round=2, restarts=0, reason="x")
        for context in contexts(tmp_path):
            export = to_webhook(context)
            export(0.0, ends)
            export(0.0, ENDED)
    assert received.texts == ["digits has succeeded: all workers of round 3 succeeded"] * 2


def test_other_nodes_than_the_first_ones_send_nothing(received: Received, tmp_path: Path) -> None:
    export = to_webhook(contexts(tmp_path)[3])
    for event in (workers(3), FAULT, ENDED):
        export(0.0, event)
    assert received.texts == []


def test_a_server_that_refuses_is_an_error_of_the_exporter(received: Received, tmp_path: Path) -> None:
    received.close()
    export = to_webhook(contexts(tmp_path)[0])
    with pytest.raises(OSError, match="refused"):
        export(0.0, ENDED)
    export(0.0, ENDED)  # it is not sent a second time


@pytest.mark.parametrize(
    ("factory", "name", "text", "mode", "message"),
    [
        (to_webhook, "webhook", None, 0o600, "No such file or directory; write the address there"),
        (to_webhook, "webhook", "https://example.org/x", 0o644, "other users can read the address; chmod 600"),
        (to_webhook, "webhook", "example.org", 0o600, "contains no address that begins with https://"),
        (to_mail, "mail", "eva", 0o600, "contains no e-mail address"),
    ],
    ids=["missing", "readable", "no address", "no mail address"],
)
def test_a_wrong_address_is_refused(  # type: ignore[no-untyped-def]  # a factory
    factory, name: str, text: str | None, mode: int, message: str, received: Received, tmp_path: Path
) -> None:
    path = tmp_path / "config" / "hpcelastic" / name
    path.unlink()
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(ConfigError, match=message):
        factory(contexts(tmp_path)[0])
