"""A local mail server that remembers what it was sent, and Django's mail going there."""

import email
from asyncio import Server
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.policy import default
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from django.conf import settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    to: list[str]
    """Of the envelope."""
    subject: str
    id: str
    text: str
    files: dict[str, bytes]
    message: EmailMessage


@dataclass(slots=True)
class MailServer:
    port: int = 0
    """0 until it is started for the first time; then it stays the same."""
    refuse: dict[str, str] = field(default_factory=dict)
    """Answers by recipient."""
    asked: list[str] = field(default_factory=list)
    """Recipients that somebody wanted to send to."""
    mails: list[Mail] = field(default_factory=list)
    _controller: Controller | None = None

    def start(self) -> None:
        self._controller = _OnAnyPort(self, hostname="127.0.0.1", port=self.port)
        self._controller.start()
        self.port = self._controller.port

    def stop(self) -> None:
        if self._controller is not None:
            self._controller.stop()
            self._controller = None

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        self.asked.append(address)
        if address in self.refuse:
            return self.refuse[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        message: Any = email.message_from_bytes(envelope.content, policy=default)
        body = message.get_body(("plain",))
        attached = {part.get_filename(): part.get_payload(decode=True) for part in message.iter_attachments()}
        self.mails.append(
            Mail(
                to=envelope.rcpt_tos,
                subject=message["subject"],
                id=message["message-id"],
                text=body.get_content(),
                files=attached,
                message=message,
            )
        )
        return "250 OK"


class _OnAnyPort(Controller):
    def _trigger_server(self) -> None:
        """Connects to the port, which is known only now when any was asked for."""
        assert isinstance(self.server, Server)
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


@pytest.fixture
def mail_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MailServer]:
    """Django's mail of this process goes there."""
    server = MailServer()
    server.start()
    monkeypatch.setattr(settings, "EMAIL_BACKEND", "django.core.mail.backends.smtp.EmailBackend")
    monkeypatch.setattr(settings, "EMAIL_HOST", "127.0.0.1")
    monkeypatch.setattr(settings, "EMAIL_PORT", server.port)
    yield server
    server.stop()
