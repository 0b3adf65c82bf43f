"""WSGI interface (PEP 3333) of an application for :class:`~dfmeta.proxy.exchange.Exchange`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dfmeta.model import Answer
from dfmeta.proxy import access
from dfmeta.proxy.exchange import Exchange, Handler

EXCHANGE = "dfmeta.exchange"
"""Key of the exchange in the environment; the server sets it."""
BODILESS = frozenset({204, 304})
"""Statuses of answers without a body and Content-Length (RFC 9110, 8.6)."""

StartResponse = Callable[..., Any]


class Face:
    """A WSGI application (PEP 3333) around a handler.

    :param handler: makes the answers.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request.

        :param environ: only the exchange is read from it.
        :raises Abandoned: when the connection is to be closed without an answer.
        """
        exchange: Exchange = environ[EXCHANGE]
        answer = self._handler(exchange)
        head = exchange.request.method == "HEAD"
        start_response(*_head(answer, head=head))
        return [] if head or answer.status in BODILESS else [answer.body]


def _head(answer: Answer, *, head: bool) -> tuple[str, list[tuple[str, str]]]:
    """Return status and headers; only the backend knows a HEAD's length (RFC 9110, 9.3.2)."""
    headers = [(name.title(), value) for name, value in answer.headers]
    if answer.content_type:
        headers.insert(0, ("Content-Type", answer.content_type))
    said = any(name == "Content-Length" for name, _value in headers)
    if answer.status not in BODILESS and not said and (answer.body or not head):
        headers.append(("Content-Length", str(len(answer.body))))
    return f"{answer.status} {access.phrase(answer.status)}", headers
