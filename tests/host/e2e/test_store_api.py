"""Records that are pushed, restored or looked up should be what their guests get."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest
from tests.harness.other_store import NOT_FOUND, Asked, OtherStore, reply
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import META_DATA, put


def push(agent: Agent, kind: str, guest: Guest, **members: Any) -> None:
    body = json.dumps({"id": guest.instance_id} | members).encode()
    answer = agent.admin(f"/api/v1/device-{kind}", method="POST", body=body)
    assert (answer.status, answer.body) == (200, b"")


def test_a_guest_gets_what_is_pushed_to_its_host(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent = make_agent()
    web, other = make_guest("web"), make_guest("other", address="10.0.0.6/24")
    # Its port decides, not the address that is pushed along: that one is the other guest's.
    push(agent, "metadata", web, metadata={"hostname": "web"}, ipAddresses=["10.0.0.6"])
    push(agent, "userdata", web, userdata="#!/bin/sh\n", ipAddresses=["10.0.0.6"])
    assert json.loads(web.curl(META_DATA).body)["hostname"] == "web"
    assert web.curl("/latest/user-data").body == b"#!/bin/sh\n"
    assert other.curl(META_DATA).status == 404
    one = f"/device-metadata/{web.instance_id}"
    assert agent.admin(one).json() == {"hostname": "web"}
    (row,) = agent.admin("/records").json()
    assert (row["id"], row["hostname"], row["userdata_bytes"]) == (web.instance_id, "web", 10)
    push(agent, "metadata", web, metadata={"hostname": "web2"})
    assert json.loads(web.curl(META_DATA).body)["hostname"] == "web2"
    assert agent.admin(one, method="DELETE").status == 200
    assert agent.admin(one).status == 404
    assert web.curl("/metadata").status == 404
    assert web.curl("/latest/user-data").status == 200


def test_an_agent_that_has_a_nova_has_no_store(nova_agent: Agent) -> None:
    answer = nova_agent.admin("/device-metadata", method="POST", body=b"{}")
    assert (answer.status, answer.json()) == (404, {"message": "invalid request - route not found"})


PATH = "/latest/meta-data/local-hostname"


def hostname(guest: Guest) -> str:
    reply = guest.curl(PATH)
    assert reply.status == 200, reply
    return reply.text


def test_a_back_up_and_a_restore_fail_no_request(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent, guest = make_agent(), make_guest("web")
    put(agent, guest, hostname="before")
    file = str(agent.folder / "back-up.db")
    assert agent.ctl("store", "backup", file).stdout == f"{file}: 1 record\n"
    put(agent, guest, hostname="after")
    batch = guest.start_many(1_000_000, path=PATH, interval=0.02)
    agent.ctl("store", "restore", file)
    wait_for(lambda: guest.curl(PATH).text == "before", "the store that was restored")
    samples = batch.finish()
    assert {(one.status, one.body) for one in samples} == {(200, b"after"), (200, b"before")}
    # A store that is lost comes back under the daemon, too.
    (agent.state_path / "store.db").write_bytes(b"damaged" * 4096)
    agent.ctl("store", "restore", file)
    wait_for(lambda: guest.curl(PATH).text == "before", "the store that was restored")


METADATA = (
    *("/", "/openstack", "/openstack/latest/meta_data.json", "/openstack/latest/vendor_data.json"),
    *("/openstack/latest/password", "/latest/meta-data/", "/latest/meta-data/hostname"),
    *("/nocloud/", "/nocloud/meta-data", "/metadata"),
)


def await_questions(store: OtherStore, count: int) -> None:
    wait_for(lambda: len(store.asked) >= count, "the question")


@pytest.mark.parametrize("workers", [0, 2])
def test_known_metadata_is_read_beside_an_upstream_that_is_stuck(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest, workers: int
) -> None:
    released = threading.Event()

    def answer(asked: Asked) -> bytes:
        if asked.target.startswith("/device-userdata"):
            released.wait()
            return NOT_FOUND
        instance = asked.target.rpartition("/")[2]
        return reply({"id": instance, "ipAddresses": [], "metadata": {"hostname": "fetched"}})

    with OtherStore(answer, namespace=host.namespace) as store:
        lookup = {"lookup_base_url": store.url, "lookup_timeout": 60, "lookup_retries": 0}
        agent = make_agent({"df_metadata": {"proxy_workers": workers}, "store": lookup})
        pushed, fetched = make_guest("pushed"), make_guest("fetched", address="10.0.0.6/24")
        agent.put(pushed.instance_id, "pushed")
        for number, guest in enumerate((pushed, fetched), 1):
            batch = guest.start_many(1, path="/latest/user-data")
            await_questions(store, number)
            for path in METADATA:
                assert guest.curl(path).status == 200, path
            assert json.loads(guest.curl("/metadata").body)["hostname"] == guest.name
            batch.stop()
        userdata = [f"/device-userdata/{one.instance_id}" for one in (pushed, fetched)]
        assert store.targets() == [*userdata, f"/device-metadata/{fetched.instance_id}"]
        released.set()
