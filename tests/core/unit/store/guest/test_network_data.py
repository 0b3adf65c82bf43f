"""network_data.json should mean what the document's network does, or not be there."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfmeta.store.guest.netconfig import derived
from tests.core.unit.store.guest.crawling import asker
from tests.harness.examples import examples
from tests.harness.netjson import CloudInit

MACS = {f"fa:16:3e:00:00:0{number}": f"ens{number}" for number in range(1, 5)}
ONE, TWO, THREE, FOUR = MACS
FILE = "/openstack/latest/network_data.json"

Config = dict[str, Any]


def nic(mac: str = ONE, **members: Any) -> Config:
    return {
        "match": {"macaddress": mac},
        **{name.replace("_", "-"): members[name] for name in members},
    }


def version2(**ethernets: Any) -> Config:
    return {"version": 2, "ethernets": ethernets}


def version1(*config: Any) -> Config:
    return {"version": 1, "config": [*config]}


def physical(*subnets: Any, mac: str = ONE, name: str = "lan0", **members: Any) -> Config:
    return {
        "type": "physical",
        "name": name,
        "mac_address": mac,
        "subnets": [*subnets],
        **{name.replace("_", "-") if "ra" in name else name: members[name] for name in members},
    }


def static1(address: str, gateway: str | None = None) -> Config:
    led = {"gateway": gateway} if gateway else {}
    return {"type": "static", "address": address, **led}


STATIC = static1("10.0.0.5/24", "10.0.0.1")
BONDED: Config = {
    **version2(a=nic(ONE, mtu=9000), b=nic(TWO.upper())),
    "bonds": {
        "bond7": {
            "interfaces": ["a", "b"],
            "parameters": {
                "mode": "802.3ad",
                "mii-monitor-interval": 100,
                "transmit-hash-policy": "layer3+4",
            },
            "dhcp4": True,
            "mtu": 9000,
        }
    },
    "vlans": {
        "v7": {"id": 7, "link": "bond7", "addresses": ["10.7.0.5/24"]},
        "v8": {"id": 8, "link": "a", "dhcp4": True},
    },
}
GOOD: dict[str, Config] = {
    "dhcp": version2(a=nic(dhcp4=True)),
    "both families": version2(a=nic(dhcp4=True, dhcp6=True, optional=True)),
    "static": version2(
        a=nic(
            addresses=["10.0.0.5/24", "10.9.0.5/16"],
            gateway4="10.0.0.1",
            routes=[{"to": "192.168.0.0/16", "via": "10.9.0.1"}],
            nameservers={"addresses": ["10.0.0.2", "2001:db8::2"]},
            mtu=1400,
        )
    ),
    "static IPv6": version2(
        a=nic(addresses=["2001:db8::5/64"], gateway6="2001:db8::1"),
        b=nic(TWO, addresses=["2001:db8:1::5/64"], gateway6="fe80::1"),
        c=nic(THREE, addresses=["2001:db8:2::5/64"], dhcp6=True),
        d=nic(FOUR, addresses=["2001:db8:3::5/64"], accept_ra=False),
    ),
    "a link without an address": version2(a=nic(dhcp4=True), b=nic(TWO)),
    "a bond with VLANs": BONDED,
    "version 1": version1(
        physical({**STATIC, "dns_nameservers": ["10.0.0.2"]}, mtu=1400),
        physical({"type": "dhcp"}, {"type": "manual"}, mac=TWO, name="lan1"),
        {
            "type": "vlan",
            "name": "lan0.9",
            "vlan_link": "lan0",
            "vlan_id": 9,
            "mtu": 1300,
            "mac_address": THREE,
        },
        {"type": "nameserver", "address": ["10.0.0.3"], "search": ["example.org"]},
        {"type": "nameserver", "address": "10.0.0.4"},
        {"type": "route", "destination": "172.16.0.0/12", "gateway": "10.0.0.9"},
    ),
    "version 1, other spellings": version1(
        physical(
            {
                "type": "static",
                "address": "10.0.0.5",
                "netmask": "255.255.255.0",
                "routes": [
                    {"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.0.0.1"},
                    {"destination": "192.168.0.0/16", "gateway": "10.0.0.9"},
                ],
            },
            {"type": "static6", "address": "2001:db8::5/64", "gateway": "2001:db8::1"},
            {"type": "dhcp4"},
        ),
        physical({"type": "ipv6_slaac"}, mac=TWO, name="lan1"),
        physical({"type": "ipv6_dhcpv6-stateful"}, mac=THREE, name="lan2", accept_ra=True),
        physical({"type": "ipv6_dhcpv6-stateless"}, mac=FOUR, name="lan3"),
    ),
    "version 1, a bond": version1(
        physical(name="a"),
        physical(mac=TWO, name="b"),
        {
            "type": "bond",
            "name": "bond0",
            "bond_interfaces": ["a", "b"],
            "mac_address": TWO,
            "params": {"bond-mode": "active-backup", "bond-miimon": 50},
            "subnets": [STATIC],
        },
    ),
}


@pytest.fixture(scope="module")
def cloud_init() -> Iterator[CloudInit]:
    with CloudInit() as one:
        yield one


@pytest.mark.parametrize("name", GOOD)
def test_cloud_init_makes_the_same_of_it(cloud_init: CloudInit, name: str) -> None:
    found = derived(GOOD[name])
    assert found is not None
    assert cloud_init.network_data(found, MACS) == cloud_init.config(GOOD[name])


def equinix(*addresses: Config, bonded: bool = False, **members: Any) -> Config:
    """A network as in specification 003."""
    interfaces = [{"name": f"eth{number}", "mac": mac} for number, mac in enumerate((ONE, TWO))]
    found: Config = {
        "bonding": {"mode": 4, "link_aggregation": "mlag_ha", "mac": TWO},
        "interfaces": [{**one, "bond": "bond0"} for one in interfaces],
        "addresses": [*addresses],
        "metal_gateways": [],
    }
    if not bonded:
        found |= {"bonding": {}, "interfaces": interfaces[:1]}
    return found | members


PUBLIC = {
    "address_family": 4,
    "netmask": "255.255.255.254",
    "public": True,
    "cidr": 31,
    "enabled": True,
    "network": "40.91.78.228",
    "address": "40.91.78.229",
    "gateway": "40.91.78.228",
    "parent_block": {"network": "40.91.78.228", "cidr": 31},
}
PUBLIC6 = {
    "address_family": 6,
    "netmask": "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe",
    "cidr": 127,
    "public": True,
    "address": "2001:0db8:8583:0000::9",
    "gateway": "2001:0db8:8583:0000::8",
}
PRIVATE = {
    "address_family": 4,
    "netmask": "255.255.255.254",
    "public": False,
    "cidr": 31,
    "address": "10.70.17.9",
    "gateway": "10.70.17.8",
    "parent_block": {"network": "10.70.17.0", "netmask": "255.255.255.128", "cidr": 25},
}
LED = {
    "addresses": ["40.91.78.229/31", "2001:db8:8583::9/127", "10.70.17.9/31"],
    "routes": [{"to": "10.70.17.0/25", "via": "10.70.17.8"}],
    "gateway4": "40.91.78.228",
    "gateway6": "2001:db8:8583::8",
}
"""All of them, as version 2 has them."""
EQUINIX: list[tuple[Config, Config]] = [
    (equinix(PRIVATE, PUBLIC, PUBLIC6), version2(a=nic(**LED))),
    (
        equinix(PUBLIC, PUBLIC6, PRIVATE, bonded=True),
        # Of version 2 this cloud-init does not know that a bond may have a MAC.
        version1(
            physical(name="a"),
            physical(mac=TWO, name="b"),
            {
                "type": "bond",
                "name": "bond0",
                "bond_interfaces": ["a", "b"],
                "mac_address": TWO,
                "params": {"bond-mode": "802.3ad"},
                "subnets": [
                    static1("40.91.78.229/31", "40.91.78.228"),
                    static1("2001:db8:8583::9/127", "2001:db8:8583::8"),
                    static1("10.70.17.9/31"),
                ],
            },
            {"type": "route", "destination": "10.70.17.0/25", "gateway": "10.70.17.8"},
        ),
    ),
    (equinix(PRIVATE), version2(a=nic(addresses=["10.70.17.9/31"], gateway4="10.70.17.8"))),
    (
        equinix(PRIVATE, {**PUBLIC, "enabled": False}),
        version2(a=nic(addresses=["10.70.17.9/31"], gateway4="10.70.17.8")),
    ),
    (
        equinix({"address": "10.0.0.5", "netmask": "255.255.255.0"}),
        version2(a=nic(addresses=["10.0.0.5/24"])),
    ),
]


@pytest.mark.parametrize(("given", "means"), EQUINIX)
def test_equinix_metal_s_form_means_what_it_says(
    cloud_init: CloudInit, given: Config, means: Config
) -> None:
    found = derived(given)
    assert found is not None
    assert cloud_init.network_data(found, MACS) == cloud_init.config(means)


def test_it_is_as_nova_writes_it() -> None:
    config = version2(
        lan=nic(
            addresses=["10.0.0.5/24"],
            gateway4="10.0.0.1",
            mtu=1400,
            nameservers={"addresses": ["10.0.0.2"]},
        )
    )
    dns = {"type": "dns", "address": "10.0.0.2"}
    assert derived(config) == {
        "links": [{"id": "lan", "type": "phy", "ethernet_mac_address": ONE, "mtu": 1400}],
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


def test_a_name_that_is_to_be_given_is_kept() -> None:
    for config in (version2(a=nic(dhcp4=True, set_name="lan0")), version1(physical(STATIC))):
        found = derived(config)
        assert found is not None
        assert found["links"][0]["name"] == "lan0"


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


UNFIT: list[Any] = [
    *(None, "x", 5, [], {}, {"version": 3}, {"version": True}, {"version": "2"}, {"version": None}),
    *(version2(), version1(), {"version": 2}, {"version": 1, "config": {}}),
    # It does not say which NIC it is.
    *(version2(eth0={"dhcp4": True}), version2(a={"match": {"name": "en*"}, "dhcp4": True})),
    *(version2(a=nic("fa:16", dhcp4=True)), version2(a=nic(dhcp4=True), b=nic(dhcp4=True))),
    version1({"type": "physical", "name": "eth0", "subnets": [{"type": "dhcp"}]}),
    # No link has an address.
    *(version2(a=nic()), version2(a=nic(dhcp4=False)), version1(physical({"type": "manual"}))),
    # What the file has no word for.
    *({**version2(a=nic(dhcp4=True)), "bridges": {}}, version2(a=nic(dhcp4=True, wakeonlan=True))),
    version2(a=nic(dhcp4=True, dhcp4_overrides={"use-dns": False})),
    version2(
        a=nic(addresses=["10.0.0.5/24"], routes=[{"to": "default", "via": "10.0.0.1", "metric": 5}])
    ),
    version2(a=nic(addresses=[{"10.0.0.5/24": {"lifetime": 0}}])),
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
    *(version2(a=nic(dhcp4=True, accept_ra=True)), version2(a=nic(dhcp6=True, accept_ra=False))),
    version1(physical({"type": "static6", "address": "2001:db8::5/64"}, {"type": "ipv6_slaac"})),
    # What is no address, number or flag.
    *(version2(a=nic(addresses=["10.0.0.5"])), version2(a=nic(addresses="10.0.0.5/24"))),
    version2(a=nic(addresses=["10.0.0.500/24"])),
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
    {**BONDED, "vlans": {"w": {"id": 8, "link": "a"}, "v": {"id": 7, "link": "w", "dhcp4": True}}},
    {**BONDED, "vlans": {"v7": {"id": 4095, "link": "a", "dhcp4": True}}},
    # Equinix Metal's form, without what a guest would need.
    {"addresses": [{"address": "10.0.0.5", "public": False}]},
    *(equinix(), equinix({**PUBLIC, "enabled": False}), equinix(PUBLIC, interfaces=[])),
    equinix(PUBLIC, interfaces=[{"name": "eth0"}]),
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


@pytest.mark.parametrize("given", UNFIT, ids=str)
def test_what_it_cannot_say_is_not_there(given: Any) -> None:
    assert derived(given) is None


def test_a_document_without_one_has_no_such_file() -> None:
    for document in ({}, {"network": UNFIT[-1]}, {"network_data": {"links": []}}):
        ask = asker(document)
        assert ask(FILE).status == 404
        assert b"network_data.json" not in ask("/openstack/latest").body


def test_it_is_listed_and_there_from_liberty_on() -> None:
    ask = asker({"network": GOOD["static"]})
    for version in ask("/openstack").body.decode().split("\n"):
        path = f"/openstack/{version}"
        there = version >= "2015-10-15"
        assert (b"network_data.json" in ask(path).body) == there
        answer = ask(f"{path}/network_data.json")
        assert answer.status == (200 if there else 404)
        assert not there or json.loads(answer.body) == derived(GOOD["static"])


def test_network_data_of_the_document_s_own_comes_first() -> None:
    own = {"links": [{"id": "a"}], "networks": [], "services": []}
    ask = asker({"network": GOOD["static"], "network_data": own})
    assert json.loads(ask(FILE).body) == own


ADDRESSES = st.tuples(st.integers(0, 254), st.integers(2, 250)).map(
    lambda pair: f"10.{pair[0]}.0.{pair[1]}/24"
)


@st.composite
def devices(draw: st.DrawFn) -> Config:
    """What version 2 says of any device, and the file can say."""
    addresses = draw(st.lists(ADDRESSES, max_size=3, unique_by=lambda one: one.split(".")[1]))
    found: Config = {"addresses": addresses, "dhcp4": draw(st.booleans())}
    if addresses:
        first, last = (one.rpartition(".")[0] for one in (addresses[0], addresses[-1]))
        if draw(st.booleans()):
            found["gateway4"] = f"{first}.1"
        routes = draw(st.lists(st.integers(16, 31), unique=True, max_size=3))
        found["routes"] = [{"to": f"172.{one}.0.0/16", "via": f"{last}.1"} for one in routes]
    if draw(st.booleans()):
        found["addresses"] = [*addresses, "2001:db8::5/64"]
        found["gateway6"] = draw(st.sampled_from(["2001:db8::1", "fe80::1"]))
    elif draw(st.booleans()):
        found["dhcp6"] = True
    if draw(st.booleans()):
        found["mtu"] = draw(st.integers(1280, 9000))
    if draw(st.booleans()):
        found["nameservers"] = {"addresses": [f"10.255.0.{draw(st.integers(1, 9))}"]}
    return found


@st.composite
def configurations(draw: st.DrawFn) -> Config:
    """A configuration of version 2 that the file can say."""
    nics = draw(st.lists(st.sampled_from([*MACS]), min_size=1, unique=True))
    ethernets = {f"nic{mac[-1]}": nic(mac, **draw(devices())) for mac in nics}
    # One that has an address at least.
    next(iter(ethernets.values()))["dhcp4"] = True
    found: Config = {"version": 2, "ethernets": ethernets}
    if draw(st.booleans()):
        mode = draw(st.sampled_from(["802.3ad", "active-backup", "balance-rr"]))
        own = {"interfaces": [*ethernets], "parameters": {"mode": mode}}
        found["bonds"] = {"bond0": {**own, **draw(devices())}}
    if draw(st.booleans()):
        below = draw(st.sampled_from([*ethernets, *found.get("bonds", {})]))
        numbers = draw(st.lists(st.integers(1, 4094), unique=True, min_size=1, max_size=2))
        found["vlans"] = {
            f"v{number}": {"id": number, "link": below, **draw(devices())} for number in numbers
        }
    return found


@settings(deadline=None, max_examples=examples(100))
@given(config=configurations())
def test_cloud_init_makes_the_same_of_any(cloud_init: CloudInit, config: Config) -> None:
    found = derived(config)
    assert found is not None
    assert cloud_init.network_data(found, MACS) == cloud_init.config(config)


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
def test_what_is_no_network_is_no_error(data: st.DataObject) -> None:
    """Any value in the place of any other."""
    given = copy.deepcopy(
        data.draw(st.sampled_from([*GOOD.values(), *(one for one, _ in EQUINIX)]))
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
    found = derived(given)
    assert found is None or (found["links"] and found["networks"])
