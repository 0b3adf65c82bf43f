"""``identity_scheme = meta_ip`` as tests set it up: its keys, and both bridges' ports."""

from ipaddress import IPv4Network, IPv6Network

from dfmeta.flows.integration_bridge import Tap
from dfmeta.flows.meta_bridge import MetaTap
from dfmeta.flows.pipeline import METADATA_IP
from dfmeta.identity.key import GATEWAY, PREFIX6, MetaKeys
from dfmeta.model import TAP_MAC

CIDR = IPv4Network("240.0.0.0/16")
BASE_MAC = "fa:16:ee:00:00:00"
SERVICE6 = ("fe80::a9fe:a9fe", "fd00:ec2::254")
PATCH_INT = 8
"""OpenFlow port number on br-int of the patch port to br-meta."""
TAP_META = 5
PATCH_META = 6
"""OpenFlow port number on br-meta of the patch port to br-int."""
PORT = 9775
"""TCP port of the proxy's listener."""
VLAN = 998


def meta_keys(cidr: IPv4Network = CIDR, prefix6: IPv6Network = PREFIX6) -> MetaKeys:
    """Return a key scheme in which no number has an owner."""
    return MetaKeys(cidr, prefix6, BASE_MAC)


def patch_of(keys: MetaKeys, ip6: tuple[str, ...] = SERVICE6) -> Tap:
    """Return br-int's port to br-meta; without *ip6*, guests are not served over IPv6."""
    return Tap(PATCH_INT, TAP_MAC, PORT, guest_ip6=ip6, keys=keys)


def meta_tap_of(keys: MetaKeys, ip6: tuple[str, ...] = SERVICE6) -> MetaTap:
    """Return the ports of br-meta."""
    mac = keys.label(GATEWAY)
    return MetaTap(TAP_META, PATCH_META, mac, PORT, VLAN, METADATA_IP, keys, ip6)
