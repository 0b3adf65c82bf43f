"""The options of ``dfmeta-store`` alone, in the store's group."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Final

from oslo_config import cfg

from dfmeta.conf import store
from dfmeta.conf.kinds import Several, Text, host_port

GROUP: Final = store.GROUP
_NETWORK: Final = Text(
    # One with a zone means something on one host alone.
    "an address or a network, without a zone",
    lambda text: "%" not in text and ip_network(text, strict=False),
    example="192.0.2.7 or 2001:db8::/64",
)

OPTS: Final = [
    cfg.Opt(
        "guest_listen",
        type=host_port(example="192.0.2.1:80 or [::]:80", optional=True),
        default="",
        help="HOST:PORT at which dfmeta-store answers guests, such as 192.0.2.1:80, or [::]:80 for "
        "every address of both families. Empty: it answers none, and its admin API is all there "
        "is. A guest is known by its address there, which is as good as the network between. "
        "dfmeta-agent does not look at it.",
    ),
    cfg.Opt(
        "trusted_proxies",
        type=Several(_NETWORK, least=0),
        default=[],
        help="Proxies of whom dfmeta-store takes the guest's address from X-Forwarded-For: their "
        "addresses or networks, with commas between them. The header is read from the right to "
        "the first address that is not among these. A guest that could send from one of them "
        "could name any address. Nobody else's X-Forwarded-For counts, and in dfmeta-agent "
        "nobody's at all.",
    ),
]
