"""A document of an issuer should be bounded in time and size; patched processes: see host."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from dfmeta.exceptions import IssuerError
from dfmeta.store.auth.oidc import ANSWER_MAX, fetch_json
from tests.core.unit.store.support import named
from tests.harness.issuer import Issuer, send, send_bytes, silent_listener


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        yield issuer


def test_a_document_is_fetched(issuer: Issuer) -> None:
    issuer.answers["/x"] = lambda handler: send(handler, {"a": [1, "ä"]})
    assert fetch_json(f"{issuer.url}/x") == {"a": [1, "ä"]}


def test_an_unusable_answer_is_an_error(issuer: Issuer) -> None:
    def other(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"220 mail.example.org ESMTP\r\n")

    document = json.dumps({"a": "a" * ANSWER_MAX}).encode()
    issuer.answers["/long"] = lambda handler: send_bytes(handler, document)
    issuer.answers["/other"] = other
    with pytest.raises(IssuerError, match="more than 262144 bytes"):
        fetch_json(f"{issuer.url}/long")
    with pytest.raises(IssuerError, match="does not speak HTTP"):
        fetch_json(f"{issuer.url}/other")
    with silent_listener() as url, pytest.raises(IssuerError, match="no answer in time"):
        fetch_json(url, timeout=0.05)


def test_an_unusable_address_is_named() -> None:
    for url in (
        "http://127.0.0.1:1/",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:x/",
        "http://" + "a" * 300 + "/",
        "http://[::1/",
        "http:///x",
        "https://127.0.0.1:1/",
    ):
        with named(url), pytest.raises(IssuerError) as caught:
            fetch_json(url)
        assert str(caught.value).startswith(f"{url}: ")
        assert caught.value.cause
