"""haproxy should accept each configuration, and follow it for guests that ask."""

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import eventlet
import pytest

from dfmeta.http.http1 import HeadLimits
from dfmeta.http.limits import Limits
from dfmeta.proxy.engines.haproxy import process as process_module
from dfmeta.proxy.engines.haproxy.config import IN_DOUBT, waiting
from dfmeta.proxy.engines.haproxy.plan import Descriptors, HaproxyPlan, Program, Secrets
from dfmeta.proxy.engines.haproxy.process import Process
from tests.core.unit.haproxy.support import GET, PLANS, counted, value
from tests.core.unit.support import let_hub_run, until
from tests.core.unit.upstream import OK as ANSWER
from tests.core.unit.upstream import Asked, Upstream, hang
from tests.harness.agent import HAPROXY
from tests.harness.certificates import Authority
from tests.harness.netns import ROOT
from tests.host.haproxy.support import HERE, OK, PROGRAM, Lines, Loopback, server

Start = Callable[..., Loopback]
OPENSTACK = "/openstack/latest/meta_data.json"
EC2 = "/latest/meta-data/local-ipv4"
TARGETS = (
    "/openstack",
    "/latest/meta-data/",
    EC2,
    OPENSTACK,
    "/openstack/latest/network_data.json",
)
"""What cloud-init and CirrOS ask for."""
NAMES = ("host,accept", "host,user-agent,accept,connection", "accept-encoding,host,user-agent")
"""Headers of usual clients, in their order."""
BEYOND = 256
"""Bytes by which a request may be larger than the daemon allows, as the page says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Program):
    """haproxy that checks its configuration, and ends."""

    def command(self, *arguments: str, descriptors: int) -> list[str]:
        del descriptors
        return [self.binary, "-c", *arguments]


def test_plans_give_no_warning(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    pair = authority.issue("client")
    cert = pair.certificate.read_bytes() + pair.key.read_bytes()
    secrets_given = Secrets(ca=authority.certificate.read_bytes(), cert=cert)
    checking = Check(binary=str(HAPROXY), user="")
    listener = eventlet.listen((HERE, 0))

    def accepted(
        plan: HaproxyPlan, secrets: Secrets = secrets_given, program: Program = checking
    ) -> bool:
        caplog.clear()
        whole = replace(plan, program=program, secrets=secrets)
        process = Process(whole, listeners=[listener], handover=0, counts=Lines())
        process.wait()
        let_hub_run()  # for the end of the lines
        process.close()
        return process.status == 0 and not caplog.records

    for name, plan in PLANS.items():
        assert accepted(plan), (name, caplog.text)
    assert accepted(PLANS["plain"], program=replace(checking, lua=False)), caplog.text
    assert accepted(PLANS["tls"], Secrets()), caplog.text
    assert not accepted(PLANS["tls"], Secrets(ca=b"none"))
    assert "config : " in caplog.text
    listener.close()


def request(line: str = "GET /latest HTTP/1.1", *headers: str) -> bytes:
    return "\r\n".join([line, "Host: 169.254.169.254", *headers, "", ""]).encode()


def test_nova_gets_the_maps_guest_and_no_forged_one(with_guest: Start, upstream: Upstream) -> None:
    answer = with_guest().ask(
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
    (nova_request,) = upstream.asked
    assert nova_request.line == "GET /openstack/latest/meta_data.json HTTP/1.1"
    assert sorted((name.lower(), text) for name, text in nova_request.headers) == [
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
    request("GET /names HTTP/1.1"),
    request("GET /openstack/../healthz HTTP/1.1"),
    request("GET /api/v1 HTTP/1.1"),
    request("GET /latest HTTP/3.7"),
    request("GET /latest HTTP/1.1", "Content-Length: 0"),
    request("GET /latest HTTP/1.1", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
    request("GET /latest HTTP/1.1", "Expect: 100-continue"),
    request("GET /latest HTTP/1.1", "X-AWS-EC2-Metadata-Token: a"),
    request("GET /latest HTTP/1.1", "Accept: a", "Accept: b"),
    request("GET /latest HTTP/1.1", *[f"A{number}: b" for number in range(32)]),
    request("GET /latest HTTP/1.1", f"A: {'b' * 8000}"),
    request(f"GET /{'a' * 1600} HTTP/1.1"),
    b"GET /latest HTTP/1.1\r\n\r\n",
    b"GET /latest HTTP/1.1\r\nHost: a b\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


def with_target(target: str) -> list[bytes]:
    """The requests that have another reason than their target, with that target."""
    changed = [odd.replace(b"/latest ", target.encode() + b" ") for odd in ODD]
    return [odd for odd in changed if odd not in ODD]


def test_other_requests_never_reach_nova(with_guest: Start, upstream: Upstream) -> None:
    haproxy = with_guest()
    for odd in [*ODD, *with_target(EC2), *with_target(OPENSTACK)]:
        with haproxy.connect() as guest:
            assert not haproxy.ask(odd, guest).startswith(OK), odd
        assert upstream.asked == [], odd
    assert haproxy.ask().startswith(OK)


def test_no_request_of_a_counted_guest_reaches_nova(with_guest: Start, upstream: Upstream) -> None:
    haproxy = with_guest()
    haproxy.put(counted())
    for target in ("/a", EC2, OPENSTACK):
        # Here no daemon is there to answer.
        assert haproxy.ask(request(f"GET {target} HTTP/1.1")) == b"", target
        assert upstream.asked == [], target


@pytest.mark.parametrize("target", [EC2, OPENSTACK])
def test_each_request_is_judged_apart(with_guest: Start, upstream: Upstream, target: str) -> None:
    haproxy = with_guest()
    plain = request(f"GET {target} HTTP/1.1", "User-Agent: a", "Accept: b")
    with_nul = [
        plain[:place] + b"\0" + plain[place + 1 :]
        for place in range(plain.index(b"\r\n") + 2, len(plain) - 4)
    ]
    for odd in [*ODD, *with_target(target), *with_nul]:
        upstream.asked.clear()
        with haproxy.connect() as guest:
            for _ in range(2):
                assert haproxy.ask(plain, guest).startswith(OK), odd
            assert not haproxy.ask(odd, guest).startswith(OK), odd
        assert len(upstream.asked) == 2, odd


def largest(limits: HeadLimits, *, beyond: int) -> bytes:
    """A request whose line, headers and number of headers are just allowed, and more bytes."""
    line = f"GET /{'a' * (limits.request_line - len('GET / HTTP/1.1'))} HTTP/1.1"
    short = [f"A{number}: b" for number in range(limits.lines - 2)]
    without = len(request(line, *short, "B: ")) - len(f"{line}\r\n\r\n")
    return request(line, *short, f"B: {'b' * (limits.header - without + beyond)}")


def test_daemon_gets_all_that_it_allows_and_a_little_more(with_guest: Start) -> None:
    page = (ROOT / "doc/source/haproxy.rst").read_text(encoding="utf-8")
    assert f"larger by more than {BEYOND} bytes" in " ".join(page.split())
    for limits in (HeadLimits(), HeadLimits(request_line=256, header=1024)):
        haproxy = with_guest(limits=Limits(head=limits))
        whole = largest(limits, beyond=0)
        assert len(whole) == limits.request_line + limits.header + len("\r\n\r\n")
        assert whole.count(b": ") == limits.lines
        for beyond in (0, 1, BEYOND):
            # Here no daemon is there to answer.
            assert haproxy.ask(largest(limits, beyond=beyond)) == b"", beyond
        assert haproxy.ask(largest(limits, beyond=9000)).startswith(b"HTTP/1.1 400 ")


def test_requests_of_usual_clients_are_plain(with_guest: Start, upstream: Upstream) -> None:
    haproxy = with_guest()
    responses = [request(f"GET {target} HTTP/1.1", "A: b") for target in TARGETS]
    for names in NAMES:
        values = {"host": "169.254.169.254", "connection": "keep-alive"}
        lines = [f"{name}: {values.get(name, 'a')}" for name in names.split(",")]
        responses.append("\r\n".join(["GET /a HTTP/1.1", *lines, "", ""]).encode())
    for response in responses:
        assert haproxy.ask(response).startswith(OK), response
    assert len(upstream.asked) == len(responses)


def test_forwarded_request_is_plain_where_allowed(with_guest: Start, upstream: Upstream) -> None:
    strict, usual = with_guest(refuse_forwarded=True), with_guest()
    for header in ("X-Forwarded-For: a", "x_forwarded_for: a", "Via: a", "FORWARDED: a"):
        forwarded = request("GET /a HTTP/1.1", "A: b", header)
        assert strict.ask(forwarded) == b""
        assert upstream.asked == []
        assert usual.ask(forwarded).startswith(OK)
        upstream.asked.clear()


NETWORK_DATA = "/openstack/2018-08-27/network_data.json"


def test_daemon_that_completes_networks_is_asked(with_guest: Start, upstream: Upstream) -> None:
    completing, usual = with_guest(network_data_subports=True), with_guest()
    paths = (NETWORK_DATA, TARGETS[-1], f"{NETWORK_DATA}/")
    for method, path in itertools.product(("GET", "HEAD"), paths):
        guest = completing.connect()
        assert completing.ask(request(f"GET {OPENSTACK} HTTP/1.1"), guest).startswith(OK)
        # Here no daemon is there to be asked.
        assert completing.ask(request(f"{method} {path} HTTP/1.1")) == b""
        assert completing.ask(request(f"{method} {path} HTTP/1.1"), guest) == b""
    assert [asked.line for asked in upstream.asked] == [f"GET {OPENSTACK} HTTP/1.1"] * 6
    for other in ("meta_data.json", "Network_data.json"):
        path = NETWORK_DATA.replace("network_data.json", other)
        assert completing.ask(request(f"GET {path} HTTP/1.1")).startswith(OK), path
    assert usual.ask(request(f"GET {NETWORK_DATA} HTTP/1.1")).startswith(OK)


def test_connection_is_one_guests_for_its_life(with_guest: Start, upstream: Upstream) -> None:
    haproxy = with_guest()
    guest = haproxy.connect()
    assert haproxy.ask(guest=guest).startswith(OK)
    haproxy.put(value(incarnation=2))
    haproxy.ask(guest=guest)
    assert len(upstream.asked) == 1
    assert haproxy.ask().startswith(OK)
    assert len(upstream.asked) == 2


def test_hanging_nova_gives_the_configured_answer(with_guest: Start, upstream: Upstream) -> None:
    upstream.script = hang
    # The limit itself is met by each request.
    for answer, *statuses in (
        ("auto", [b"503"], []),
        ("503", [b"503"], [b"503"]),
        ("close", [], []),
    ):
        for path, status in zip(("/latest", "/openstack/latest/user_data"), statuses, strict=True):
            haproxy = with_guest(timeout_answer=answer, hold_timeout=0.1)
            reply = haproxy.ask(request(f"GET {path} HTTP/1.1"))
            assert reply.split(b" ")[1:2] == status, (answer, path)
            token, code, state, _backend, asked, *_times = haproxy.line().split(" ")
            assert (token, code, state[0], asked) == ("13.0.1.0.1", "504", "s", path)


def test_failed_requests_alone_have_lines(with_guest: Start, upstream: Upstream) -> None:
    answers = iter([b"200", *[b"404"] * 39])
    upstream.script = lambda _request: b"HTTP/1.1 %s A\r\nContent-Length: 0\r\n\r\n" % next(answers)
    haproxy = with_guest()
    guest = haproxy.connect()
    for _ in range(40):
        assert haproxy.ask(guest=guest)
    until(lambda: len(haproxy.lines) > 10, "lines")
    assert haproxy.lines[0].startswith("13.0.1.0.1 404 ---- nova /latest/meta-data")
    assert len(haproxy.lines) < 30


def test_changed_guest_gets_no_answer_and_has_a_line(with_guest: Start, upstream: Upstream) -> None:
    haproxy = with_guest()

    def change(_request: Asked) -> bytes:
        haproxy.put(None)
        return b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret"

    upstream.script = change
    assert haproxy.ask() == b""
    assert haproxy.line().startswith("13.0.1.0.1 500 P")


def test_malformed_request_has_a_line(with_guest: Start, upstream: Upstream) -> None:
    for sent, status in (
        (b"G(T / HTTP/1.1\r\n\r\n", "400"),
        (request("POST /a HTTP/1.1", "Transfer-Encoding: gzip, chunked"), "422"),
        (request("GET /latest HTTP/1.1", "A: b")[:-2], "408"),
    ):
        # The limit itself is met by the request alone that does not end.
        haproxy = with_guest(limits=Limits(header_timeout=0.3 if status == "408" else 30))
        assert haproxy.ask(sent).startswith(f"HTTP/1.1 {status} ".encode())
        token, code, _state, _backend, path, *_times = haproxy.line().split(" ")
        assert (token, code, path) == ("13.0.1.0.1", status, "<BADREQ>")
    assert upstream.asked == []
    # The limit of a connection that sends nothing.
    assert with_guest(limits=Limits(header_timeout=0.1)).connect().recv(100) == b""


def test_headers_of_one_hop_do_not_reach_the_guest(with_guest: Start, upstream: Upstream) -> None:
    upstream.script = lambda _request: (
        b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5\r\nProxy-Connection: a\r\nTrailer: a\r\n"
        b"Server: a\r\nX-A: 1\r\nContent-Length: 0\r\n\r\n"
    )
    head = with_guest().ask().lower()
    assert head.startswith(b"http/1.1 200 ok\r\nx-a: 1\r\ncontent-length: 0\r\n")
    assert len(head.splitlines()) == 4


def test_answer_that_is_too_large_is_503(with_guest: Start, upstream: Upstream) -> None:
    for length, status in ((16 << 20, b"200"), ((16 << 20) + 1, b"503")):
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length
        upstream.script = lambda _request, answer=answer: answer
        assert with_guest().ask().split(b" ")[1] == status


@pytest.fixture
def doubted(upstream: Upstream) -> Callable[[Loopback], Any]:
    """Asks, and puts the guest in doubt while Nova has its request; returns the pending answer
    when haproxy has it."""

    def ask(haproxy: Loopback) -> Any:
        def doubt(_request: Asked) -> bytes:
            haproxy.put(IN_DOUBT)
            return ANSWER

        upstream.script = doubt
        pending = eventlet.spawn(haproxy.ask)

        def answered() -> bool:
            return any(row.get("hrsp_2xx") == "1" for row in haproxy.runtime.statistics())

        until(answered, "Nova's answer")
        return pending

    return ask


def test_answer_waits_in_doubt(with_guest: Start, doubted: Callable[[Loopback], Any]) -> None:
    haproxy = with_guest()
    pending = doubted(haproxy)
    haproxy.put(value())
    assert pending.wait().startswith(b"HTTP/1.1 200 OK")
    assert haproxy.lines == []


def test_answer_does_not_leave_after_a_doubt_that_another_guest_ends(
    with_guest: Start, doubted: Callable[[Loopback], Any]
) -> None:
    for entry in (value(incarnation=2), value(epoch=2), None):
        haproxy = with_guest()
        pending = doubted(haproxy)
        haproxy.put(entry)
        assert pending.wait() == b"", entry
        assert haproxy.line().startswith("13.0.1.0.1 500 P")


def test_answer_does_not_leave_while_its_guest_is_in_doubt(
    with_guest: Start, doubted: Callable[[Loopback], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doubted(with_guest(program=replace(PROGRAM, lua=False))).wait() == b"", (
        "it does not wait"
    )

    def briefly(plan: HaproxyPlan, given: Descriptors) -> str:
        return waiting(replace(plan, hold_timeout=0.1), given)

    monkeypatch.setattr(process_module, "waiting", briefly)
    assert doubted(with_guest()).wait() == b""


def test_requests_in_doubt_are_the_daemons(with_guest: Start, upstream: Upstream) -> None:
    haproxy = with_guest()
    kept = haproxy.connect()
    assert haproxy.ask(guest=kept).startswith(OK)
    haproxy.put(IN_DOUBT)
    new = haproxy.connect()
    # haproxy accepts connections in their order, and both before the next change of its map.
    assert haproxy.ask(guest=kept) == b""
    haproxy.put(value())
    assert haproxy.ask(guest=new) == b"", "the connection began in doubt"
    assert len(upstream.asked) == 1
    assert haproxy.ask().startswith(OK)


def test_hosts_without_an_answer_rest(loopback: Start, upstreams: Callable[..., Upstream]) -> None:
    hosts = [upstreams(lambda _request: b"SSH-2.0-a\r\n"), upstreams(hang), upstreams()]
    # Each host has one second; the first speaks no HTTP, and the last one answers at once.
    haproxy = loopback(*map(server, hosts), several=True, hold_timeout=2.0).checked()
    haproxy.put(value())
    for _ in range(3):
        assert haproxy.ask().startswith(OK)
    assert [len(host.asked) for host in hosts] == [1, 1, 3]


FEW_PLACES: dict[str, Any] = {
    "maxconn": 64,
    "limits": Limits(connections_per_port=4, waiting_per_port=4, header_timeout=600.0),
}
"""A port may have 8 connections, and a VM with all its containers 16."""


def hold(haproxy: Loopback, sources: list[str], count: int) -> list[Any]:
    """Open connections that send nothing or half of a head, until haproxy has seen all of them."""
    before, held = sum(haproxy.counts()), []
    for number, source in enumerate(sources * count):
        with suppress(ConnectionResetError, BrokenPipeError):
            held.append(haproxy.connect(source))
            held[-1].sendall(GET[: number % 2 * 9])
    until(lambda: sum(haproxy.counts()) == before + len(sources) * count, "all connections")
    return held


@pytest.mark.parametrize("whole", [True, False])
def test_vm_has_one_share_with_its_containers(with_guest: Start, whole: bool) -> None:
    haproxy = with_guest(**FEW_PLACES)
    sources = [f"127.0.0.{number}" for number in range(10, 13)]
    for ofport, source in enumerate(sources):
        entry = value(ofport=ofport, vm="a") if whole else counted(ofport, vm="a")
        haproxy.put(entry, source)
    _held = hold(haproxy, sources, 8)
    assert haproxy.counts() == (12, 12), "the rest is for its other containers"
    haproxy.put(counted(99, vm="a"), "127.0.0.99")
    _rest = hold(haproxy, ["127.0.0.99"], 8)
    assert haproxy.counts() == (16, 16)


def test_no_number_of_vms_takes_all_places(with_guest: Start) -> None:
    haproxy = with_guest(**FEW_PLACES)
    sources = [f"127.0.0.{number}" for number in range(10, 22)]
    for ofport, source in enumerate(sources):
        haproxy.put(value(ofport=ofport, vm=f"{ofport}"), source)
    _held = hold(haproxy, sources, 8)
    assert haproxy.counts() == (48, 48)
    hold(haproxy, ["127.0.0.99"], 4)
    assert haproxy.counts() == (48, 52), "a source without an entry has no share of the rest"
    assert haproxy.ask().startswith(OK)


def test_late_bytes_of_nova_reach_no_other_guest(with_guest: Start, upstream: Upstream) -> None:
    haproxy = with_guest()
    haproxy.put(value(ofport=14, vm="e"), "127.0.0.14")
    first: list[Any] = []

    def script(_request: Asked) -> bytes:
        if not first:
            first[:] = [
                connection for connection in upstream.connections if connection.fileno() >= 0
            ]
            return ANSWER
        for connection in first:
            with suppress(OSError):
                connection.sendall(ANSWER.replace(b"{}", b"[]"))
        return ANSWER

    upstream.script = script
    guest = haproxy.connect()
    assert haproxy.ask(guest=guest).endswith(b"{}")
    other = haproxy.connect("127.0.0.14")
    assert haproxy.ask(guest=other).endswith(b"{}")


def test_guests_use_up_no_descriptors(with_guest: Start, upstream: Upstream) -> None:
    limits = Limits(connections_per_port=4, waiting_per_port=4)
    haproxy = with_guest(maxconn=256, limits=limits, hold_timeout=600.0)
    guests = []
    for number in range(10, 34):
        source = f"127.0.0.{number}"
        haproxy.put(value(ofport=100 + number, vm=f"{number}"), source)
        guests += [haproxy.connect(source) for _ in range(8)]
    assert all(haproxy.ask(guest=guest).startswith(OK) for guest in guests)
    upstream.script = hang
    for number, guest in enumerate(guests, len(guests) + 1):
        # Each has an idle connection to Nova, and another one for this request.
        guest.sendall(request(f"GET {OPENSTACK} HTTP/1.1"))
        until(lambda number=number: len(upstream.asked) == number, "the request")
    upstream.script = lambda _request: ANSWER
    assert haproxy.ask().startswith(OK)
    assert haproxy.lines == []
