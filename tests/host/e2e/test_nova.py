"""Nova's answers pass as they are; what a guest sends reaches Nova as it should."""

from __future__ import annotations

import gzip

import pytest

from tests.harness.agent import Agent
from tests.harness.engine import BEHAVIOUR
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import Guest, Ids, uuid_of
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared
from tests.host.e2e.support import (
    META_DATA,
    Capture,
    asks_own,
    open_connection,
    project_ids,
    put_nova,
    read_all,
)

PASSWORD = "/openstack/2013-04-04/password"
USER_DATA = gzip.compress(bytes(range(256)) * 40, mtime=0) + b"\r\n\x00\xff\xfe"
NETWORK = {"links": [{"id": "tap"}], "networks": [], "services": []}


host, nova, agent = shared.host, shared.nova, shared.nova_agent_with()


@pytest.fixture
def guest(agent: Agent, nova: RecordingNova, make_guest: MakeGuest) -> Guest:
    nova.mend()
    one = make_guest("one", ids=project_ids("one"))
    put_nova(nova, one, user_data=USER_DATA, network_data=NETWORK)
    nova.clear()
    return one


def test_a_status_of_novas_passes(nova: RecordingNova, guest: Guest) -> None:
    for number, status in enumerate((400, 403, 404, 409, 410, 429, 500, 501, 502, 504), 1):
        nova.mend()
        nova.fault(status=status)
        reply = guest.curl(META_DATA)
        assert (reply.status, reply.body) == (status, b"fault\n")
        assert len(nova.requests()) == number


def test_binary_user_data_passes_byte_for_byte(nova: RecordingNova, guest: Guest) -> None:
    for path in ("/openstack/latest/user_data", "/latest/user-data"):
        reply = guest.curl(path, "--compressed")
        assert reply.status == 200
        assert reply.body == USER_DATA
        assert reply.header("Content-Length") == str(len(USER_DATA))
        assert reply.header("Content-Type") == "text/plain; charset=UTF-8"
        assert reply.header("Content-Encoding") == ""
        assert reply.header("Transfer-Encoding") == ""


ANSWERS: list[tuple[str, bytes, dict[str, list[str]], bytes]] = [
    (
        "GET",
        b"200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x00\xff",
        {"Content-Encoding": ["gzip"], "Content-Type": [], "Content-Length": ["4"]},
        b"\x1f\x8b\x00\xff",
    ),
    (
        "GET",
        b"200 OK\r\nX-A: 1, 2\r\nX-B: 3\r\nX-A: 4\r\nConnection: close, X-B\r\n\r\n\xffend",
        {"X-A": ["1, 2", "4"], "X-B": [], "Content-Length": ["4"]},
        b"\xffend",
    ),
    (
        "GET",
        b"200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n\x00a\r\n1\r\n\n\r\n0\r\n\r\n",
        {"Transfer-Encoding": [], "Content-Length": ["3"]},
        b"\x00a\n",
    ),
    ("GET", b"204 No Content\r\nX-A: 1\r\n\r\n", {"X-A": ["1"], "Content-Length": []}, b""),
    ("GET", b"304 Not Modified\r\nETag: a\r\n\r\n", {"Etag": ["a"]}, b""),
    ("HEAD", b"200 OK\r\n\r\n", {"Content-Length": [], "Content-Type": []}, b""),
    ("HEAD", b"200 OK\r\nContent-Length: 7\r\n\r\n", {"Content-Length": ["7"]}, b""),
    (
        "GET",
        b"403 Forbidden\r\nContent-Type: text/html\r\nContent-Length: 3\r\n\r\n<p>",
        {"Content-Type": ["text/html"]},
        b"<p>",
    ),
]
"""Method, Nova's answer, headers of the guest's answer, and its body."""


def test_an_answer_reaches_the_guest_as_it_is(nova: RecordingNova, guest: Guest) -> None:
    for method, answer, headers, body in ANSWERS:
        nova.mend()
        nova.clear()
        nova.fault(raw=b"HTTP/1.1 " + answer)
        with open_connection(guest) as connection:
            request = f"{method} {META_DATA} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            connection.sendall(request.encode())
            top, _end, rest = read_all(connection).partition(b"\r\n\r\n")
        status, *lines = top.decode("latin-1").split("\r\n")
        assert status.split()[1].encode() == answer[:3]
        pairs = [line.split(": ", 1) for line in lines]
        for wanted, values in headers.items():
            got = [value for name, value in pairs if name.title() == wanted]
            assert got == values, (answer, wanted)
        assert rest == body, answer
        assert len(nova.requests()) == 1, answer


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


@pytest.mark.parametrize("how", ["length", "chunked"])
def test_a_password_reaches_nova_with_its_length(
    nova: RecordingNova, make_guest: MakeGuest, agent: Agent, how: str
) -> None:
    guest = make_guest(ids=project_ids(f"password {how}"))
    put_nova(nova, guest)
    nova.clear()
    password = b"\x00\xffs3cret" * 100
    chunked = ["-H", "Transfer-Encoding: chunked"] if how == "chunked" else []
    reply = guest.curl(PASSWORD, *chunked, data=password)
    assert (reply.status, reply.body) == (200, b"")
    assert nova.password(guest.instance_id) == password
    (seen,) = nova.requests()
    assert (seen.method, seen.body) == ("POST", password)
    assert seen.header("Content-Length") == str(len(password))
    assert seen.header("Transfer-Encoding") is None
    assert guest.curl(PASSWORD, data=b"again").status == 409
    assert guest.curl(PASSWORD).body == password
    assert password.decode("latin-1") not in agent.log()


def test_other_methods_do_not_reach_nova(nova: RecordingNova, guest: Guest) -> None:
    for method in ("PUT", "POST", "DELETE", "OPTIONS"):
        reply = guest.curl(META_DATA, "-X", method)
        assert (reply.status, reply.header("Allow")) == (405, "GET, HEAD")
    assert guest.curl(PASSWORD, "-X", "PUT", data=b"x").header("Allow") == "GET, HEAD, POST"
    assert nova.requests() == []


def test_a_query_and_an_escaped_path_go_on_as_they_are(nova: RecordingNova, guest: Guest) -> None:
    for path in ("/latest/meta%2Ddata/?a=b&c=%2F", "/openstack/../openstack/", "/latest/"):
        guest.curl(path)
    assert [request.path for request in nova.requests()] == [
        "/latest/meta%2Ddata/?a=b&c=%2F",
        "/openstack/../openstack/",
        "/latest/",
    ]


def test_a_kept_connection_that_nova_has_closed_costs_no_request(
    nova: RecordingNova, guest: Guest
) -> None:
    for _ in range(3):
        asks_own(guest)
        nova.cut()
    asks_own(guest)


def test_an_answer_that_breaks_off_is_asked_for_again(nova: RecordingNova, guest: Guest) -> None:
    nova.fault("meta_data", close=True, times=2)
    asks_own(guest)


def test_a_request_is_held_while_nova_is_away_for_a_moment(
    host: OpenvSwitch, nova: RecordingNova, guest: Guest
) -> None:
    nova.away()
    with Capture(host.namespace, guest.port) as capture:
        batch = guest.start_many(4, 4)

        def all_sent() -> bool:
            return sum(one.is_syn_ack for one in capture.segments()) == 4

        wait_for(all_sent, "four connections to be open")
        nova.back()
        samples = batch.samples()
    assert [sample.status for sample in samples] == [200] * 4


def test_a_request_waits_until_the_project_of_its_instance_is_known(
    nova: RecordingNova, make_guest: MakeGuest, agent: Agent
) -> None:
    """Nova needs it; the writer of external_ids may write it later than vm-uuid."""
    ids = project_ids("late project")
    without = Ids(iface_id=ids.iface_id, vm_uuid=ids.vm_uuid)
    guest = make_guest("late", route="gateway", ids=without)
    wait_for(lambda: any(row["port"] == guest.port for row in agent.admin("/ports").json()), "port")
    before = agent.metric("dfmeta_packet_ins_total")
    batch = guest.start_many(1)
    wait_for(lambda: agent.metric("dfmeta_packet_ins_total") > before, "the guest to ask")
    guest.ids = ids
    put_nova(nova, guest)
    guest.set_external_ids(project_id=ids.project_id)
    (sample,) = batch.samples()
    assert (sample.status, sample.error) == (200, "")
    assert uuid_of("instance late project").encode() in sample.body
