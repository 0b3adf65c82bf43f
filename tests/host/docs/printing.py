"""Flows as ``ovs-ofctl --no-stats dump-flows`` prints them, with placeholders for what differs.

The bytes that dfmeta sends are put into a flow-stats reply, which the real ovs-ofctl reads: what
the page shows is what an operator sees, and no printer of our own stands between them.
"""

import itertools
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from ipaddress import IPv4Address, IPv6Address

from dfmeta.flows import source
from dfmeta.flows.desired import Guest, fixed_flows, guest_flows
from dfmeta.flows.flow import TAGGED, Flow
from dfmeta.flows.key import IN_PORT, SLOTS6
from dfmeta.flows.pipeline import PURPOSES, RATES, Layout, Purpose, Stage, cookie_of
from dfmeta.flows.reading import version_of
from dfmeta.flows.service import Tap
from dfmeta.flows.wire import Wire
from dfmeta.model import Binding, Endpoint, GuestAddress, NextHop
from tests.harness.netns import run
from tests.harness.ovs import UNPACKED

ENDPOINT = Endpoint(4711)
IP = IPv4Address("192.0.2.77")
ADDRESS = GuestAddress("fa:16:3e:0a:0b:0c", IP)
TAP = Tap(ofport=4811, mac="02:00:5e:0d:0e:0f", port=18989)
HOST_IP = "198.51.100.88"
SLOT = 0
SUBPORT = Endpoint(ENDPOINT.ofport, 2989)
HOP = NextHop("192.0.2.66", "fa:16:3e:0d:0e:0f")
SERVICE6 = "fe80::a9fe:a9fe"
ADDRESS6 = replace(ADDRESS, ip=IPv6Address("2001:db8::77"), service=IPv6Address(SERVICE6))
HOST_IP6 = "2001:db8:1::88"
TAP6 = replace(TAP, ip6=HOST_IP6, guest_ip6=(SERVICE6,))

PLACEHOLDERS: Mapping[str, str] = {
    "PORT": str(ENDPOINT.ofport),
    "MAC": ADDRESS.mac,
    "IP": str(ADDRESS.ip),
    "TAP": str(TAP.ofport),
    "TAP_MAC": TAP.mac,
    "PROXY": str(TAP.port),
    "KEY": str(IN_PORT.key_of(ENDPOINT, SLOT)),
    "HOST_IP": HOST_IP,
    "HOP": HOP.ip,
    "HOP_MAC": HOP.mac,
    "IP6": str(ADDRESS6.ip),
    "KEY6": str(IN_PORT.key_of(ENDPOINT, SLOTS6[0])),
    "HOST_IP6": HOST_IP6,
    "VID": str(SUBPORT.vid),
    "TAG": str(TAGGED | SUBPORT.vid),
    "HEX_TAG": hex(TAGGED | SUBPORT.vid),
    "EUI64": source.interface_id(ADDRESS.mac),
    "VLAN_KEY": str(IN_PORT.key_of(SUBPORT, SLOT)),
}
"""Placeholder → the value that stands for it; no value occurs in a flow by any other way."""

_OFPT_MULTIPART_REPLY, _OFPMP_FLOW = 19, 1
_MATCH = 48
"""Where a flow-mod's match begins (OpenFlow 1.3.5, 7.3.4.1)."""
_FLAGS = slice(44, 46)
_STATISTICS = re.compile(r"\b(duration|n_packets|n_bytes)=[^,]+, ")


@dataclass(frozen=True)
class Case:
    """One way in which a flow of a purpose comes, and the name of its block in the page."""

    block: str
    flow: Flow

    @property
    def ip6(self) -> bool:
        """Whether a host without IPv6 does not have it."""
        return version_of(self.flow) == 6 or PURPOSES[self.flow.purpose].stage is Stage.ND


@cache
def cases() -> Mapping[str, Case]:
    """Every form of every purpose's flows, by the name of its block."""
    plain = Guest(ENDPOINT, {SLOT: ADDRESS}, next_hops=(HOP,))
    flooding = replace(plain, floods=RATES)
    elsewhere = Tap(TAP.ofport, TAP.mac, TAP.port, ip=HOST_IP)
    both = replace(plain, addresses={SLOTS6[0]: ADDRESS6})
    subport = replace(plain, endpoint=SUBPORT, next_hops=())
    found: dict[str, Case] = {}
    for guest, tap, suffix in (
        (replace(plain, binding=Binding(ADDRESS.mac, IP)), TAP, ""),
        (flooding, TAP, "-flood"),
        (plain, elsewhere, "-host-ip"),
        (both, TAP6, "-ip6"),
    ):
        for flow in (*fixed_flows(tap), *guest_flows(guest, tap)):
            if flow not in (case.flow for case in found.values()):
                name = block_name(flow.purpose)
                # The flows of some purposes have no form for IPv4, others have several.
                name += suffix if name in found else ""
                name += _number(name, found)
                found[name] = Case(name, flow)
    for flow in guest_flows(subport, TAP):
        # All other flows differ from those of untagged frames in the match of the tag alone.
        if flow.purpose in (Purpose.SYN, Purpose.ADDRESS, Purpose.REPLY):
            name = f"{block_name(flow.purpose)}-tagged"
            found[name] = Case(name, flow)
    return found


def _number(name: str, found: Mapping[str, Case]) -> str:
    """Return the number of a block of that name, as the end of its name; empty for the first."""
    names = (f"-{number}" for number in itertools.count(2))
    return "" if name not in found else next(one for one in names if name + one not in found)


def block_name(purpose: Purpose) -> str:
    """What the literal block of *purpose* is called in the page."""
    return f"flow-{purpose.name.lower().replace('_', '-')}"


def printed(flows: Iterable[Flow]) -> list[str]:
    """A line for each flow, as ovs-ofctl prints it, with placeholders."""
    wire = Wire(Layout())
    body = b"".join(_stats(wire, flow) for flow in flows)
    head = struct.pack("!BBHI", 4, _OFPT_MULTIPART_REPLY, 16 + len(body), 0)
    message = head + struct.pack("!HH4x", _OFPMP_FLOW, 0) + body
    program = str(UNPACKED / "usr/bin/ovs-ofctl")
    text = run([program, "ofp-print", message.hex()]).stdout
    return [_with_placeholders(line) for line in text.splitlines()[1:]]


def _stats(wire: Wire, flow: Flow) -> bytes:
    sent = wire.add(flow)
    sent.serialize()
    data = bytes(sent.buf)
    number, priority = wire.layout.table(flow.purpose), wire.layout.priority(flow.purpose)
    entry = struct.pack("!BxIIHHH", number, 0, 0, priority, 0, 0) + data[_FLAGS]
    entry += struct.pack("!4xQQQ", cookie_of(flow.purpose), 0, 0) + data[_MATCH:]
    return struct.pack("!H", len(entry) + 2) + entry


def _with_placeholders(line: str) -> str:
    # ovs-ofctl itself leaves table 0 out with --no-stats.
    line = _STATISTICS.sub("", line.strip()).replace(" table=0,", "")
    for name, value in PLACEHOLDERS.items():
        line = re.sub(rf"(?<![\w.]){re.escape(value)}(?![\w.])", name, line)
    return line


def unwrapped(block: str) -> str:
    """The one line that a block of the page stands for."""
    joined = ""
    for part in map(str.strip, block.splitlines()):
        joined += part if not joined or joined.endswith(",") else f" {part}"
    return joined
