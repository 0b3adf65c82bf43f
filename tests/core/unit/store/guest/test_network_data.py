"""network_data.json should be made of a document's network, or not exist; cloud-init: see host."""

import copy
import json
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dfmeta.model import GuestRequest, Identity
from dfmeta.store.db.record import Record
from dfmeta.store.guest.backend import StoreBackend
from dfmeta.store.guest.links import version2 as version2_of
from dfmeta.store.guest.links import with_dhcp
from dfmeta.store.guest.netconfig import derived, read
from tests.core.unit.store.guest.crawling import NOW, asker
from tests.core.unit.store.guest.networks import (
    BONDED,
    EQUINIX,
    GOOD,
    ONE,
    PUBLIC,
    PUBLIC6,
    STATIC,
    TWO,
    Config,
    equinix,
    nic,
    physical,
    version1,
    version2,
)
from tests.core.unit.support import INSTANCE
from tests.harness.examples import examples


def test_the_file_has_the_form_of_nova() -> None:
    config = version2(
        lan=nic(
            set_name="lan0",
            addresses=["10.0.0.5/24"],
            gateway4="10.0.0.1",
            mtu=1400,
            nameservers={"addresses": ["10.0.0.2"]},
        )
    )
    dns = {"type": "dns", "address": "10.0.0.2"}
    assert derived(config) == {
        "links": [
            {"id": "lan", "name": "lan0", "type": "phy", "ethernet_mac_address": ONE, "mtu": 1400}
        ],
        "networks": [
            {
                "id": "network0",
                "network_id": "network0",
                "type": "ipv4",
                "link": "lan",
                "ip_address": "10.0.0.5",
                "netmask": "255.255.255.0",
                "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.0.0.1"}],
                "services": [dns],
            }
        ],
        "services": [dns],
    }


def test_each_form_of_a_network_has_its_links_and_networks() -> None:
    expected = {
        "both families": "phy: ipv4_dhcp a, ipv6_dhcp a",
        "static": "phy: ipv4 a, ipv4 a",
        "static IPv6": "phy phy phy phy: ipv6 a, ipv6 b, ipv6 c, ipv6_dhcp c, ipv6 d",
        "a link without an address": "phy phy: ipv4_dhcp a",
        "a bond with VLANs": "phy phy bond vlan vlan: ipv4_dhcp bond7, ipv4 v7, ipv4_dhcp v8",
        "version 1": "phy phy vlan: ipv4 lan0, ipv4_dhcp lan1",
        "version 1, other spellings": "phy phy phy phy: ipv4 lan0, ipv6 lan0, ipv4_dhcp lan0, "
        "ipv6_slaac lan1, ipv6_dhcpv6-stateful lan2, ipv6_dhcpv6-stateless lan3",
        "version 1, a bond": "phy phy bond: ipv4 bond0",
    }
    for name, config in GOOD.items():
        result = derived(config) or {"links": [], "networks": []}
        links = " ".join(link["type"] for link in result["links"])
        networks = ", ".join(
            f"{network['type']} {network['link']}" for network in result["networks"]
        )
        assert f"{links}: {networks}" == expected[name], name
    assert result["links"][0]["name"] == "a", "the name of an interface is kept"


def plain(data: Config | None, **same: object) -> list[Config]:
    """Return links, networks and name servers without names and order; networks with *same*."""
    assert data is not None
    links = [{**link, "name": ""} for link in data["links"]]
    networks = [{**network, "id": "", "network_id": "", **same} for network in data["networks"]]
    return sorted([*links, *networks, *data["services"]], key=str)


def test_a_network_is_the_same_in_the_form_of_each_dialect() -> None:
    two = {"addresses": ["10.0.0.5/24", "10.9.0.5/24"], "gateway4": "10.0.0.1"}
    gateways = version2(a=nic(**two, routes=[{"to": "0.0.0.0/0", "via": "10.9.0.1"}]))
    for config in (*GOOD.values(), *(config_ for config_, _means in EQUINIX), gateways):
        made = derived(config) or {}
        assert plain(derived({**made, "links": made["links"][::-1]})) == plain(made), config
        if "slaac" not in str(made):
            # Version 2 has no word for it.
            seed = derived(version2_of(read(config)))
            # A name server of the guest is one of its first link.
            assert plain(seed, services=[]) == plain(made, services=[]), config


def test_a_device_keeps_its_name_in_version_2_unless_another_one_is_on_it() -> None:
    named, alone, spelt = (
        version2_of(read(GOOD[name]))["ethernets"]
        for name in ("a bond with VLANs", "static", "version 1, other spellings")
    )
    names = [ethernet.get("set-name") for ethernet in (*named.values(), *alone.values())]
    assert names == ["a", "b", None]
    assert [ethernet.get("accept-ra") for ethernet in spelt.values()] == [None, True, True, True]


def without(config: Config, *path: Any) -> Config:
    changed = copy.deepcopy(config)
    *way, last = path
    inner: Any = changed
    for step in way:
        inner = inner[step]
    del inner[last]
    return changed


def routed(route: Config) -> Config:
    return version2(a=nic(addresses=["10.0.0.5/24"], routes=[route]))


NOVA: Config = derived(BONDED) or {}
UNFIT: list[Any] = [
    *(None, "x", [], {}, {"version": 3}, {"version": True}, version2(), version1(), {"version": 2}),
    {"version": 1, "config": {}},
    # It does not say which NIC it is.
    *(version2(eth0={"dhcp4": True}), version2(a={"match": {"name": "en*"}, "dhcp4": True})),
    *(version2(a=nic("fa:16", dhcp4=True)), version2(a=nic(dhcp4=True), b=nic(dhcp4=True))),
    version1({"type": "physical", "name": "eth0", "subnets": [{"type": "dhcp"}]}),
    # No link has an address.
    *(version2(a=nic()), version2(a=nic(dhcp4=False)), version1(physical({"type": "manual"}))),
    # What the file has no word for.
    *({**version2(a=nic(dhcp4=True)), "bridges": {}}, version2(a=nic(dhcp4=True, wakeonlan=True))),
    version2(
        a=nic(addresses=["10.0.0.5/24"], routes=[{"to": "default", "via": "10.0.0.1", "metric": 5}])
    ),
    version1(physical({"type": "dhcp", "control": "manual"})),
    *(
        version1(physical({**STATIC, "metric": 3})),
        version1(physical(STATIC, keep_configuration=True)),
    ),
    version1({"type": "bridge", "name": "br0", "bridge_interfaces": [], "subnets": [STATIC]}),
    # A gateway that no network leads to.
    *(
        version2(a=nic(dhcp4=True, gateway4="10.0.0.1")),
        version2(a=nic(addresses=["10.0.0.5/32"], gateway4="10.0.0.1")),
    ),
    routed({"to": "2001:db8::/32", "via": "10.0.0.1"}),
    version1(
        physical(STATIC), {"type": "route", "destination": "10.1.0.0/16", "gateway": "10.2.0.1"}
    ),
    version1(physical({**STATIC, "gateway": "fe80::1"})),
    # cloud-init would let it take no routers' advertisements, or let it take some.
    *(version2(a=nic(addresses=["2001:db8::5/64"])), version2(a=nic(dhcp4=True, accept_ra=False))),
    version2(a=nic(dhcp6=True, accept_ra=False)),
    version1(physical({"type": "static6", "address": "2001:db8::5/64"}, {"type": "ipv6_slaac"})),
    # What is no address, number or flag.
    *(version2(a=nic(addresses=["10.0.0.5"])), version2(a=nic(addresses="10.0.0.5/24"))),
    version2(a=nic(addresses=["fe80::1%eth0/64"])),
    *(version2(a=nic(dhcp4="yes")), version2(a=nic(dhcp4=True, mtu="1400"))),
    *(version2(a=nic(dhcp4=True, mtu=67)), version2(a=nic(dhcp4=True, mtu=True))),
    version2(a=nic(dhcp4=True, nameservers={"addresses": ["dns.example.org"]})),
    version2(a=nic(dhcp4=True, set_name="a b")),
    version1(physical({**STATIC, "netmask": "255.255.255.0"})),
    version1(physical({**STATIC, "address": "10.0.0.5", "netmask": "255.0.255.0"})),
    *(version1(physical({"type": "dhcp"}), physical({"type": "dhcp"}, mac=TWO)), version1(5)),
    # A device on one that is not there, or on one that it cannot be on.
    *(without(BONDED, "ethernets", "b"), without(BONDED, "bonds", "bond7")),
    *(
        without(BONDED, "bonds", "bond7", "parameters", "mode"),
        without(BONDED, "vlans", "v7", "id"),
    ),
    {**BONDED, "vlans": {"v": {"id": 7, "link": "w", "dhcp4": True}, "w": {"id": 8, "link": "a"}}},
    {**BONDED, "vlans": {"v7": {"id": 4095, "link": "a", "dhcp4": True}}},
    # Nova's form, with a network that no link has, or of an unknown type.
    *(
        {**NOVA, "networks": [{**NOVA["networks"][0], **odd}]}
        for odd in ({"link": "x"}, {"type": "ipx"})
    ),
    {**NOVA, "links": [{**link, "bond_x": 1} for link in NOVA["links"]]},
    # Equinix Metal's form, without what a guest would need.
    {"addresses": [{"address": "10.0.0.5", "public": False}]},
    *(equinix({**PUBLIC, "enabled": False}), equinix(PUBLIC, interfaces=[{"name": "eth0"}])),
    equinix(PUBLIC, interfaces=[{"name": "a", "mac": ONE}, {"name": "b", "mac": TWO}]),
    equinix(PUBLIC, interfaces=[{"name": "a", "mac": ONE, "bond": "x"}, {"name": "b", "mac": TWO}]),
    equinix(PUBLIC, interfaces=[{"name": "a", "mac": ONE}, {"name": "a", "mac": TWO}]),
    *(equinix(PUBLIC, bonded=True, bonding={}), equinix(PUBLIC, bonded=True, bonding={"mode": 7})),
    *(equinix({**PUBLIC, "cidr": 30}), equinix({**PUBLIC, "gateway": "40.91.78.1"})),
    *(
        equinix({"address": "10.0.0.5"}),
        equinix({**PUBLIC6, "netmask": "ffff::ffff", "cidr": None}),
    ),
]


def test_a_network_that_the_file_cannot_express_is_left_out() -> None:
    for network in UNFIT:
        assert derived(network) is None, network
    bridged = {**version2(a=nic(dhcp4=True)), "bridges": {}}
    assert yaml.safe_load(asker({"network": bridged})("/nocloud/network-config").body) == bridged


def test_the_file_exists_from_liberty_on_if_there_is_a_network() -> None:
    for document in ({}, {"network": UNFIT[-1]}, {"network_data": {"links": []}}):
        ask = asker(document)
        assert ask("/openstack/latest/network_data.json").status == 404
        assert b"network_data.json" not in ask("/openstack/latest").body
    own = {"links": [{"id": "a"}], "networks": [], "services": []}
    network = GOOD["static"]
    for document, content in (
        ({"network": network}, derived(network)),
        ({"network": network, "network_data": own}, own),
    ):
        ask = asker(document)
        assert ask("/openstack/2013-10-17/network_data.json").status == 404
        for version in ("2015-10-15", "latest"):
            assert b"network_data.json" in ask(f"/openstack/{version}").body
            assert json.loads(ask(f"/openstack/{version}/network_data.json").body) == content


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["", "x", ONE, "10.0.0.5/24", "::1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*"ab", "match", "type", "name", "mode", "id"]), inner)
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=examples(200))
@given(st.data())
def test_any_value_in_a_network_is_no_error(data: st.DataObject) -> None:
    given = copy.deepcopy(
        data.draw(st.sampled_from([*GOOD.values(), *map(derived, GOOD.values()), EQUINIX[1][0]]))
    )
    place: Any = given
    while True:
        names = [*place] if isinstance(place, dict) else [*range(len(place))]
        step = data.draw(st.sampled_from(names))
        inner = place[step]
        if not (isinstance(inner, dict | list) and inner) or data.draw(st.booleans()):
            break
        place = inner
    place[step] = data.draw(JSON)
    result = derived(given)
    assert result is None or (result["links"] and result["networks"])
    seed = asker({"network": given})("/nocloud/network-config")
    assert seed.status == 200
    assert seed.body or result is None


def test_port_without_a_known_network_has_dhcp_on_its_device() -> None:
    unfit = {"network": version2(lan=nic(mtu="large"))}
    for document in ({}, unfit, {"network_data": {"links": []}}):
        ask = asker(document, mac=ONE)
        assert json.loads(ask("/openstack/latest/network_data.json").body) == with_dhcp(ONE)
        assert b"network_data.json" in ask("/openstack/latest").body


def test_answers_of_two_ports_of_one_record_are_their_own() -> None:
    no_database: Any = None
    backend = StoreBackend(no_database)
    record = Record(id=INSTANCE, seed=b"s", created_at=NOW, updated_at=NOW, metadata="{}")
    request = GuestRequest("GET", "/openstack/latest/network_data.json")
    bodies = [
        backend.view(request, Identity(INSTANCE, "", "", "tap", 1, mac=mac), record).answer().body
        for mac in (ONE, TWO, ONE)
    ]
    assert [ONE.encode() in body for body in bodies] == [True, False, True]
    assert bodies[0] == bodies[2]
