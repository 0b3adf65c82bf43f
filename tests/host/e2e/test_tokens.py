"""EC2's tokens, asked for with curl from a guest."""

from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest, Reply
from tests.host.e2e.support import put

TOKEN = "/latest/api/token"
HEADER = "X-aws-ec2-metadata-token"
TTL = "X-aws-ec2-metadata-token-ttl-seconds"
NAME = "/latest/meta-data/hostname"


def issue(guest: Guest) -> str:
    """A token of the guest's, asked for as EC2's guide says."""
    reply = guest.curl(TOKEN, "-X", "PUT", headers=[(TTL, "60")])
    assert (reply.status, reply.header(TTL)) == (200, "60"), reply
    return reply.text


def show(guest: Guest, token: str) -> Reply:
    """Ask for something with a token."""
    return guest.curl(NAME, headers=[(HEADER, token)])


def test_a_token_of_another_guest_is_401(make_agent: MakeAgent, make_guest: MakeGuest) -> None:
    """The other has the same addresses."""
    agent, guest = make_agent(), make_guest("one")
    twin = make_guest("twin", mac=guest.mac)
    for guest_ in (guest, twin):
        put(agent, guest_)
    token = issue(guest)
    refused = show(twin, token)
    # It names its way out (RFC 9110, 11.6.1).
    assert (refused.status, refused.header("WWW-Authenticate")) == (401, "Bearer")
    assert "example.org" not in refused.text
    assert show(guest, token).status == 200
    assert show(twin, issue(twin)).text == "twin.example.org"
