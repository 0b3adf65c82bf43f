"""A fact should reach each dialect, whatever the form of the document that has it."""

import json
from typing import Any

import yaml

from dfmeta.store.guest.addresses import addresses
from tests.core.unit.store.guest.crawling import asker
from tests.core.unit.store.guest.networks import (
    ONE,
    nic,
    physical,
    static1,
    version1,
    version2,
)

IP, IP6 = "10.0.0.5", "2001:db8::5"
VERSION1 = version1(
    physical({"type": "dhcp4"}, static1(f"{IP}/24", "10.0.0.1"), static1(f"{IP6}/64"))
)
MASKED = version1(physical({"type": "static", "address": IP, "netmask": "255.255.255.0"}))
VERSION2 = version2(lan=nic(ONE, addresses=[f"{IP}/24", f"{IP6}/64"]))
LABELLED = version2(lan=nic(ONE, addresses=[{f"{IP}/24": {"label": "lan:0"}}]))
DATA = {
    "links": [{"id": "tap0", "type": "phy", "ethernet_mac_address": ONE}],
    "networks": [{"id": "n", "type": "ipv4", "link": "tap0", "ip_address": IP}],
}
EQUINIX = {
    "interfaces": [{"name": "eth0", "mac": ONE}],
    "addresses": [{"address": IP, "cidr": 24}, {"address": "192.0.2.5", "public": True}],
}
FORMS: tuple[dict[str, Any], ...] = (
    *({"network": form} for form in (EQUINIX, VERSION1, MASKED, VERSION2, LABELLED)),
    {"network": {"network": VERSION2}},
    {"network_data": DATA},
    {"network_config": VERSION2},
    {"network_config": yaml.safe_dump(VERSION1)},
    {"network_config": json.dumps({"network": VERSION2})},
    {"network": version2(lan=nic(dhcp4=True)), "network_config": VERSION2},
)


def test_address_of_a_guest_is_in_each_dialect_whatever_its_form() -> None:
    for form in FORMS:
        ask = asker(form)
        identity = json.loads(ask("/latest/dynamic/instance-identity/document").body)
        assert ask("/latest/meta-data/local-ipv4").body.decode() == IP, form
        assert identity["privateIp"] == IP, form
        equinix = asker(form, ec2_tree="equinix")
        assert equinix("/2009-04-04/meta-data/local-ipv4").body.decode() == IP, form


def test_only_the_form_of_equinix_says_that_an_address_is_public() -> None:
    shown = [(one.text, one.version, one.public) for one in addresses({"network": EQUINIX})]
    assert shown == [(IP, 4, False), ("192.0.2.5", 4, True)]
    shown = [(one.text, one.version, one.public) for one in addresses({"network": VERSION2})]
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
        {"addresses": [IP, None, {"address": 5}, {"address": "web1"}]},
        {"networks": IP},
        {"config": [{"subnets": 5}, {"subnets": [{"address": ["x"]}]}]},
        {"ethernets": {"a": {"addresses": [5, [], {}, {"x": 1}, None]}, "b": 5}},
    ):
        for member in ("network", "network_data", "network_config"):
            assert addresses({member: odd}) == (), odd


def test_text_that_names_one_list_many_times_is_read_in_bounded_time() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x]", f"b: &b [{', '.join(['*a'] * 900)}]", "ethernets:"]
    lines += [f"  e{number}: {{addresses: *b}}" for number in range(900)]
    assert addresses({"network_config": "\n".join(lines)}) == ()
