"""Nova's answers pass as they are; what a guest sends reaches Nova as it should."""

import pytest

from tests.harness.agent import Agent
from tests.harness.engine import BEHAVIOUR
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import Guest
from tests.harness.nova import RecordingNova
from tests.host.e2e import shared
from tests.host.e2e.support import asks_own, project_ids, put_nova

PASSWORD = "/openstack/2013-04-04/password"


host, nova, agent = shared.host, shared.nova, shared.nova_agent_with()


@pytest.fixture
def guest(agent: Agent, nova: RecordingNova, make_guest: MakeGuest) -> Guest:
    nova.mend()
    guest = make_guest("one", ids=project_ids("one"))
    put_nova(nova, guest)
    nova.clear()
    return guest


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
