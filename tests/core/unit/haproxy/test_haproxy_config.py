"""haproxy should accept each configuration, and follow it for guests that ask."""

from __future__ import annotations

import itertools
import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import eventlet
import pytest

from dfmeta.proxy.haproxy.config import IN_DOUBT, map_name, render, waiting
from dfmeta.proxy.haproxy.plain import (
    REPEATED,
    USUAL_NAMES,
    USUAL_NETWORK_DATA,
    USUAL_OPENSTACK,
    USUAL_TARGETS,
)
from dfmeta.proxy.haproxy.plan import Descriptors, NovaServer, Plan
from dfmeta.proxy.http1 import HeadLimits
from dfmeta.proxy.limits import Limits
from tests.core.unit.haproxy.support import HERE, PROGRAM, Loopback, server, value
from tests.core.unit.support import until
from tests.core.unit.upstream import OK, Asked, Upstream, hang
from tests.harness.agent import HAPROXY
from tests.harness.certificates import Authority
from tests.harness.netns import ROOT

FOUR = NovaServer(
    host="nova.example", authority="nova.example:8775", address=ip_address("192.0.2.1"), port=8775
)
SIX = replace(FOUR, address=ip_address("2001:db8::1"))
OTHER = replace(FOUR, host="other.example", authority="other.example:1", port=1)
NUMERIC = replace(SIX, host="2001:db8::1", authority="[2001:db8::1]:8775")
TARGETS = (*USUAL_TARGETS, *USUAL_OPENSTACK, USUAL_NETWORK_DATA)
BEYOND = 256
"""Bytes by which a request may be larger than the daemon allows, as the page says."""
PLANS = {
    "plain": Plan(servers=(FOUR,), handover="h"),
    "no server": Plan(servers=(), handover="h"),
    "both families": Plan(servers=(FOUR, SIX), handover="h"),
    "several hosts": Plan(servers=(FOUR, SIX, OTHER), several=True, handover="h"),
    "several hosts, an address": Plan(servers=(FOUR, NUMERIC), several=True, handover="h"),
    "tls": Plan(servers=(FOUR, SIX), tls=True, handover="h"),
    "tls, several hosts": Plan(servers=(FOUR, OTHER), several=True, tls=True, handover="h"),
    "tls, insecure": Plan(servers=(FOUR,), tls=True, insecure=True, handover="h"),
    "forwarded": Plan(servers=(FOUR,), refuse_forwarded=True, handover="h"),
    "debug": Plan(servers=(FOUR,), debug=True, handover="h"),
    "subports": Plan(servers=(FOUR,), network_data_subports=True, handover="h"),
    "503": Plan(servers=(FOUR,), timeout_answer="503", handover="h"),
    "close": Plan(servers=(FOUR,), timeout_answer="close", handover="h"),
    "no keepalive": Plan(servers=(FOUR,), limits=Limits(keepalive_timeout=0), handover="h"),
    "large": Plan(servers=(FOUR,), threads=2, maxconn=65536, hold_timeout=0, handover="n" * 40),
}


class Files:
    """Descriptors as a process of haproxy inherits them."""

    def __init__(self, authority: Authority) -> None:
        self._all: list[int] = []
        pair = authority.issue("client")
        listener = eventlet.listen((HERE, 0))
        link, self._link = socket.socketpair()
        self.given = Descriptors(
            listeners=(self._keep(os.dup(listener.fileno())),),
            cli=self._keep(link.detach()),
            log=self._file(b""),
            map=self._file(b""),
            away=self._file(b"HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n"),
            ca=self._file(authority.certificate.read_bytes()),
            cert=self._file(pair.certificate.read_bytes() + pair.key.read_bytes()),
        )
        listener.close()

    def _keep(self, descriptor: int) -> int:
        self._all.append(descriptor)
        return descriptor

    def _file(self, content: bytes) -> int:
        descriptor = self._keep(os.memfd_create("test"))
        os.write(descriptor, content)
        return descriptor

    def check(self, plan: Plan, given: Descriptors, *, lua: bool = True) -> str:
        """What haproxy says of the configuration; empty: it accepts it."""
        if lua:
            text = waiting(plan, given).encode("ascii")
            given = replace(given, waiting=self._file(text))
        configuration = self._file(render(plan, given).encode("ascii"))
        result = subprocess.run(
            [HAPROXY, "-c", "-f", f"/proc/self/fd/{configuration}"],
            pass_fds=self._all,
            capture_output=True,
            text=True,
            check=False,
        )
        return result.stderr if result.stderr or not result.returncode else str(result.returncode)

    def close(self) -> None:
        self._link.close()
        for descriptor in self._all:
            os.close(descriptor)


@pytest.fixture
def files(authority: Authority) -> Iterator[Files]:
    made = Files(authority)
    yield made
    made.close()


@pytest.mark.parametrize("name", PLANS)
def test_haproxy_accepts_it_without_a_warning(files: Files, name: str) -> None:
    assert files.check(PLANS[name], files.given) == ""


def test_haproxy_accepts_it_without_lua(files: Files) -> None:
    assert "lua" not in render(PLANS["plain"], files.given)
    assert files.check(PLANS["plain"], files.given, lua=False) == ""


def test_haproxy_accepts_it_with_the_authorities_of_the_system(files: Files) -> None:
    assert files.check(PLANS["tls"], replace(files.given, ca=None, cert=None)) == ""


def test_a_check_that_fails_would_be_seen(files: Files) -> None:
    assert "ALERT" in files.check(PLANS["tls"], replace(files.given, ca=files.given.map))


def test_no_certificate_passes_unseen_unless_the_operator_says_so() -> None:
    given = Descriptors(listeners=(3,), cli=4, log=5, map=6, away=7, ca=8)
    text = render(PLANS["tls"], given)
    servers = [line for line in text.splitlines() if " server nova" in line]
    assert len(servers) == 4
    for line in servers:
        assert "verify required verifyhost nova.example ca-file /proc/self/fd/8" in line
        assert "sni str(nova.example)" in line
    assert "verify none" not in text
    insecure = render(PLANS["tls, insecure"], given)
    assert "verify none" in insecure
    assert "verify required" not in insecure


def test_a_slow_host_among_several_is_given_half_of_the_time() -> None:
    given = Descriptors(listeners=(3,), cli=4, log=5, map=6, away=7)
    (alone, *_), (several, *_) = (
        re.findall(r"timeout server (\d+)", render(PLANS[name], given))
        for name in ("plain", "several hosts")
    )
    assert (alone, several) == ("8000", "4000")


def test_each_of_several_hosts_has_the_value_of_its_own_host_header_as_its_name() -> None:
    given = Descriptors(listeners=(3,), cli=4, log=5, map=6, away=7)
    servers = (FOUR, SIX, replace(SIX, address=ip_address("2001:db8::2")), OTHER)
    text = render(replace(PLANS["several hosts"], servers=servers), given)
    names = re.findall(r"^    server (\S+) \S+ check", text, flags=re.MULTILINE)
    assert names[: len(names) // 2] == names[len(names) // 2 :]
    assert names[0] == "nova.example:8775"
    assert names[3] == "other.example:1"
    assert len(set(names)) == 4
    assert {name.lower() for name in names} == {"nova.example:8775", "other.example:1"}
    assert text.count("http-send-name-header Host") == 2


@pytest.mark.parametrize("name", ["plain", "both families", "several hosts, an address"])
def test_one_host_has_its_host_header_and_no_name(name: str) -> None:
    given = Descriptors(listeners=(3,), cli=4, log=5, map=6, away=7)
    text = render(PLANS[name], given)
    assert "http-send-name-header" not in text
    assert text.count('\\r\\nHost: nova.example:8775"\n') == 2
    assert " server nova0 192.0.2.1:8775 check" in text


def test_the_map_has_the_name_of_its_file() -> None:
    given = Descriptors(listeners=(3,), cli=4, log=5, map=6, away=7)
    assert map_name(given) == "/proc/self/fd/6"
    assert render(PLANS["plain"], given).count("map_ip(/proc/self/fd/6)") == 7


# With haproxy itself. Where its daemon would get a request, there is none: it ends unanswered.


@pytest.fixture
def known(loopback: Callable[..., Loopback], upstream: Upstream) -> Callable[..., Loopback]:
    """Starts a haproxy that knows the guest, with a host of Nova that answers."""

    def start(**of_plan: Any) -> Loopback:
        one = loopback(server(upstream), **of_plan)
        one.put(value())
        return one

    return start


def request(line: str = "GET /latest HTTP/1.1", *headers: str) -> bytes:
    return "\r\n".join([line, "Host: 169.254.169.254", *headers, "", ""]).encode()


def test_nova_gets_the_guest_of_the_map_and_no_header_of_the_guest(
    known: Callable[..., Loopback], upstream: Upstream
) -> None:
    answer = known().ask(
        request(
            "GET /openstack/latest/meta_data.json HTTP/1.1",
            "X-Instance-ID: forged",
            "x-instance-id-signature: forged",
            "X_Tenant_ID: forged",
            "X-Forwarded-For: 10.9.9.9",
            "Forwarded: for=10.9.9.9",
            "Cookie: a=b",
            "Accept: application/json",
        )
    )
    assert answer.startswith(b"HTTP/1.1 200 OK")
    (asked,) = upstream.asked
    assert asked.line == "GET /openstack/latest/meta_data.json HTTP/1.1"
    assert sorted((name.lower(), said) for name, said in asked.headers) == [
        ("accept", "application/json"),
        ("accept-encoding", "identity"),
        ("host", upstream.host.authority),
        ("user-agent", "dfmeta"),
        ("x-forwarded-for", "10.0.0.5"),
        ("x-instance-id", "instance"),
        ("x-instance-id-signature", "signature"),
        ("x-tenant-id", "project"),
    ]


ODD = [
    request("POST /openstack/latest/password HTTP/1.1", "Content-Length: 0"),
    request("PUT /latest/api/token HTTP/1.1"),
    request("GET /a?b HTTP/1.1"),
    request("GET /%61 HTTP/1.1"),
    request("GET //a HTTP/1.1"),
    request("GET http://a/b HTTP/1.1"),
    request("GET / HTTP/1.1"),
    request("GET /healthz HTTP/1.1"),
    request("GET /api/v1 HTTP/1.1"),
    request("GET /latest HTTP/3.7"),
    request("GET /latest HTTP/1.1", "Content-Length: 0"),
    request("GET /latest HTTP/1.1", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
    request("GET /latest HTTP/1.1", "Expect: 100-continue"),
    request("GET /latest HTTP/1.1", "X-AWS-EC2-Metadata-Token: a"),
    request("GET /latest HTTP/1.1", "Accept: a", "Accept: b"),
    request("GET /latest HTTP/1.1", *[f"A{number}: b" for number in range(25)]),
    request("GET /latest HTTP/1.1", f"A: {'b' * 8000}"),
    request(f"GET /{'a' * 1600} HTTP/1.1"),
    b"GET /latest HTTP/1.1\r\n\r\n",
    b"GET /latest HTTP/1.1\r\nHost: a b\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


def with_target(target: str) -> list[bytes]:
    """The requests that have another reason than their target, with that one."""
    told = [odd.replace(b"/latest ", target.encode() + b" ") for odd in ODD]
    return [odd for odd in told if odd not in ODD]


def test_what_is_not_plain_never_reaches_nova(
    known: Callable[..., Loopback], upstream: Upstream
) -> None:
    one = known()
    for odd in [*ODD, *with_target(USUAL_TARGETS[-1]), *with_target(USUAL_OPENSTACK[0])]:
        with one.connect() as guest:
            assert not one.ask(odd, guest).startswith(b"HTTP/1.1 200"), odd
        assert upstream.asked == [], odd
    assert one.ask().startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("target", [USUAL_TARGETS[-1], USUAL_OPENSTACK[0]])
def test_a_request_after_a_plain_one_is_judged_by_its_own_headers(
    known: Callable[..., Loopback], upstream: Upstream, target: str
) -> None:
    one = known()
    plain = request(f"GET {target} HTTP/1.1", "User-Agent: a", "Accept: b")
    with_nul = [
        plain[:place] + b"\0" + plain[place + 1 :]
        for place in range(plain.index(b"\r\n") + 2, len(plain) - 4)
    ]
    for odd in [*ODD, *with_target(target), *with_nul]:
        upstream.asked.clear()
        with one.connect() as guest:
            for _ in range(2):
                assert one.ask(plain, guest).startswith(b"HTTP/1.1 200"), odd
            assert not one.ask(odd, guest).startswith(b"HTTP/1.1 200"), odd
        assert len(upstream.asked) == 2, odd


@pytest.mark.parametrize("length", [1, REPEATED, 4000])
def test_headers_of_any_length_may_come_again(
    known: Callable[..., Loopback], upstream: Upstream, length: int
) -> None:
    one = known()
    asked = [
        request(f"GET {USUAL_TARGETS[-1]} HTTP/1.1", f"User-Agent: {letter * length}")
        for letter in "aab"
    ]
    with one.connect() as guest:
        for each in asked:
            assert one.ask(each, guest).startswith(b"HTTP/1.1 200")
    assert len(upstream.asked) == len(asked)


def largest(limits: HeadLimits, *, beyond: int) -> bytes:
    """A request whose line, headers and number of headers are just allowed, and more bytes."""
    line = f"GET /{'a' * (limits.request_line - len('GET / HTTP/1.1'))} HTTP/1.1"
    short = [f"A{number}: b" for number in range(limits.lines - 2)]
    without = len(request(line, *short, "B: ")) - len(f"{line}\r\n\r\n")
    return request(line, *short, f"B: {'b' * (limits.header - without + beyond)}")


@pytest.mark.parametrize("limits", [HeadLimits(), HeadLimits(request_line=256, header=1024)])
def test_the_daemon_gets_all_that_it_allows_and_a_little_more(
    known: Callable[..., Loopback], limits: HeadLimits
) -> None:
    one = known(limits=Limits(head=limits))
    whole = largest(limits, beyond=0)
    assert len(whole) == limits.request_line + limits.header + len("\r\n\r\n")
    assert whole.count(b": ") == limits.lines
    for beyond in (0, 1, BEYOND):
        # Here no daemon is there to answer.
        assert one.ask(largest(limits, beyond=beyond)) == b"", beyond
    assert one.ask(largest(limits, beyond=9000)).startswith(b"HTTP/1.1 400 ")


def test_the_page_says_how_much_more_the_daemon_gets() -> None:
    page = (ROOT / "doc/source/haproxy.rst").read_text(encoding="utf-8")
    assert f"larger by more than {BEYOND} bytes" in " ".join(page.split())


def test_what_is_usual_is_plain_by_the_other_rules_too(
    known: Callable[..., Loopback], upstream: Upstream
) -> None:
    """A usual target with an unusual header, and usual headers with an unusual target."""
    one = known()
    asked = [request(f"GET {target} HTTP/1.1", "A: b") for target in TARGETS]
    for names in USUAL_NAMES:
        values = {"host": "169.254.169.254", "connection": "keep-alive"}
        lines = [f"{name}: {values.get(name, 'a')}" for name in names.split(",")]
        asked.append("\r\n".join(["GET /a HTTP/1.1", *lines, "", ""]).encode())
    for each in asked:
        assert one.ask(each).startswith(b"HTTP/1.1 200"), each
    assert len(upstream.asked) == len(asked)


def test_a_forwarded_request_is_plain_only_where_the_operator_lets_it_pass(
    known: Callable[..., Loopback], upstream: Upstream
) -> None:
    strict, usual = known(refuse_forwarded=True), known()
    for header in ("X-Forwarded-For: a", "x_forwarded_for: a", "Via: a", "FORWARDED: a"):
        forwarded = request("GET /a HTTP/1.1", "A: b", header)
        assert strict.ask(forwarded) == b""
        assert upstream.asked == []
        assert usual.ask(forwarded).startswith(b"HTTP/1.1 200")
        upstream.asked.clear()


NETWORK_DATA = "/openstack/2018-08-27/network_data.json"


def test_the_daemon_is_asked_for_the_network_of_vms_if_it_completes_it(
    known: Callable[..., Loopback], upstream: Upstream
) -> None:
    completing, usual = known(network_data_subports=True), known()
    for method, path in itertools.product(("GET", "HEAD"), (NETWORK_DATA, USUAL_NETWORK_DATA)):
        guest = completing.connect()
        before = completing.ask(request(f"GET {USUAL_OPENSTACK[0]} HTTP/1.1"), guest)
        assert before.startswith(b"HTTP/1.1 200")
        # Here no daemon is there to be asked.
        assert completing.ask(request(f"{method} {path} HTTP/1.1")) == b""
        assert completing.ask(request(f"{method} {path} HTTP/1.1"), guest) == b""
    assert [asked.line for asked in upstream.asked] == [f"GET {USUAL_OPENSTACK[0]} HTTP/1.1"] * 4
    upstream.asked.clear()
    for other in ("meta_data.json", "Network_data.json", "network_data.json/", "network_data.jso"):
        path = NETWORK_DATA.replace("network_data.json", other)
        assert completing.ask(request(f"GET {path} HTTP/1.1")).startswith(b"HTTP/1.1 200"), path
    path = NETWORK_DATA.replace("openstack", "OpenStack")
    assert completing.ask(request(f"GET {path} HTTP/1.1")).startswith(b"HTTP/1.1 200")
    assert usual.ask(request(f"GET {NETWORK_DATA} HTTP/1.1")).startswith(b"HTTP/1.1 200")


def test_a_connection_is_one_guests_for_as_long_as_it_lives(
    known: Callable[..., Loopback], upstream: Upstream
) -> None:
    one = known()
    guest = one.connect()
    assert one.ask(guest=guest).startswith(b"HTTP/1.1 200")
    one.put(value(incarnation=2))
    one.ask(guest=guest)
    assert len(upstream.asked) == 1
    assert one.ask().startswith(b"HTTP/1.1 200")
    assert len(upstream.asked) == 2


@pytest.mark.parametrize(("timeout", "ends"), [(0, True), (15, False)])
def test_a_connection_stays_open_unless_keepalive_is_off(
    known: Callable[..., Loopback], timeout: float, ends: bool
) -> None:
    one = known(limits=Limits(keepalive_timeout=timeout))
    guest = one.connect()
    first = one.ask(guest=guest)
    assert (b"connection: close" in first) == ends
    assert one.ask(guest=guest).startswith(b"HTTP/1.1 200") != ends


LATEST, DOCUMENT = "GET /latest HTTP/1.1", "GET /openstack/latest/user_data HTTP/1.1"


@pytest.mark.parametrize(
    ("answer", "line", "status"),
    [
        ("auto", LATEST, b"503"),
        ("auto", DOCUMENT, b""),
        ("503", LATEST, b"503"),
        ("503", DOCUMENT, b"503"),
        ("close", LATEST, b""),
        ("close", DOCUMENT, b""),
    ],
)
def test_a_nova_that_hangs_is_answered_for_as_timeout_answer_says(
    known: Callable[..., Loopback], upstream: Upstream, answer: str, line: str, status: bytes
) -> None:
    upstream.script = lambda _asked: eventlet.Event().wait()
    one = known(timeout_answer=answer, hold_timeout=0.1)
    said = one.ask(request(line))
    assert said.split(b" ")[1:2] == ([status] if status else [])
    until(lambda: one.lines, "the line about it")
    token, code, state, _backend, path = one.lines[0].split(" ")
    assert (token, code, path) == ("13.0.1.0.1", "504", line.split(" ")[1])
    assert state.startswith("s")


def test_lines_are_written_about_failed_requests_alone_and_not_too_many(
    known: Callable[..., Loopback], upstream: Upstream
) -> None:
    answers = itertools.chain([200, 404], itertools.repeat(403))

    def refuse(_asked: Asked) -> bytes:
        return f"HTTP/1.1 {next(answers)} A\r\nContent-Length: 0\r\n\r\n".encode()

    upstream.script = refuse
    one = known()
    guest = one.connect()
    for _ in range(40):
        assert one.ask(guest=guest)
    until(lambda: len(one.lines) > 10, "lines")
    assert one.lines[0].startswith("13.0.1.0.1 404 ---- nova /latest/meta-data")
    assert len(one.lines) < 30


def test_a_changed_guest_gets_no_answer_and_a_line_says_so(
    known: Callable[..., Loopback], upstream: Upstream
) -> None:
    one = known()

    def change(_asked: Asked) -> bytes:
        one.put(None)
        return b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret"

    upstream.script = change
    assert one.ask() == b""
    until(lambda: one.lines, "the line about it")
    assert one.lines[0].startswith("13.0.1.0.1 500 P")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"G(T / HTTP/1.1\r\n\r\n", "400"),
        (request("POST /a HTTP/1.1", "Transfer-Encoding: gzip, chunked"), "422"),
        (request("GET /latest HTTP/1.1", "A: b")[:-2], "408"),
    ],
)
def test_a_line_is_written_about_a_request_that_haproxy_does_not_understand(
    known: Callable[..., Loopback], upstream: Upstream, sent: bytes, status: str
) -> None:
    # The limit itself is to be met by the request alone that does not end.
    one = known(limits=Limits(header_timeout=0.3 if status == "408" else 30))
    assert one.ask(sent).startswith(f"HTTP/1.1 {status} ".encode())
    until(lambda: one.lines, "the line about it")
    token, said, _state, _backend, path = one.lines[0].split(" ")
    assert (token, said, path) == ("13.0.1.0.1", status, "<BADREQ>")
    assert upstream.asked == []


def test_a_connection_that_sends_nothing_ends_without_an_answer(
    known: Callable[..., Loopback],
) -> None:
    one = known(limits=Limits(header_timeout=0.1))
    assert one.connect().recv(100) == b""


def test_headers_of_one_hop_do_not_reach_the_guest(
    known: Callable[..., Loopback], upstream: Upstream
) -> None:
    upstream.script = lambda _asked: (
        b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5\r\nProxy-Connection: a\r\nTrailer: a\r\n"
        b"Server: a\r\nX-A: 1\r\nContent-Length: 0\r\n\r\n"
    )
    head = known().ask().lower()
    assert head.startswith(b"http/1.1 200 ok\r\nx-a: 1\r\ncontent-length: 0\r\n")
    assert len(head.splitlines()) == 4


@pytest.mark.parametrize(("length", "status"), [(16 << 20, b"200"), ((16 << 20) + 1, b"503")])
def test_an_answer_that_is_too_large_is_not_one(
    known: Callable[..., Loopback], upstream: Upstream, length: int, status: bytes
) -> None:
    upstream.script = lambda _asked: b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length
    assert known().ask().split(b" ")[1] == status


def test_another_host_is_asked_where_one_does_not_speak_http(
    loopback: Callable[..., Loopback], upstream: Upstream, upstreams: Callable[..., Upstream]
) -> None:
    upstream.script = lambda _asked: b"SSH-2.0-a\r\n"
    other = upstreams()
    one = loopback(server(upstream), server(other), several=True)
    one.put(value())
    # No host is asked before its first check.
    assert one.ask().startswith(b"HTTP/1.1 503")
    one.checked()
    assert one.ask().startswith(b"HTTP/1.1 200 OK")
    assert (len(upstream.asked), len(other.asked)) == (1, 1)


# While the number of a port is in doubt


@pytest.fixture
def doubted(upstream: Upstream) -> Callable[[Loopback], Any]:
    """Asks, and puts the guest in doubt while Nova has its request; returns the pending answer."""

    def ask(one: Loopback) -> Any:
        def doubt(_asked: Asked) -> bytes:
            one.put(IN_DOUBT)
            return OK

        upstream.script = doubt
        pending = eventlet.spawn(one.ask)
        until(lambda: upstream.asked, "the request")
        eventlet.sleep(0.1)
        assert not pending.dead
        return pending

    return ask


def test_an_answer_waits_while_its_guest_is_in_doubt(
    known: Callable[..., Loopback], doubted: Callable[[Loopback], Any]
) -> None:
    one = known()
    pending = doubted(one)
    one.put(value())
    assert pending.wait().startswith(b"HTTP/1.1 200 OK")
    assert one.lines == []


@pytest.mark.parametrize("entry", [value(incarnation=2), value(epoch=2), None])
def test_an_answer_does_not_leave_after_a_doubt_that_another_guest_ends(
    known: Callable[..., Loopback], doubted: Callable[[Loopback], Any], entry: str | None
) -> None:
    one = known()
    pending = doubted(one)
    one.put(entry)
    assert pending.wait() == b""
    until(lambda: one.lines, "the line about it")
    assert one.lines[0].startswith("13.0.1.0.1 500 P")


def test_an_answer_does_not_leave_while_its_guest_is_in_doubt(
    known: Callable[..., Loopback], doubted: Callable[[Loopback], Any]
) -> None:
    assert doubted(known(hold_timeout=0.5)).wait() == b""


def test_an_answer_does_not_wait_where_haproxy_has_no_lua(
    known: Callable[..., Loopback], upstream: Upstream
) -> None:
    one = known(program=replace(PROGRAM, lua=False))

    def doubt(_asked: Asked) -> bytes:
        one.put(IN_DOUBT)
        return OK

    upstream.script = doubt
    assert one.ask() == b""


def test_requests_of_a_guest_in_doubt_are_the_daemons(
    known: Callable[..., Loopback], upstream: Upstream
) -> None:
    one = known()
    kept = one.connect()
    assert one.ask(guest=kept).startswith(b"HTTP/1.1 200")
    one.put(IN_DOUBT)
    new = one.connect()
    # haproxy accepts connections in their order, and both before the next change of its map.
    assert one.ask(guest=kept) == b""
    one.put(value())
    assert one.ask(guest=new) == b"", "the connection began in doubt"
    assert len(upstream.asked) == 1
    assert one.ask().startswith(b"HTTP/1.1 200")


# Several hosts


def test_a_host_that_does_not_answer_in_time_rests(
    loopback: Callable[..., Loopback], upstreams: Callable[..., Upstream]
) -> None:
    hosts = [upstreams(hang), upstreams(hang), upstreams()]
    one = loopback(*map(server, hosts), several=True, hold_timeout=0.6).checked()
    one.put(value())
    for _ in range(3):
        assert one.ask().startswith(b"HTTP/1.1 200")
    assert [len(host.asked) for host in hosts] == [1, 1, 3]


def test_a_slow_host_that_answers_in_time_does_not_rest(
    loopback: Callable[..., Loopback], upstreams: Callable[..., Upstream]
) -> None:
    def slow(_asked: Asked) -> bytes:
        eventlet.sleep(0.2)
        return OK

    hosts = [upstreams(slow), upstreams()]
    one = loopback(*map(server, hosts), several=True, hold_timeout=8.0).checked()
    one.put(value())
    for _ in range(2):
        assert one.ask().startswith(b"HTTP/1.1 200")
    assert [len(host.asked) for host in hosts] == [2, 0]


def test_no_host_is_tried_for_ever_if_none_answers_in_time(
    loopback: Callable[..., Loopback], upstreams: Callable[..., Upstream]
) -> None:
    hosts = [upstreams(hang), upstreams(hang)]
    one = loopback(*map(server, hosts), several=True, hold_timeout=0.2).checked()
    one.put(value())
    assert one.ask().startswith(b"HTTP/1.1 503")
    assert sum(len(host.asked) for host in hosts) == 3


def test_each_host_gets_its_own_host_header(
    loopback: Callable[..., Loopback], upstreams: Callable[..., Upstream]
) -> None:
    first, second = upstreams(), upstreams()
    one = loopback(server(first), server(second), several=True).checked()
    one.put(value())
    assert one.ask().startswith(b"HTTP/1.1 200")
    first.stop()
    assert one.ask().startswith(b"HTTP/1.1 200")
    for host in (first, second):
        (asked,) = host.asked
        assert asked.header("Host") == [host.host.authority]
        assert asked.header("X-Instance-ID") == ["instance"]
