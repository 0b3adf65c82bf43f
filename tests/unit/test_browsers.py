"""A web page of another site should not be let ask where nobody is asked for a token."""

from __future__ import annotations

import pytest

from dfmeta.proxy.browsers import own_name, stranger

LISTEN = "admin.example.org:9697"


def environ(**headers: str) -> dict[str, str]:
    return {f"HTTP_{name}": value for name, value in headers.items()}


@pytest.mark.parametrize(
    "host",
    [
        *("", "127.0.0.1", "127.0.0.1:9697", "[::1]:9697", "localhost:8080", "LOCALHOST"),
        *(
            "192.0.2.1:9697",
            "admin.example.org:9697",
            "Admin.Example.org.",
            "localhost.",
            "compute1:9697",
        ),
    ],
)
def test_an_address_localhost_and_the_name_of_the_listener_are_ours(host: str) -> None:
    assert own_name(host, LISTEN)
    assert stranger(environ(HOST=host), LISTEN) == ""


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:9697", "127.0.0.1.evil.example", "localhost.evil.example"),
        *(
            "127.0.0.1@evil.example",
            "a b",
            "[evil]:1",
            ":9697",
            "127.0.0.1:x",
            "localhost/",
            "\u0131",
        ),
    ],
)
def test_another_name_is_not_and_is_named_without_what_moves_a_cursor(host: str) -> None:
    assert not own_name(host, LISTEN)
    assert "nothing is served under the name" in stranger(environ(HOST=host), LISTEN)
    assert stranger(environ(HOST=host), LISTEN).isascii()


@pytest.mark.parametrize("origin", ["http://127.0.0.1:9697", "HTTP://127.0.0.1:9697"])
def test_a_page_of_ours_may_ask(origin: str) -> None:
    given = environ(HOST="127.0.0.1:9697", ORIGIN=origin, SEC_FETCH_SITE="same-origin")
    assert stranger(given, LISTEN) == ""


@pytest.mark.parametrize(
    "headers",
    [
        {"ORIGIN": "http://evil.example"},
        {"ORIGIN": "null"},
        {"ORIGIN": "http://127.0.0.1:8080"},
        {"ORIGIN": "https://127.0.0.1:9697"},
        {"SEC_FETCH_SITE": "cross-site"},
        {"SEC_FETCH_SITE": "same-site"},
    ],
    ids=str,
)
def test_a_page_of_another_site_may_not(headers: dict[str, str]) -> None:
    given = environ(HOST="127.0.0.1:9697", **headers)
    assert stranger(given, LISTEN) == "a web page of another site may not ask"


@pytest.mark.parametrize("site", ["none", "same-origin", ""])
def test_who_typed_the_address_may(site: str) -> None:
    assert stranger(environ(HOST="127.0.0.1:9697", SEC_FETCH_SITE=site), LISTEN) == ""
