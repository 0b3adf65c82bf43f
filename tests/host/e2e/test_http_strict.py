"""What is no well-formed request or answer, or more than one, never passes for one."""

import re
from collections.abc import Iterator

import pytest

from tests.harness.agent import Agent
from tests.harness.engine import BEHAVIOUR
from tests.harness.guest import Guest
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.host.e2e import shared
from tests.host.e2e.support import (
    NOVA_OPTIONS,
    asks_own,
    open_connection,
    project_ids,
    put_nova,
    read_all,
)

HOST = b"Host: 169.254.169.254\r\n"
PASSWORD = b"/openstack/2013-04-04/password"
SMUGGLED = b"GET /openstack/smuggled HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
POST = b"POST " + PASSWORD + b" HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n"
OF_NOVA = {
    *("host", "accept-encoding", "user-agent", "connection", "content-type", "content-length"),
    *("x-instance-id", "x-tenant-id", "x-instance-id-signature", "x-forwarded-for"),
}
"""All headers of a request that Nova may see."""


def get(path: bytes = b"/openstack", *lines: bytes, version: bytes = b"1.1") -> bytes:
    header = b"".join(line + b"\r\n" for line in lines)
    return b"GET " + path + b" HTTP/" + version + b"\r\n" + HOST + header + b"\r\n"


host, nova = shared.host, shared.nova
# haproxy keeps a connection for so long after a refusal whose body has not come.
agent = shared.nova_agent_with(
    {**NOVA_OPTIONS, "guest_limits": {"body_timeout": 3, "send_timeout": 5}}
)
fresh_record = shared.fresh_record


@pytest.fixture(scope="module")
def guest(host: OpenvSwitch, agent: Agent, nova: RecordingNova) -> Iterator[Guest]:
    with Guest(host, "one", ids=project_ids("one")) as guest:
        put_nova(nova, guest)
        asks_own(guest)
        yield guest


def answers(guest: Guest, data: bytes) -> list[bytes]:
    """All answers on one connection that the service closes, after these bytes."""
    with open_connection(guest) as connection:
        connection.sendall(data)
        return re.split(rb"(?=HTTP/1\.1 [1-5])", read_all(connection))[1:]


def seen(nova: RecordingNova) -> list[tuple[str, str]]:
    """What Nova has been asked."""
    return [(request.method, request.path) for request in nova.requests()]


MALFORMED = {
    "HTTP/0.9": b"GET /openstack\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "absolute form": get(b"http://169.254.169.254/openstack"),
    "authority form": b"CONNECT 192.0.2.1:80 HTTP/1.1\r\n" + HOST + b"\r\n",
    "fragment": get(b"/openstack#latest"),
    "blank in the target": get(b"/openstack /latest"),
    "NUL in the target": get(b"/open\0stack"),
    "no Host": b"GET /openstack HTTP/1.1\r\n\r\n",
    "two Hosts": get(b"/openstack", b"Host: 192.0.2.1"),
    "blank before the colon": get(b"/openstack", b"X-Instance-ID : a"),
    "no colon": get(b"/openstack", b"X-Instance-ID"),
    "folded header": get(b"/openstack", b"X-A: a", b" X-Instance-ID: b"),
    "bare LF": get().replace(b"\r\n", b"\n"),
    "bare CR": get(b"/openstack", b"X-A: a\rX-Instance-ID: b"),
    "NUL in a header": get(b"/openstack", b"X-A: a\0"),
}
SMUGGLING = {
    "length and chunked": CHUNKED + b"Content-Length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 0\r\nContent-Length: 5\r\n\r\nhello",
    "a list of lengths": POST + b"Content-Length: 5, 5\r\n\r\nhello",
    "length with a sign": POST + b"Content-Length: +5\r\n\r\nhello",
    "hexadecimal length": POST + b"Content-Length: 0x5\r\n\r\nhello",
    "chunked in HTTP/1.0": CHUNKED.replace(b"1.1", b"1.0") + b"\r\n0\r\n\r\n",
    "another coding": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a coding that only looks so": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a chunk that is longer": CHUNKED + b"\r\n3\r\nabcde\r\n0\r\n\r\n",
    "a size with a sign": CHUNKED + b"\r\n+3\r\nabc\r\n0\r\n\r\n",
    "a size beyond 64 bits": CHUNKED + b"\r\n10000000000000003\r\nabc\r\n0\r\n\r\n",
    "chunks with bare LF": CHUNKED + b"\r\n3\nabc\n0\n\n",
    "a trailer with a length": CHUNKED + b"\r\n0\r\nContent-Length: 5\r\n\r\n",
}


def check(
    nova: RecordingNova, guest: Guest, name: str, got: list[bytes], *, before: int = 0
) -> None:
    """The last request got 400, or reached Nova as the guest's own, where the engine repairs it.

    :param before: GETs of "/openstack" that came before it.
    """
    asked = seen(nova)
    assert asked[:before] == [("GET", "/openstack")] * before, name
    count = BEHAVIOUR.repairs.get(name)
    if count is None:
        assert (len(got), len(asked)) == (before + 1, before), name
        assert got[before].startswith(BEHAVIOUR.refusals), name
        if got[before].startswith(b"HTTP/1.1 400"):
            assert b"\r\nconnection: close\r\n" in got[before].lower(), name
        return
    itself = ("POST", PASSWORD.decode()) if name in SMUGGLING else ("GET", "/openstack")
    assert asked[before:] == [itself, ("GET", "/openstack/smuggled")][:count], name
    for request in nova.requests():
        assert request.instance_id == guest.instance_id, name
        assert {key.lower() for key, _ in request.headers} <= OF_NOVA, name


def test_a_malformed_request_is_400_and_ends_the_connection(
    nova: RecordingNova, guest: Guest
) -> None:
    for name, data in MALFORMED.items():
        nova.clear()
        check(nova, guest, name, answers(guest, data + SMUGGLED))


def test_a_request_within_a_request_is_400(nova: RecordingNova, guest: Guest) -> None:
    for name, data in SMUGGLING.items():
        nova.clear()
        check(nova, guest, name, answers(guest, data + SMUGGLED))
        nova.clear()
        got = answers(guest, get() + data + SMUGGLED)
        assert got[0].startswith(b"HTTP/1.1 200"), name
        check(nova, guest, name, got, before=1)


AMBIGUOUS = {
    "length and chunked": b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxy",
    "too large": b"Content-Length: 99999999\r\n\r\n",
    "bare CR": b"X-A\r: 1\r\n\r\n",
}


def test_an_answer_that_is_ambiguous_or_too_large_reaches_no_guest(
    nova: RecordingNova, guest: Guest
) -> None:
    for name, answer in AMBIGUOUS.items():
        nova.clear()
        nova.fault(raw=b"HTTP/1.1 200 OK\r\n" + answer)
        assert guest.curl("/openstack").status == BEHAVIOUR.forwards.get(name, 503), name
        assert len(nova.requests()) == 1, name
        nova.mend()
        asks_own(guest)
