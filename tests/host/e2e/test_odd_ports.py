"""One odd port stops nobody else: it is shown, counted, and served again once it is right."""

from __future__ import annotations

import pytest

from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Ids, uuid_of
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import asks_own, put


def ids(**extra: str) -> Ids:
    """A guest's, with more of its own."""
    return Ids(iface_id=uuid_of("odd port"), vm_uuid=uuid_of("odd instance"), extra=extra)


def test_a_port_without_a_number_is_shown_and_costs_nobody(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent = make_agent()
    guest = make_guest("fine")
    put(agent, guest)
    # No such device: Open vSwitch gives it -1. And one that has no number at all.
    name = uuid_of("nowhere")
    host.vsctl(
        *("add-port", "br-int", "nowhere", "--", "set", "Interface", "nowhere"),
        f"external_ids:iface-id={name}",
        f"external_ids:vm-uuid={name}",
        wait=False,
    )
    wait_for(lambda: "-1" in host.vsctl("get", "Interface", "nowhere", "ofport"), "its -1")
    asks_own(guest)
    rows = {row["port"]: row for row in agent.admin("/ports").json()}
    assert rows["nowhere"]["state"] == "no ofport"
    assert rows[guest.port]["state"] == "served"
    assert agent.metric("dfmeta_ports", state="no ofport") == 1
    assert agent.metric("dfmeta_ports", state="served") == 1


@pytest.mark.parametrize("instance", ["not-a-uuid", "{braces", "a b", "1" * 400])
def test_an_instance_that_is_none_is_shown_and_costs_nobody(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest, instance: str
) -> None:
    agent = make_agent()
    fine = make_guest("fine")
    put(agent, fine)
    odd = make_guest("odd", ids=ids())
    put(agent, odd)
    asks_own(odd)
    right = odd.instance_id
    odd.set_external_ids(vm_uuid=instance)
    wait_for(lambda: agent.metric("dfmeta_ports", state="broken") == 1, "it to be noticed")
    asks_own(fine)
    assert odd.curl("/", timeout=1).status == 0
    (row,) = [row for row in agent.admin("/ports").json() if row["port"] == odd.port]
    assert row["state"] == "broken"
    assert "is not a UUID" in row["fault"]
    odd.set_external_ids(vm_uuid=right)
    wait_for(lambda: agent.metric("dfmeta_ports", state="served") == 2, "it to be served")
    asks_own(odd)


@pytest.mark.parametrize("mac", ["", "nonsense", "ff:ff:ff:ff:ff:ff", "80:00:02:08:fe:80:00:01"])
def test_an_odd_attached_mac_keeps_nobody_from_being_served(
    make_agent: MakeAgent, make_guest: MakeGuest, mac: str
) -> None:
    agent = make_agent()
    odd = make_guest("odd", ids=ids(**{"attached-mac": mac} if mac else {}))
    put(agent, odd)
    asks_own(odd)
