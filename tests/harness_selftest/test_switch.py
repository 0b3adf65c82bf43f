"""The switch and the guests, without dfmeta."""

from __future__ import annotations

import pytest

from tests.harness.fixtures import MakeGuest
from tests.harness.guest import GATEWAY_MAC, METADATA_IP, Ids, Route
from tests.harness.netns import CommandError
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for


def test_guests_reach_each_other_over_normal(make_guest: MakeGuest) -> None:
    first = make_guest("first", address="10.0.0.5/24")
    second = make_guest("second", address="10.0.0.6/24")
    assert first.ping("10.0.0.6", count=3)
    assert second.ping("10.0.0.5")
    assert not first.ping("10.0.0.77", timeout=0.2)


def test_a_port_carries_the_ids_that_it_was_given(host: OpenvSwitch, make_guest: MakeGuest) -> None:
    full = make_guest(ids=Ids(iface_id="i", vm_uuid="v", project_id="p", extra={"vm-id": "x"}))
    empty = make_guest(ids=Ids(attached_mac=False))
    rows = {row["name"]: row for row in host.records("Interface", "name", "external_ids")}
    assert rows[full.port]["external_ids"] == {
        "iface-id": "i",
        "attached-mac": full.mac,
        "vm-uuid": "v",
        "project-id": "p",
        "vm-id": "x",
    }
    assert rows[empty.port]["external_ids"] == {}
    full.set_external_ids(vm_uuid="other", project_id="")
    ids = next(r for r in host.records("Interface") if r["name"] == full.port)["external_ids"]
    assert ids["vm-uuid"] == "other"
    assert "project-id" not in ids


def test_a_guest_may_send_whatever_it_likes(host: OpenvSwitch, make_guest: MakeGuest) -> None:
    guest = make_guest()
    count = "priority=9,dl_src=02:00:00:00:00:99,vlan_tci=0x1007/0x1fff,dl_type=0x1234"
    host.ofctl("add-flow", "br-int", f"{count},actions=drop")
    frame = bytes.fromhex("ffffffffffff 020000000099 8100 0007 1234") + b"anything"
    guest.send_frames(frame, frame)
    wait_for(lambda: "n_packets=2" in "".join(host.flows()), 3, "both frames to be counted")


def test_guests_may_have_the_same_addresses(make_guest: MakeGuest) -> None:
    twins = [make_guest(address="10.0.0.5/24", mac="fa:16:3e:00:aa:aa") for _ in range(2)]
    assert twins[0].ofport != twins[1].ofport
    assert twins[0].ip == twins[1].ip
    assert twins[0].mac == twins[1].mac


@pytest.mark.parametrize(
    ("route", "address", "destination"),
    [
        ("on-link", "10.0.0.5/24", None),
        ("on-link-host", "10.0.0.5/24", None),
        ("link-local", "169.254.7.7/16", None),
        ("gateway", "10.0.0.5/24", GATEWAY_MAC),
        ("host-route", "10.0.0.5/24", GATEWAY_MAC),
    ],
)
def test_each_kind_of_route_leads_onto_the_link(
    host: OpenvSwitch,
    make_guest: MakeGuest,
    route: Route,
    address: str,
    destination: str | None,
) -> None:
    guest = make_guest(address=address, route=route)
    if destination is None:
        expected = f"arp,arp_tpa={METADATA_IP},arp_spa={guest.ip}"
    else:
        expected = f"tcp,nw_src={guest.ip},nw_dst={METADATA_IP},dl_dst={destination}"
    host.ofctl("del-flows", "br-int")
    host.ofctl("add-flow", "br-int", f"{expected},actions=drop")
    assert guest.curl(timeout=0.3).status == 0
    wait_for(lambda: "n_packets=0" not in host.flows()[0], 3, "the guest's packet to be counted")


def test_a_changed_mac_and_a_second_address_work(host: OpenvSwitch, make_guest: MakeGuest) -> None:
    client = make_guest("client", address="10.0.0.5/24")
    server = make_guest("server", address="10.0.0.6/24")
    with RecordingNova(server.namespace, host="10.0.0.6") as nova:
        client.set_mac("fa:16:3e:11:11:11")
        client.add_address("10.0.0.55/24")
        assert client.curl("/", host="10.0.0.6:8775", source="10.0.0.55").status == 200
        client.set_address("10.0.0.66/24")
        assert client.curl("/", host="10.0.0.6:8775").status == 200
        addresses = [request.client[0] for request in nova.requests()]
    assert addresses == ["10.0.0.55", "10.0.0.66"]


def test_many_requests_have_a_connection_each(make_guest: MakeGuest) -> None:
    client = make_guest("client", address="10.0.0.5/24")
    server = make_guest("server", address="10.0.0.6/24")
    with RecordingNova(server.namespace, host="10.0.0.6") as nova:
        samples = client.http_many(50, 10, path="/", host="10.0.0.6:8775")
        assert [sample.status for sample in samples] == [200] * 50
        assert len({sample.port for sample in samples}) == 50
        assert nova.accepted() == 50
        assert {request.client[1] for request in nova.requests()} == {s.port for s in samples}
        nova.away()
        refused = client.http_many(2, host="10.0.0.6:8775")
    assert [sample.status for sample in refused] == [0, 0]
    assert all("refused" in sample.error for sample in refused)


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_vswitchd_comes_back_with_its_ports(
    host: OpenvSwitch, make_guest: MakeGuest, how: str
) -> None:
    first = make_guest("first", address="10.0.0.5/24")
    make_guest("second", address="10.0.0.6/24")
    if how == "restart":
        host.restart("ovs-vswitchd")
    else:
        host.kill("ovs-vswitchd")
        assert not host.running("ovs-vswitchd")
        host.start("ovs-vswitchd")
    assert first.ping("10.0.0.6", timeout=5)


def test_ovsdb_comes_back_with_its_content(host: OpenvSwitch, make_guest: MakeGuest) -> None:
    guest = make_guest()
    host.kill("ovsdb-server")
    with pytest.raises(CommandError):
        host.vsctl("show", wait=False)
    host.start("ovsdb-server")
    assert host.ports() == [guest.port]


def test_a_port_can_go_and_come_back_for_another_instance(
    host: OpenvSwitch, make_guest: MakeGuest
) -> None:
    guest = make_guest()
    number = guest.ofport
    guest.del_port()
    assert host.ports() == []
    guest.plug(vm_uuid="another", ofport_request=number)
    assert guest.ofport == number
    assert guest.instance_id == "another"


def test_a_reset_leaves_one_flow(shared_host: OpenvSwitch) -> None:
    namespace = shared_host.namespace
    before = namespace.ip("rule", "route show table all")
    shared_host.ofctl("add-flow", "br-int", "table=200,actions=drop")
    shared_host.ofctl("add-meter", "br-int", "meter=7,kbps,band=type=drop,rate=1")
    shared_host.vsctl(
        "add-port", "br-int", "extra", "--", "set", "Interface", "extra", "type=internal"
    )
    namespace.ip("rule add from 169.254.169.254 lookup 2 priority 100")
    namespace.ip("route add 192.0.2.0/24 dev lo table 2")
    shared_host.kill("ovs-vswitchd")
    shared_host.reset()
    assert [flow.partition("priority=")[2] for flow in shared_host.flows()] == ["0 actions=NORMAL"]
    assert shared_host.ports() == []
    assert "meter=" not in shared_host.ofctl("dump-meters", "br-int")
    assert namespace.ip("rule", "route show table all") == before


def test_a_diagnosis_of_a_dead_switch_is_still_one(host: OpenvSwitch) -> None:
    host.kill("ovs-vswitchd")
    host.kill("ovsdb-server")
    assert "dump-flows br-int" in host.diagnosis()


def test_packets_can_be_traced(host: OpenvSwitch, make_guest: MakeGuest) -> None:
    guest = make_guest()
    assert "NORMAL" in host.trace(f"in_port={guest.ofport},icmp")
