"""Nova does not come back in time: each path ends as cloud-init can bear it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import Guest
from tests.harness.nova import RecordingNova
from tests.harness.poll import wait_for
from tests.host.e2e import shared
from tests.host.e2e.support import NOVA_OPTIONS, asks_own

HOLD_TIMEOUT = 1.0
EMPTY_REPLY = 52
"""curl's exit status for a connection that was closed without an answer."""
RETRIED = [
    "/openstack/latest/meta_data.json",
    "/openstack/2018-08-27/user_data",
    "/openstack/2018-08-27",
    "//openstack//latest/vendor_data.json",
]
BEARABLE = [
    "/",
    "/openstack",
    "/openstack/",
    "/latest/meta-data/",
    "/2009-04-04/meta-data/instance-id",
    "/2009-04-04/user-data",
]


host, nova, nova_guest = shared.host, shared.nova, shared.nova_guest
agent = shared.nova_agent_with(
    {**NOVA_OPTIONS, "df_metadata": {"backend": "nova", "hold_timeout": HOLD_TIMEOUT}}
)


@pytest.fixture
def guest(nova_guest: Guest) -> Guest:
    asks_own(nova_guest)
    return nova_guest


def reload_with(agent: Agent, timeout_answer: str) -> None:
    agent.configure({"df_metadata": {"timeout_answer": timeout_answer}})
    before = agent.log().count("Reloaded")
    agent.signal(signal.SIGHUP)
    wait_for(lambda: agent.log().count("Reloaded") > before, "the reload")


@pytest.fixture
def answers_auto(agent: Agent) -> Iterator[Agent]:
    yield agent
    reload_with(agent, "auto")


def test_503_where_cloud_init_can_bear_it_and_no_answer_where_it_asks_again(
    nova: RecordingNova, guest: Guest
) -> None:
    nova.away()
    for path in BEARABLE:
        reply = guest.curl(path)
        assert (reply.status, reply.exit_code) == (503, 0), path
    for path in RETRIED:
        reply = guest.curl(path)
        assert (reply.status, reply.body, reply.exit_code) == (0, b"", EMPTY_REPLY), path
    nova.mend()
    for closes in (False, True):
        nova.fault(held=not closes, close=closes)
        assert guest.curl(BEARABLE[0]).status == 503, closes
        assert guest.curl(RETRIED[0]).exit_code == EMPTY_REPLY, closes
        nova.mend()
    asks_own(guest)


def test_timeout_answer_can_be_the_same_for_all_paths(
    answers_auto: Agent, nova: RecordingNova, guest: Guest
) -> None:
    nova.away()
    for timeout_answer, expected in (("503", (503, 0)), ("close", (0, EMPTY_REPLY))):
        reload_with(answers_auto, timeout_answer)
        for path in ("/openstack", "/openstack/latest/meta_data.json", "/latest/meta-data/"):
            reply = guest.curl(path)
            assert (reply.status, reply.exit_code) == expected, path


def test_a_password_that_was_sent_and_not_answered_is_504_and_sent_once(
    nova: RecordingNova, guest: Guest
) -> None:
    nova.clear()
    nova.fault("password", held=True)
    assert guest.curl("/openstack/2013-04-04/password", data=b"once").status == 504
    assert [request.method for request in nova.requests()] == ["POST"]


def test_an_instance_whose_project_is_not_known_is_not_asked_for(
    agent: Agent, nova: RecordingNova, make_guest: MakeGuest
) -> None:
    nova.mend()
    guest = make_guest("poor")
    nova.clear()
    assert guest.curl("/latest/meta-data/").status == 503
    assert guest.curl("/openstack/latest/meta_data.json").exit_code == EMPTY_REPLY
    assert nova.requests() == []
    assert "the project of the instance is not known" in agent.log()
