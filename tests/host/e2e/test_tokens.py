"""EC2's tokens, asked for with curl from a guest; and requests that a proxy has passed on."""

from collections.abc import Iterator

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest, Reply
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.host.e2e.support import META_DATA, NOVA_OPTIONS, asks_own, project_ids, put, put_nova

TOKEN = "/latest/api/token"
HEADER = "X-aws-ec2-metadata-token"
TTL = "X-aws-ec2-metadata-token-ttl-seconds"
NAME = "/latest/meta-data/hostname"
PASSED_ON = [
    ("X-Forwarded-For", "192.0.2.1"),
    ("x-forwarded-for", ""),
    ("X_Forwarded_For", "192.0.2.1"),
    ("x_forwarded-for", "192.0.2.1"),
    ("Forwarded", "for=192.0.2.1"),
    ("FORWARDED", "by=_a"),
    ("Via", "1.1 proxy"),
]


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    with OpenvSwitch() as switch, Agent(switch) as daemon:
        yield daemon.start()
        daemon.stop()


@pytest.fixture(scope="module")
def guest(agent: Agent) -> Iterator[Guest]:
    """A guest that stays as it is."""
    with Guest(agent.host, "one") as one:
        put(agent, one)
        yield one


def issue(guest: Guest, ttl: int = 60) -> str:
    """A token of the guest's."""
    reply = ask(guest, str(ttl))
    assert reply.status == 200, reply
    assert reply.header(TTL) == str(ttl)
    return reply.text


def ask(guest: Guest, ttl: str, *headers: tuple[str, str]) -> Reply:
    """Ask for one, as EC2's guide says."""
    return guest.curl(TOKEN, "-X", "PUT", headers=[(TTL, ttl), *headers])


def show(guest: Guest, token: str, path: str = NAME) -> Reply:
    """Ask for something with a token."""
    return guest.curl(path, headers=[(HEADER, token)])


def assert_refused(reply: Reply) -> None:
    """It is a 401 that names its way out (RFC 9110, 11.6.1)."""
    assert (reply.status, reply.header("WWW-Authenticate")) == (401, "Bearer")
    assert "example.org" not in reply.text


def test_a_proxy_gets_no_token_for_its_clients(guest: Guest) -> None:
    for name, value in PASSED_ON:
        # curl leaves a header out that has no value, unless it ends with a semicolon.
        header = f"{name}: {value}" if value else f"{name};"
        reply = guest.curl(TOKEN, "-X", "PUT", "-H", header, headers=[(TTL, "60")])
        assert (reply.status, reply.header(TTL)) == (403, ""), header
        # What needs no token is answered, by default.
        assert guest.curl(NAME, "-H", header).status == 200, header


def test_a_token_of_another_guest_is_401(agent: Agent, guest: Guest) -> None:
    """The other has the same addresses."""
    with Guest(agent.host, "twin", mac=guest.mac) as twin:
        put(agent, twin)
        token = issue(guest)
        assert_refused(show(twin, token))
        assert show(guest, token).status == 200
        assert show(twin, issue(twin)).text == "twin.example.org"


def test_a_forwarded_request_is_403_with_refuse_forwarded(
    make_agent: MakeAgent, make_guest: MakeGuest, nova: RecordingNova
) -> None:
    options = {**NOVA_OPTIONS, "df_metadata": {"backend": "nova", "refuse_forwarded": True}}
    daemon = make_agent(options)
    guest = make_guest("one", ids=project_ids("one"))
    put_nova(nova, guest)
    for name, value in PASSED_ON:
        header = f"{name}: {value}" if value else f"{name};"
        assert guest.curl(META_DATA, "-H", header).status == 403
        assert guest.curl(TOKEN, "-X", "PUT", "-H", header, headers=[(TTL, "60")]).status == 403
    assert nova.requests() == []
    asks_own(guest)
    assert show(guest, issue(guest), META_DATA).status == 200
    # It is no list of headers that only begin so.
    assert guest.curl(META_DATA, headers=[("X-Forwarded-Proto", "http")]).status == 200
    assert daemon.metric("dfmeta_refused_requests_total", reason="forwarded") == 2 * len(PASSED_ON)
