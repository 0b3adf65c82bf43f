"""A fact should reach each dialect, whatever the form of the document that has it."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from dfmeta.store.guest import documents as reader
from dfmeta.store.guest.documents import addresses, networks_in
from dfmeta.store.guest.netconfig import read
from tests.core.unit.store.guest.crawling import asker, crawl
from tests.core.unit.store.guest.networks import ONE, nic, physical, static1, version1, version2
from tests.core.unit.store.support import KEY

NAME, IP, IP6 = "web1.example.org", "10.0.0.5", "2001:db8::5"
VERSION1 = version1(physical({"type": "dhcp4"}, static1(f"{IP}/24", "10.0.0.1")))
MASKED = version1(physical({"type": "static", "address": IP, "netmask": "255.255.255.0"}))
VERSION2 = version2(lan=nic(ONE, addresses=[f"{IP}/24"]))
LINK = {"id": "tap0", "vif_id": "v", "type": "ovs", "mtu": None, "ethernet_mac_address": ONE}
ADDRESS = {"ip_address": IP, "netmask": "255.255.255.0", "routes": []}
DATA = {
    "links": [LINK],
    "networks": [{"id": "n", "network_id": "n", "type": "ipv4", "link": "tap0", **ADDRESS}],
    "services": [{"type": "dns", "address": "10.0.0.2"}],
}
PUBLIC = {"address": "192.0.2.5", "cidr": 24, "public": True}
EQUINIX = {
    "interfaces": [{"name": "eth0", "mac": ONE}],
    "addresses": [{"address": IP, "cidr": 24}, PUBLIC],
}
OWN = {"hostname": NAME, "availability_zone": "az1", "ssh_keys": [KEY]}
NOVA = {
    "uuid": "6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01",
    "hostname": NAME,
    "name": "Web 1",
    "availability_zone": "az1",
    "project_id": "p1",
    "keys": [{"name": "me", "type": "ssh", "data": KEY}],
}
FORMS: tuple[dict[str, Any], ...] = (
    {"hostname": NAME, "facility": "az1", "ssh_keys": [{"key": KEY}], "network": EQUINIX},
    *(
        {**OWN, "network": network}
        for network in (VERSION1, MASKED, VERSION2, {"network": VERSION2}, DATA)
    ),
    *({**NOVA, "network_data": DATA, **keys} for keys in ({}, {"public_keys": {"me": KEY}})),
    {**OWN, "ssh_keys": [], "public_keys": [KEY], "network_config": VERSION2},
    {**OWN, "network_config": yaml.safe_dump(VERSION1)},
    {**OWN, "network_config": json.dumps({"network": VERSION2})},
)


def wired(network: Any) -> tuple[str, str]:
    """Return MAC and first address in a network of any form."""
    (link,) = read(network.get("network", network)).links
    return link.mac, str({str(address.ip): address for address in link.addresses}[IP])


def facts(form: Mapping[str, object]) -> dict[str, object]:
    """Return what a guest reads of a document, by the place."""
    ask, equinix = asker(form), asker(form, ec2_tree="equinix")

    def text(path: str) -> str:
        return ask(f"/latest/meta-data/{path}").body.decode()

    def item(name: str) -> str:
        return equinix(f"/2009-04-04/meta-data/{name}").body.decode()

    nova, identity, seed, network_data, network_config = (
        yaml.safe_load(ask(path).body)
        for path in (
            *("/openstack/latest/meta_data.json", "/latest/dynamic/instance-identity/document"),
            *("/nocloud/meta-data", "/openstack/latest/network_data.json"),
            "/nocloud/network-config",
        )
    )
    return {
        "name": [
            *(nova["hostname"], text("hostname"), text("local-hostname"), seed["local-hostname"]),
            *(text("public-hostname"), item("hostname")),
        ],
        "key": [
            *(*nova["public_keys"].values(), nova["keys"][0]["data"], *seed["public-keys"]),
            *(text("public-keys/0/openssh-key"), item("public-keys")),
        ],
        "zone": [
            *(nova["availability_zone"], seed["availability-zone"]),
            *(text("placement/availability-zone"), identity["availabilityZone"]),
        ],
        "address": [text("local-ipv4"), identity["privateIp"], item("local-ipv4")],
        "network": [wired(network_data), wired(network_config)],
    }


def test_fact_is_in_each_dialect_whatever_its_form() -> None:
    expected = {
        "name": {NAME},
        "key": {KEY},
        "zone": {"az1"},
        "address": {IP},
        "network": {(ONE, f"{IP}/24")},
    }
    for form in FORMS:
        result: Any = facts(form)
        assert {fact: {*values} for fact, values in result.items()} == expected, form


def test_only_the_form_of_equinix_says_that_an_address_is_public() -> None:
    shown = [
        (address.text, address.version, address.public)
        for address in addresses(networks_in({"network": EQUINIX}))
    ]
    assert shown == [(IP, 4, False), ("192.0.2.5", 4, True)]
    both = version2(lan=nic(ONE, addresses=[{f"{IP}/24": {"label": "lan:0"}}, f"{IP6}/64"]))
    for form in ({"network": both}, {"network": version2(lan=nic()), "network_config": both}):
        shown = [
            (address.text, address.version, address.public)
            for address in addresses(networks_in(form))
        ]
        assert shown == [(IP, 4, False), (IP6, 6, False)]


def test_what_is_no_address_is_absent() -> None:
    for odd in (
        None,
        "",
        5,
        "a: [",
        "\x00",
        "x" * 100_000,
        [IP],
        {"addresses": [IP, None, {"address": 5}, {"address": "web1"}, {"address": f"{IP}/32"}]},
        {"networks": IP},
        {"config": [{"subnets": 5}, {"subnets": [{"address": ["x"]}]}]},
        {"ethernets": {"a": {"addresses": [5, [], {}, {"x": 1}, None]}, "b": 5}},
    ):
        for member in ("network", "network_data", "network_config"):
            assert addresses(networks_in({member: odd})) == (), odd


def test_text_that_names_one_list_many_times_is_read_in_bounded_time() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x]", f"b: &b [{', '.join(['*a'] * 900)}]", "ethernets:"]
    lines += [f"  e{number}: {{addresses: *b}}" for number in range(900)]
    assert addresses(networks_in({"network_config": "\n".join(lines)})) == ()


def test_text_is_read_once_for_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []

    def parse(text: str) -> Mapping[str, Any]:
        texts.append(text)
        return VERSION2

    monkeypatch.setattr(reader, "parse_mapping", parse)
    ask = asker({"network": EQUINIX, "network_config": "text"})
    assert {answer.status for _path, answer in crawl(ask)} == {200}
    assert ask("/openstack/latest/vendor_data3.json").status == 404
    assert texts == ["text"]
