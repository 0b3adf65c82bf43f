"""A web page of another site should not be let ask where nobody is asked for a token."""

import socket
from pathlib import Path

import pytest

from dfmeta.admin.browsers import cross_origin_reason, own_name, own_names

OURS = frozenset({"localhost", "admin.example.org", "compute1", "compute1.example.org"})


def headers_of(**headers: str) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def test_an_address_and_a_name_of_the_host_are_accepted() -> None:
    for host in (
        *("", "127.0.0.1", "127.0.0.1:9697", "[::1]:9697", "localhost:8080", "LOCALHOST"),
        *("192.0.2.1:9697", "admin.example.org:9697", "Admin.Example.org.", "localhost."),
        *("compute1:9697", "Compute1.Example.org:9697"),
    ):
        assert own_name(host, OURS)
        assert cross_origin_reason(headers_of(Host=host), OURS) == "", host


def test_another_name_is_refused_and_shown_without_control_characters() -> None:
    for host in (
        *("evil.example", "evil.example:9697", "127.0.0.1.evil.example", "localhost.evil.example"),
        # A name server of the network makes any of these: with its search domain, for one.
        *("evil", "evil:9697", "compute2", "compute1.evil.example", "evil.localhost"),
        *(
            "127.0.0.1@evil.example",
            "a b",
            "[evil]:1",
            ":9697",
            "127.0.0.1:x",
            "localhost/",
            "\u0131",
        ),
    ):
        assert not own_name(host, OURS)
        text = cross_origin_reason(headers_of(Host=host), OURS)
        assert "nothing is served under the name" in text, host
        assert text.isascii()


def test_a_page_of_the_host_and_a_typed_address_may_ask() -> None:
    host = "127.0.0.1:9697"
    for origin in ("http://127.0.0.1:9697", "HTTP://127.0.0.1:9697"):
        given = headers_of(Host=host, Origin=origin, Sec_Fetch_Site="same-origin")
        assert cross_origin_reason(given, OURS) == ""
    for site in ("none", "same-origin", ""):
        assert cross_origin_reason(headers_of(Host=host, Sec_Fetch_Site=site), OURS) == ""


def test_a_page_of_another_site_may_not_ask() -> None:
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8080"},
        {"Origin": "https://127.0.0.1:9697"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        given = headers_of(Host="127.0.0.1:9697", **headers)
        assert cross_origin_reason(given, OURS) == "a web page of another site may not ask", headers


@pytest.mark.parametrize(
    ("host", "lines", "beside"),
    [
        ("compute1", "127.0.1.1 compute1.example.org compute1 c1", ["compute1.example.org", "c1"]),
        ("compute1", "192.0.2.1\tCompute1.Example.ORG. Compute1 # one", ["compute1.example.org"]),
        ("Compute1.example.org", "192.0.2.1 compute1.example.org compute1", ["compute1"]),
        ("compute1", "192.0.2.2 compute2.example.org compute2\n\n# compute1 evil\n", []),
        ("compute1", "127.0.0.1 localhost", []),
        ("compute1", None, []),
    ],
)
def test_names_of_the_host_in_etc_hosts_are_accepted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str, lines: str | None, beside: list[str]
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    file = tmp_path / "hosts"
    if lines is not None:
        file.write_text(lines)
    names = own_names("Admin.example.org.:9697", hosts=file)
    assert names == {"localhost", "admin.example.org", host.lower(), *beside}
    assert own_names("[::1]:9697", hosts=file) == names - {"admin.example.org"} | {"::1"}


def test_no_name_server_is_asked_for_the_hosts_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_arguments: object, **_more: object) -> None:
        raise AssertionError("a name was looked up")

    for name in ("getaddrinfo", "getfqdn", "gethostbyaddr", "gethostbyname", "getnameinfo"):
        monkeypatch.setattr(socket, name, asked)
    assert {"localhost", socket.gethostname().lower()} <= own_names("")
