"""What limits.rst calls missing should be missing: each entry has a proof in the product."""

import re
from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from dfmeta import conf
from dfmeta.conf import agent
from dfmeta.errors import ConfigError
from dfmeta.flows.integration_bridge import ServedEndpoint, Tap, fixed_flows, guest_flows
from dfmeta.flows.openflow import ETH_TYPE_ARP, IPPROTO_TCP, Flow, Output
from dfmeta.flows.pipeline import METADATA_PORT, Purpose
from dfmeta.model import TAP_MAC, Endpoint, GuestAddress
from tests.core.docs.sources import ROOT, sources

PAGE = (ROOT / "doc/source/limits.rst").read_text(encoding="utf-8")
TAP = Tap(ofport=1, mac=TAP_MAC, port=18080, ip="169.254.169.254")
ADDRESS = GuestAddress("fa:16:3e:00:00:05", IPv4Address("10.0.0.5"))
FLOWS = (*fixed_flows(TAP), *guest_flows(ServedEndpoint(Endpoint(2), {0: ADDRESS}), TAP))
ROUTER_ADVERTISEMENT = 134
"""Type of ICMPv6 (RFC 4861, 4.2)."""
OPTIONS = {opt.dest: opt for opt in agent.OPTS}


def entries() -> list[str]:
    """Titles of the entries of the last chapter."""
    chapter = PAGE.partition("Missing functions\n")[2]
    return re.findall(r"^\*([^*\n]+)\*$", chapter, re.MULTILINE)


def values(name: str) -> set[object]:
    """The values that dfmeta's flows match in a field."""
    return {flow.field(name) for flow in FLOWS}


def at_guests() -> Iterator[Flow]:
    """Flows for packets that a guest sends."""
    return (flow for flow in FLOWS if flow.field("in_port") == 2)


def drops(flow: Flow) -> bool:
    """Whether the packets of a flow go nowhere."""
    return not flow.actions and flow.goto is None


def text(path: str) -> str:
    """All modules of a part of dfmeta, or of the tests."""
    return "".join(
        module.read_text(encoding="utf-8") for module in sorted((ROOT / path).rglob("*.py"))
    )


def refuses(tmp_path: Path, lines: str) -> bool:
    """Whether a configuration is refused."""
    file = tmp_path / "dfmeta.conf"
    file.write_text(lines)
    with pytest.raises(ConfigError):
        conf.load([str(file)], prog="dfmeta-agent")
    return True


HAPROXY = "[df_metadata]\nengine = haproxy\nbackend = store\n"
PROOFS: Mapping[str, Callable[[Path], bool]] = {
    "IPv6": lambda _path: all(
        drops(flow) for flow in FLOWS if flow.field("icmpv6_type") == ROUTER_ADVERTISEMENT
    ),
    "VLANs of guests that no list names": lambda _path: (
        {flow.field("vlan_vid") for flow in at_guests()} == {0}
    ),
    "Connections that are being established": lambda _path: (
        "kernel" in text("tests/soak/real") and "SYN_RECV" not in text("dfmeta/cmd")
    ),
    "The end of a connection whose port was plugged again": lambda _path: (
        {
            (flow.field("ipv4_dst"), action.port)
            for flow in FLOWS
            for action in flow.actions
            if flow.purpose is Purpose.REPLY and isinstance(action, Output)
        }
        == {(str(TAP.keys.key_of(Endpoint(2), 0)), 2)}
    ),
    "A filter for VLAN 4095": lambda _path: 4095 not in values("vlan_vid"),
    "Several bridges": lambda _path: not OPTIONS["integration_bridge"].multi,
    "haproxy with a store": lambda path: refuses(path, HAPROXY),
    "TLS to guests": lambda _path: (
        not any(
            "wrap_socket" in code
            for path, code in sources().items()
            if "/proxy/" in path and "/nova/" not in path
        )
    ),
    "A password on health, metrics and listings": lambda _path: (
        {name for name in OPTIONS if name.startswith("admin")} == {"admin_listen"}
    ),
    "Links below 1280 bytes behind a guest": lambda _path: 1 not in values("ip_proto"),
    "Fragments": lambda _path: all(
        drops(flow) for flow in FLOWS if "FRAGMENT" in flow.purpose.name
    ),
    "Other services at 169.254.169.254": lambda _path: all(
        flow.field("tcp_dst") in (None, METADATA_PORT)
        and flow.field("ip_proto") in (None, IPPROTO_TCP)
        for flow in at_guests()
        if flow.field("eth_type") != ETH_TYPE_ARP
    ),
}


def test_each_missing_function_has_a_proof_that_it_is_missing(tmp_path: Path) -> None:
    assert entries() == list(PROOFS)
    for title, is_missing in PROOFS.items():
        assert is_missing(tmp_path), title


def test_tested_versions_are_those_of_the_set_up() -> None:
    setup = (ROOT / "tools/setup.sh").read_text(encoding="utf-8")
    versions = re.findall(r"[( ](?:neutron|nova|pyuwsgi)==(\d+\.\d+\.\d+)", setup)
    assert len(versions) == 3
    assert [version for version in versions if version not in PAGE] == []
