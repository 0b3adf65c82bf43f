"""Settings and facts of a working host, for the tests of this folder."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv6Address

from dfmeta.flows.key import SLOT6
from dfmeta.flows.pipeline import Layout
from dfmeta.flows.service import Tap
from dfmeta.inspect.facts import HostFacts, KnownPort, Listener, RuleFact, Settings
from dfmeta.model import GuestAddress, PortState

IP = "169.254.169.254"
INODE = 4711
SETTINGS = Settings(
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
    listeners=(Listener(IPv4Address(IP), 18080, INODE),),
)
