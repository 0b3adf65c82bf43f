"""The body of a request in WSGI (PEP 3333), limited in size.

Trust: none. The server has determined where the body ends (:mod:`dfmeta.http.http1`). No part of
the body is read before :func:`read_body` is called.
"""

from __future__ import annotations

import re
from typing import Any, Final

from dfmeta.errors import ApiError, BadRequestError

_DIGITS: Final = re.compile(r"[0-9]{1,18}")


def read_body(environ: dict[str, Any], limit: int) -> bytes:
    """Return the whole body of one request.

    :param environ: environment of the request; headers and input come from the client. If the
        input raises BadRequestError, its status becomes that of the answer.
    :param limit: maximum number of bytes of a body.
    :raises ApiError: 413 if it is over the limit or has too many chunks, 400 if it is shorter than
        announced or malformed, 408 if it does not arrive in time, 503 if there is no room for it
        now.
    """
    length = _length(environ)
    wanted = limit if length is None else min(length, limit)
    try:
        body: bytes = environ["wsgi.input"].read(wanted)
    except BadRequestError as error:
        if error.reason == "chunks":
            message = "the request body has too many chunks"
            raise ApiError(status=413, message=message) from error
        raise _refused(error.status, limit) from error
    if length is not None and length > limit:
        raise _refused(413, limit)
    if length is not None and len(body) < length:
        raise _refused(400, limit)
    return body


def _length(environ: dict[str, Any]) -> int | None:
    """Return the Content-Length; None: the body is in chunks."""
    if "HTTP_TRANSFER_ENCODING" in environ:
        return None
    length = environ.get("CONTENT_LENGTH") or "0"
    if not _DIGITS.fullmatch(length):
        raise _refused(400, 0)
    return int(length)


def _refused(status: int, limit: int) -> ApiError:
    match status:
        case 413:
            return ApiError(status=413, message=f"request body over {limit} bytes")
        case 408:
            return ApiError(status=408, message="the request body did not come")
        case 503:
            return ApiError(status=503, message="too many large bodies at once")
    return ApiError(status=400, message="invalid request body")
