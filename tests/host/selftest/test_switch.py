"""The switch and the guests, without dfmeta."""

from __future__ import annotations

import pytest

from tests.harness.fixtures import MakeGuest
from tests.harness.guest import GATEWAY_MAC, METADATA_IP, Route
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for


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
    wait_for(lambda: "n_packets=0" not in host.flows()[0], "the guest's packet to be counted")


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


def test_requests_that_are_ended_at_once_have_results(make_guest: MakeGuest) -> None:
    assert len(make_guest().start_many(2, host="127.0.0.1:1", interval=60).finish()) <= 1


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
