"""``GET /`` of the admin listener: access to the status page, and its query parameters.

There is no authentication: every client that reaches the listener sees the page. A foreign web page
in the operator's browser could reach it as well, through a name of its own (see
:mod:`dfmeta.admin.browsers`). So a request is answered only if Host has an address or one of the
own names. A link from another site works like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import webob

from dfmeta.admin.browsers import HOW, own_name, own_names, shown
from dfmeta.admin.status import STATES, Query, style_hash

REFRESH: Final = 10
"""Default interval, in seconds, after which a browser reloads the page."""
REFRESH_MAX: Final = 3600
FILTER_MAX: Final = 64
"""Maximum number of characters of the filter for ports."""
_DIGITS: Final = re.compile(r"[0-9]{1,4}")

Render = Callable[[Query], str]


class StatusPage:
    """Answers requests for the page.

    :param listen: admin_listen; its host's name is accepted in Host.
    :param render: returns the page; see :func:`dfmeta.admin.status.render`.
    """

    def __init__(self, listen: str, render: Render) -> None:
        self._names = own_names(listen)
        self._render = render

    def __call__(self, request: webob.Request) -> webob.Response:
        """Answer a GET or HEAD.

        Trust: of the request, only the filter for ports gets into the page, and it is escaped.
        """
        host = request.headers.get("Host", "")
        if not own_name(host, self._names):
            return _words(421, f"there is no page under the name {shown(host)}: {HOW}")
        try:
            query = parse(request.GET)
        except UnicodeError:
            return _words(400, "what is asked for is not UTF-8")
        except ValueError as error:
            return _words(400, str(error))
        response = webob.Response(
            status=200, content_type="text/html", charset="UTF-8", text=self._render(query)
        )
        response.headers.update(_headers())
        return response


def parse(fields: Mapping[str, str]) -> Query:
    """Parse the query parameters of the page; unknown parameters are ignored.

    :raises ValueError: if a parameter is invalid; the message says so to the client.
    """
    refresh, state = fields.get("refresh", str(REFRESH)), fields.get("state", "")
    if not _DIGITS.fullmatch(refresh) or int(refresh) > REFRESH_MAX:
        raise ValueError(f"refresh is a number of seconds up to {REFRESH_MAX}, or 0 for never")
    if state and state not in STATES:
        raise ValueError(f"state is one of: {', '.join(STATES)}")
    port = fields.get("port", "").strip()
    if len(port) > FILTER_MAX:
        raise ValueError(f"port has {FILTER_MAX} characters at most")
    return Query(port=port, state=state, refresh=int(refresh))


def _headers() -> list[tuple[str, str]]:
    policy = (
        f"default-src 'none'; style-src '{style_hash()}'; img-src data:; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    )
    return [
        ("Content-Security-Policy", policy),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Frame-Options", "DENY"),
        ("Referrer-Policy", "no-referrer"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        ("Cache-Control", "no-store"),
    ]


def _words(status: int, words: str) -> webob.Response:
    text = f"{status}: {words}.\n"
    response = webob.Response(status=status, content_type="text/plain", charset="UTF-8", text=text)
    response.headers.update(_headers())
    return response
