"""What an issuer answers should be bounded in time and size, and wait without keeping others."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from dfmeta.exceptions import IssuerError
from dfmeta.store.auth.oidc import ANSWER_MAX, fetch_json
from tests.harness import nursery
from tests.harness.certificates import Authority
from tests.harness.issuer import Issuer, send, send_bytes, silent_listener

ROOT = Path(__file__).parents[5]
GREEN = """
import eventlet
eventlet.monkey_patch()
import sys, time
from dfmeta.store.auth.oidc import fetch_json
from dfmeta.exceptions import IssuerError

turns = 0

def turn():
    global turns
    while True:
        turns += 1
        eventlet.sleep(0.01)

eventlet.spawn(turn)
try:
    found = fetch_json(sys.argv[1], timeout=float(sys.argv[2]))
except IssuerError as error:
    found = str(error)
print(turns, found)
"""


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        yield issuer


def test_a_document_is_fetched(issuer: Issuer) -> None:
    issuer.answers["/x"] = lambda handler: send(handler, {"a": [1, "ä"]})
    assert fetch_json(f"{issuer.url}/x") == {"a": [1, "ä"]}


def test_an_answer_that_is_too_long_is_not_read_to_its_end(issuer: Issuer) -> None:
    document = json.dumps({"a": "a" * ANSWER_MAX}).encode()
    issuer.answers["/x"] = lambda handler: send_bytes(handler, document)
    with pytest.raises(IssuerError, match="more than 262144 bytes"):
        fetch_json(f"{issuer.url}/x")


def test_a_listener_that_is_silent_has_a_deadline() -> None:
    with silent_listener() as url, pytest.raises(IssuerError, match="no answer in time"):
        fetch_json(url, timeout=0.2)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:x/",
        "http://nowhere.invalid/",
        "http://" + "a" * 300 + "/",
        "http://[::1/",
        "http:///x",
        "https://127.0.0.1:1/",
    ],
)
def test_an_address_that_leads_nowhere_is_an_error_that_names_it(url: str) -> None:
    with pytest.raises(IssuerError) as caught:
        fetch_json(url, timeout=1)
    assert str(caught.value).startswith(f"{url}: ")
    assert caught.value.cause


def test_what_does_not_speak_http_is_said_to(issuer: Issuer) -> None:
    def other(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"220 mail.example.org ESMTP\r\n")

    issuer.answers["/x"] = other
    with pytest.raises(IssuerError, match="does not speak HTTP"):
        fetch_json(f"{issuer.url}/x")


def green(url: str, timeout: float, **environment: str) -> tuple[int, str]:
    """Fetch in a process that is patched as the daemons are: others' turns, and what came."""
    ran = subprocess.run(
        nursery.in_shell(["dfmeta-store", url, str(timeout)], GREEN),
        cwd=ROOT,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    turns, _, found = ran.stdout.strip().partition(" ")
    return int(turns), found


def test_the_hub_goes_on_while_an_issuer_takes_its_time(issuer: Issuer) -> None:
    def slow(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        # The client's end is all that it waits for.
        handler.connection.settimeout(30)
        handler.rfile.read(1)

    issuer.answers["/x"] = slow
    turns, found = green(f"{issuer.url}/x", 0.5)
    assert "no answer in time" in found
    assert turns >= 10


def test_certificates_are_checked_against_the_systems_authorities(authority: Authority) -> None:
    with Issuer(tls=authority.issue("localhost")) as issuer:
        issuer.answers["/x"] = lambda handler: send(handler, {"a": 1})
        url = f"{issuer.url}/x"
        trusted = {"SSL_CERT_FILE": str(authority.certificate)}
        assert green(url, 5, **trusted)[1] == "{'a': 1}"
        assert "certificate is not trusted" in green(url, 5)[1]
        wrong = url.replace("localhost", "127.0.0.1")
        assert "certificate is not trusted" in green(wrong, 5, **trusted)[1]
