"""Settings and facts of a working host, for the tests of this folder."""

from collections.abc import Iterable
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address
from pathlib import Path
from typing import Any

from dfmeta.doctor.facts import HostSettings, KnownPort, MetaSide
from dfmeta.doctor.finding import CheckStatus, Finding
from dfmeta.flows.integration_bridge import Tap
from dfmeta.flows.meta_bridge import MetaTap
from dfmeta.flows.pipeline import Layout
from dfmeta.host.host_facts import HostFacts, RuleFact
from dfmeta.host.listeners import TcpListener
from dfmeta.identity.key import PREFIX6, SLOT6, MetaKeys
from dfmeta.model import TAP_MAC, TAP_VLAN, Endpoint, GuestAddress, MetaNames, PortState
from dfmeta.ovsdb.rows import Bridge, Interface, Snapshot

OK, WRONG, WARNING, UNKNOWN = (
    CheckStatus.OK,
    CheckStatus.WRONG,
    CheckStatus.WARNING,
    CheckStatus.UNKNOWN,
)
IP = "169.254.169.254"
INODE = 4711
SETTINGS = HostSettings(
    bridge="br-int",
    tap="tap-metadata",
    ip=IP,
    host_ip=IP,
    port=18080,
    listener=INODE,
    route_table=2,
    layout=Layout(),
    ovsdb="unix:/run/db.sock",
    socket="/run/br-int.mgmt",
    admin="127.0.0.1:9697",
    state_path="/var/lib/dfmeta",
)
TAP = Tap(ofport=9, mac="02:64:66:6d:65:fe", port=18080)
SERVICE6 = ("fe80::a9fe:a9fe", "fd00:ec2::254")
TAP6 = replace(TAP, ip6="fd00:a9fe:a9fe:a9fe::a9fe", guest_ip6=SERVICE6)
ADDRESS6 = GuestAddress(
    "fa:16:3e:00:00:01", IPv6Address("fe80::f816:3eff:fe00:1"), IPv6Address(SERVICE6[0])
)
ADDRESS = GuestAddress("fa:16:3e:00:00:01", IPv4Address("10.0.0.5"))
INSTANCE = "6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01"
PORT = KnownPort(
    "tap1",
    1,
    PortState.SERVED,
    instance=INSTANCE,
    iface_id="A-Port",
    mac=ADDRESS.mac,
    addresses={0: ADDRESS},
)
PORT6 = replace(PORT, addresses={0: ADDRESS, SLOT6 + 1: ADDRESS6})
HOST = HostFacts(
    neighbour=True,
    up=True,
    addresses=(("tap-metadata", IPv4Interface(f"{IP}/32")),),
    rules=(RuleFact(f"from {IP}", 32764, True), RuleFact("oif tap-metadata", 32765, True)),
    route=True,
    way_back="tap-metadata",
    arp_ignore=1,
    tx_checksum=False,
    listeners=(TcpListener(IPv4Address(IP), 18080, INODE),),
)

# A host with identity_scheme = meta_ip.
META_NAMES = MetaNames("br-meta", "tap-meta", "int-br-meta", "phy-br-meta", "fa:16:ee:00:00:01")
META = MetaSide(META_NAMES, vlan=1, socket="/run/br-meta.mgmt")
META_NUMBER = 3
META_IP, META_MAC = "240.0.0.3", "fa:16:ee:00:00:03"
META_IP6 = "fd00:a9fe:a9fe:a9fe::3"


def meta_keys() -> MetaKeys:
    """The key scheme, with the owner of the guest's one number."""
    keys = MetaKeys(IPv4Network("240.0.0.0/16"), PREFIX6, "fa:16:ee:00:00:00")
    keys.own(Endpoint(1), META_NUMBER)
    return keys


META_SETTINGS = replace(
    SETTINGS, tap="tap-meta", host_ip="240.0.0.1", port=80, keys=meta_keys(), meta=META
)
META_TAP = MetaTap(
    ofport=1, patch=2, mac="fa:16:ee:00:00:01", port=80, vlan=1, guest_ip=IP, keys=meta_keys()
)
TAP_TO_META = Tap(ofport=3, mac=TAP_MAC, port=80, ip="240.0.0.1", keys=meta_keys())
META_PORT = replace(
    PORT, addresses={META_NUMBER: ADDRESS}, key=META_IP, label=META_MAC, key6=META_IP6
)


def _unflooded(name: str, bridge: str, kind: str, ofport: int, **values: Any) -> Interface:
    tag, mode, inner = TAP_VLAN
    return Interface(name, bridge, kind, ofport, tag=tag, vlan_mode=mode, cvlans=inner, **values)


META_SNAPSHOT = Snapshot(
    (
        Bridge("br-int", "netdev"),
        Bridge("br-meta", "netdev", (), "secure", {"dfmeta": "meta of br-int"}),
    ),
    (
        _unflooded("int-br-meta", "br-int", "patch", 3, options={"peer": "phy-br-meta"}),
        _unflooded("phy-br-meta", "br-meta", "patch", 2, options={"peer": "int-br-meta"}),
        _unflooded("tap-meta", "br-meta", "internal", 1, mac_in_use=META_NAMES.mac),
    ),
)


def status(finding: Finding) -> CheckStatus:
    """Of a finding; a fault has a remedy, and nothing else has."""
    assert bool(finding.remedy) == (finding.status in (WRONG, WARNING)), finding
    return finding.status


def expect(rows: Iterable[tuple[Finding, CheckStatus, *tuple[str, ...]]]) -> None:
    """Compare findings with their status, a part of their text, and parts of their remedy."""
    for finding, wanted, text, *remedies in rows:
        assert status(finding) is wanted, finding
        assert text in finding.text, finding
        for remedy in remedies:
            assert remedy in finding.remedy, finding


def recorded(name: str) -> str:
    folder = Path(__file__).resolve().parents[3] / "data/traces"
    return (folder / f"{name}.txt").read_text(encoding="ascii")
