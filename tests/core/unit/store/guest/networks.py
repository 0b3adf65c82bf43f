"""Networks of documents, in each form that network_data.json can be made of."""

from typing import Any

MACS = {f"fa:16:3e:00:00:0{number}": f"ens{number}" for number in range(1, 5)}
ONE, TWO, THREE, FOUR = MACS

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


def equinix(*addresses: Config, bonded: bool = False, **members: Any) -> Config:
    """A network as in specification 003."""
    interfaces = [{"name": f"eth{number}", "mac": mac} for number, mac in enumerate((ONE, TWO))]
    config: Config = {
        "bonding": {"mode": 4, "link_aggregation": "mlag_ha", "mac": TWO},
        "interfaces": [{**interface, "bond": "bond0"} for interface in interfaces],
        "addresses": [*addresses],
        "metal_gateways": [],
    }
    if not bonded:
        config |= {"bonding": {}, "interfaces": interfaces[:1]}
    return config | members


PUBLIC = {
    "address_family": 4,
    "netmask": "255.255.255.254",
    "public": True,
    "cidr": 31,
    "address": "40.91.78.229",
    "gateway": "40.91.78.228",
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
    (
        equinix(PRIVATE, {**PUBLIC, "enabled": False}),
        version2(a=nic(addresses=["10.70.17.9/31"], gateway4="10.70.17.8")),
    ),
    (
        equinix({"address": "10.0.0.5", "netmask": "255.255.255.0"}),
        version2(a=nic(addresses=["10.0.0.5/24"])),
    ),
]
