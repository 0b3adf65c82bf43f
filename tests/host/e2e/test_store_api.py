"""Records that are pushed, restored or looked up should be what their guests get."""

import json
from typing import Any

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest
from tests.host.e2e.support import META_DATA


def push(agent: Agent, kind: str, guest: Guest, **members: Any) -> None:
    body = json.dumps({"id": guest.instance_id} | members).encode()
    answer = agent.admin(f"/api/v1/device-{kind}", method="POST", body=body)
    assert (answer.status, answer.body) == (200, b"")


def test_guest_gets_what_its_host_has(make_agent: MakeAgent, make_guest: MakeGuest) -> None:
    agent = make_agent()
    web, other = make_guest("web"), make_guest("other", address="10.0.0.6/24")
    # Its port decides, not the address that is pushed along: that one is the other guest's.
    push(agent, "metadata", web, metadata={"hostname": "web"}, ipAddresses=["10.0.0.6"])
    push(agent, "userdata", web, userdata="#!/bin/sh\n", ipAddresses=["10.0.0.6"])
    assert json.loads(web.curl(META_DATA).body)["hostname"] == "web"
    assert web.curl("/latest/user-data").body == b"#!/bin/sh\n"
    assert other.curl(META_DATA).status == 404
    path = f"/device-metadata/{web.instance_id}"
    assert agent.admin(path).json() == {"hostname": "web"}
    (row,) = agent.admin("/records").json()
    assert (row["id"], row["hostname"], row["userdata_bytes"]) == (web.instance_id, "web", 10)
    push(agent, "metadata", web, metadata={"hostname": "web2"})
    assert json.loads(web.curl(META_DATA).body)["hostname"] == "web2"
    assert agent.admin(path, method="DELETE").status == 200
    assert agent.admin(path).status == 404
    assert web.curl("/metadata").status == 404
    assert web.curl("/latest/user-data").status == 200
