"""Fetch a JSON document from the token issuer, with limits of size and time.

Trust: the URL comes from the operator, or from a document of the issuer. With https, the
certificate authenticates the server; with http, any host on the path may answer with its own keys.
"""

from __future__ import annotations

import http
import http.client
import json
import time
from typing import Any, Final

from httplib2 import HttpLib2Error

from dfmeta.exceptions import IssuerError, LookupAnswerError, LookupAwayError
from dfmeta.store.http import Client, Exchange

TIMEOUT: Final = 5.0
"""Seconds for the connection and the whole answer."""
ANSWER_MAX: Final = 256 << 10
"""Bytes of an answer's body. A set of keys has some thousands."""
_HEADERS: Final = {"Accept": "application/json", "Accept-Encoding": "identity"}


def fetch_json(url: str, *, timeout: float = TIMEOUT) -> Any:
    """Return the JSON document at *url*, ``http`` or ``https``. Redirections are not followed.

    :param timeout: seconds to connect and to answer.
    :raises IssuerError: there is no JSON document; the cause does not quote the answer.
    """
    client = Client(body_max=ANSWER_MAX)
    try:
        reply = client.exchange(Exchange(url, _HEADERS, deadline=time.monotonic() + timeout))
    except (LookupAwayError, LookupAnswerError) as error:
        raise IssuerError(url=url, cause=error.cause) from error
    except (HttpLib2Error, http.client.HTTPException, ValueError) as error:
        raise IssuerError(url=url, cause="the address is invalid") from error
    finally:
        client.close()
    if reply.status != http.HTTPStatus.OK:
        raise IssuerError(url=url, cause=f"it answers {reply.status}")
    try:
        return json.loads(reply.body)
    except (ValueError, RecursionError) as error:
        raise IssuerError(url=url, cause="it does not answer with JSON") from error
