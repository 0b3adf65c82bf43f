"""Options of ``dfmeta-store`` alone, in the group ``[store]``."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Final

from oslo_config import cfg

from dfmeta.conf import store
from dfmeta.conf.kinds import Several, Text, host_port

GROUP: Final = store.GROUP
_NETWORK: Final = Text(
    # A zone is valid on one host alone.
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
        "all IPv4 and IPv6 addresses. Empty: it does not answer guests and only serves its admin "
        "API. A guest is identified by its source address, so the network in between must prevent "
        "forged addresses. dfmeta-agent does not read this option.",
    ),
    cfg.Opt(
        "trusted_proxies",
        type=Several(_NETWORK, least=0),
        default=[],
        mutable=True,
        help="Proxies from which dfmeta-store accepts the guest's address in X-Forwarded-For: "
        "their addresses or networks, with commas between them. The header is read from the right, "
        "up to the first address that is not in this list. A guest that can send from an address "
        "in the list can claim any address. X-Forwarded-For of other peers is ignored; "
        "dfmeta-agent never takes an address from it.",
    ),
]
