"""A body should be read whole within its limit, or refused with a status and words of the API."""

from __future__ import annotations

import io
from typing import Any

import pytest

from dfmeta.exceptions import ApiError, BadRequestError
from dfmeta.store.api.bodies import read_body

LIMIT = 10


class Failing:
    """An input that a server has to refuse."""

    def __init__(self, status: int, reason: Any) -> None:
        self._error = BadRequestError(status=status, reason=reason, cause="its own words")

    def read(self, _size: int) -> bytes:
        raise self._error


def environ(content: bytes | Failing, **more: str) -> dict[str, Any]:
    return {"wsgi.input": io.BytesIO(content) if isinstance(content, bytes) else content, **more}


@pytest.mark.parametrize(
    "one",
    [
        environ(b"0123456789", CONTENT_LENGTH="10"),
        environ(b"0123456789 and the next request", CONTENT_LENGTH="10"),
        environ(b"0123456789", HTTP_TRANSFER_ENCODING="chunked"),
    ],
)
def test_a_body_of_the_limit_is_read_whole(one: dict[str, Any]) -> None:
    assert read_body(one, LIMIT) == b"0123456789"


def test_a_request_without_a_length_has_no_body() -> None:
    assert read_body(environ(b"the next request"), LIMIT) == b""


@pytest.mark.parametrize(
    ("one", "status", "words"),
    [
        (environ(b"0123456789a", CONTENT_LENGTH="11"), 413, "request body over 10 bytes"),
        (environ(b"012345678", CONTENT_LENGTH="10"), 400, "invalid request body"),
        (environ(b"0", CONTENT_LENGTH="+1"), 400, "invalid request body"),
        (environ(b"0", CONTENT_LENGTH="9" * 19), 400, "invalid request body"),
        (environ(Failing(400, "chunks")), 413, "the request body has too many chunks"),
        (environ(Failing(413, "body")), 413, "request body over 10 bytes"),
        (environ(Failing(400, "malformed")), 400, "invalid request body"),
        (environ(Failing(408, "body_timeout")), 408, "the request body did not come"),
        (environ(Failing(503, "body")), 503, "too many large bodies at once"),
    ],
)
def test_another_one_is_refused(one: dict[str, Any], status: int, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_body(one, LIMIT)
    assert (caught.value.status, caught.value.message) == (status, words)
