"""EC2's tokens, asked for with curl from a guest; and requests that a proxy has passed on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.agent import Agent, Options
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest, Reply
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.host.e2e.support import META_DATA, NOVA_OPTIONS, asks_own, project_ids, put, put_nova

TOKEN = "/latest/api/token"
HEADER = "X-aws-ec2-metadata-token"
TTL = "X-aws-ec2-metadata-token-ttl-seconds"
NAME = "/latest/meta-data/hostname"
EVERY_TREE = [NAME, META_DATA, "/openstack", "/", "/latest/meta-data/no-such-thing"]
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


@pytest.fixture
def changing(agent: Agent) -> Iterator[Guest]:
    """One that does not."""
    with Guest(agent.host, "changing", address="10.0.0.6/24") as one:
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


def test_a_token_is_issued_and_opens_its_guests_metadata(guest: Guest) -> None:
    token = issue(guest, 21600)
    assert show(guest, token).text == f"{guest.name}.example.org"
    assert show(guest, token, META_DATA).status == 200
    assert show(guest, token, "/latest/meta-data/no-such-thing").status == 404
    # Optional, unless it is said otherwise.
    asks_own(guest)


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


def test_a_token_is_not_the_next_instances_on_its_port(agent: Agent, changing: Guest) -> None:
    token = issue(changing)
    changing.del_port()
    changing.plug(vm_uuid="aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee")
    put(agent, changing, hostname="next.example.org")
    assert changing.curl(NAME).text == "next.example.org"
    assert_refused(show(changing, token))


def test_a_record_may_require_a_token_or_have_none(agent: Agent, changing: Guest) -> None:
    put(agent, changing, "--http-tokens", "required")
    for path in EVERY_TREE:
        assert_refused(changing.curl(path))
    token = issue(changing)
    for path in EVERY_TREE[:-1]:
        assert show(changing, token, path).status == 200
    put(agent, changing, "--http-tokens", "off")
    assert ask(changing, "60").status == 404
    assert changing.curl(TOKEN).status == 404
    assert show(changing, "no-token").status == 200
    put(agent, changing, "--http-tokens", "default")
    assert_refused(show(changing, "no-token"))


def test_tokens_are_the_daemons_own_business_where_nova_answers(
    make_agent: MakeAgent, make_guest: MakeGuest, nova: RecordingNova
) -> None:
    strict, loose = (make_guest(name, ids=project_ids(name)) for name in ("strict", "loose"))
    modes = f"{strict.instance_id.upper()}:required, {loose.instance_id}:off"
    make_agent({**NOVA_OPTIONS, "store": {"http_tokens_of": modes}})
    for guest in (strict, loose):
        put_nova(nova, guest)
    assert_refused(strict.curl(META_DATA))
    assert_refused(strict.curl("/"))
    token = issue(strict)
    assert nova.requests() == []
    assert show(strict, token, META_DATA).status == 200
    assert ask(loose, "60").status == 404
    assert show(loose, "no-token", META_DATA).status == 200
    assert [(r.method, r.path) for r in nova.requests()] == [("GET", META_DATA)] * 2
    for request in nova.requests():
        assert not any("aws" in key.lower() for key, _ in request.headers)
        assert not any(token in value for _, value in request.headers)


@pytest.mark.parametrize("backend", ["store", "nova"])
def test_a_forwarded_request_is_403_with_refuse_forwarded(
    make_agent: MakeAgent, make_guest: MakeGuest, nova: RecordingNova, backend: str
) -> None:
    options: Options = {
        **NOVA_OPTIONS,
        "df_metadata": {"backend": backend, "refuse_forwarded": True},
    }
    daemon = make_agent(options)
    guest = make_guest("one", ids=project_ids("one"))
    put(daemon, guest)
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
