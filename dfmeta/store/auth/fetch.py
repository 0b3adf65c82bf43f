"""Fetches a JSON document from the issuer of tokens, bounded in size and in time.

A socket's time-out begins anew with each byte, and httplib2 reads an answer to its end and unpacks
it: an issuer that trickles, or whose answer is a bomb, would keep the admin API. Here all of an
answer, its head included, has to come before one deadline.

Trust: the address is the operator's. Who answers there is known by its certificate where it is
https; with http it is whoever is between, and so are then the keys.
"""

from __future__ import annotations

import functools
import http.client
import io
import json
import socket
import time
from typing import Any, Final

import httplib2

from dfmeta.exceptions import IssuerError
from dfmeta.trust import client_context

TIMEOUT: Final = 5.0
"""Seconds for a connection, and after it for the whole answer."""
ANSWER_MAX: Final = 256 << 10
"""Bytes of an answer with its head. A set of keys has some thousands."""


def fetch_json(url: str, *, timeout: float = TIMEOUT) -> Any:
    """Return the JSON document at *url*, ``http`` or ``https``. Redirections are not followed.

    :param timeout: seconds to connect (for each of the name's addresses) and to answer.
    :raises IssuerError: when there is none, with a cause that quotes nothing of the answer.
    """
    client = httplib2.Http(timeout=timeout, proxy_info=None)
    client.follow_redirects = False
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "Connection": "close"}
    try:
        response, body = client.request(
            url, headers=headers, connection_type=_connection_type(url, timeout)
        )
        status = response.status
    except TimeoutError as error:
        raise IssuerError(url=url, cause=f"no answer within {timeout:g} s") from error
    except _Overlong as error:
        raise IssuerError(url=url, cause=f"the answer has over {ANSWER_MAX} bytes") from error
    except (OSError, httplib2.HttpLib2Error) as error:
        cause = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise IssuerError(url=url, cause=cause) from error
    except (http.client.HTTPException, ValueError, LookupError, ArithmeticError) as error:
        raise IssuerError(url=url, cause="what answers there does not speak HTTP") from error
    finally:
        client.close()
    if status != http.HTTPStatus.OK:
        raise IssuerError(url=url, cause=f"it answers {status}")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise IssuerError(url=url, cause="it does not answer with JSON") from error


class _Overlong(http.client.HTTPException):
    """More came than :data:`ANSWER_MAX`."""


class _Bounded(io.RawIOBase):
    """What is read from a socket, until a deadline and up to a number of bytes."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, *, deadline: float) -> None:
        self._raw = raw
        self._sock = sock
        self._deadline = deadline
        self._left = ANSWER_MAX

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read what is there, see :class:`io.RawIOBase`."""
        patience = self._deadline - time.monotonic()
        if patience <= 0:
            raise TimeoutError
        self._sock.settimeout(patience)
        count = self._raw.readinto(buffer)
        self._left -= count or 0
        if self._left < 0:
            raise _Overlong
        return count

    def close(self) -> None:
        """Let go of the socket."""
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, timeout: float, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        raw = self.fp.detach()
        bounded = _Bounded(raw, sock, deadline=time.monotonic() + timeout)
        self.fp = io.BufferedReader(bounded)

    def begin(self) -> None:
        """Read the head. httplib2 is not to unpack the body: it would do so without a bound."""
        super().begin()
        del self.headers["Content-Encoding"]


class _Plain(http.client.HTTPConnection):
    def __init__(self, authority: str, *, timeout: float, proxy_info: None) -> None:
        del proxy_info
        super().__init__(authority, timeout=timeout)


class _Secure(http.client.HTTPSConnection):
    def __init__(self, authority: str, *, timeout: float, proxy_info: None) -> None:
        del proxy_info
        super().__init__(authority, timeout=timeout, context=client_context())


def _connection_type(url: str, timeout: float) -> type:
    """Return the class of a connection; httplib2 makes it by itself."""
    secure = url.lower().startswith("https:")
    base = _Secure if secure else _Plain
    response = functools.partial(_Response, timeout=timeout)
    return type("IssuerConnection", (base,), {"response_class": staticmethod(response)})
