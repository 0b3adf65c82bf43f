"""``GET /`` of the admin listener: who may ask for the status page, and what for.

There is no authentication: whoever reaches the listener sees the page. A web page of somebody
else's in the operator's browser reaches it as well, by a name of its own (see
:mod:`dfmeta.admin.browsers`): a name in Host is answered only when it is ours. A link from another
site leads here like any other.
"""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable, Mapping
from typing import Final

import webob

from dfmeta.admin.browsers import HOW, own_name, own_names, shown
from dfmeta.admin.status import STATES, Query, style_hash

REFRESH: Final = 10
"""Seconds after which a browser loads the page anew, unless it is told otherwise."""
REFRESH_MAX: Final = 3600
FILTER_MAX: Final = 64
"""Characters that ports are looked for by."""
_DIGITS: Final = re.compile(r"[0-9]{1,4}")

Render = Callable[[Query], str]


class StatusPage:
    """Answers requests for the page.

    :param listen: admin_listen; its host's name is ours.
    :param render: gives the page; see :func:`dfmeta.admin.status.render`.
    """

    def __init__(self, listen: str, render: Render) -> None:
        self._names = own_names(listen)
        self._render = render

    def __call__(self, request: webob.Request) -> webob.Response:
        """Answer a GET or HEAD.

        Trust: nothing of the request gets into the page but what ports were looked for by, escaped.
        """
        host = request.environ.get("HTTP_HOST", "")
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
    """What the page is asked for; fields that it does not know are ignored.

    :raises ValueError: when a field makes no sense, in words.
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
    # Of 421 webob has no name.
    response = webob.Response(
        status=f"{status} {http.client.responses[status]}",
        content_type="text/plain",
        charset="UTF-8",
        text=text,
    )
    response.headers.update(_headers())
    return response
