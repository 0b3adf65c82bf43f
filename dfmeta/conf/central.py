"""The options of ``dfmeta-store`` alone, in the store's group."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Final

from oslo_config import cfg, types

from dfmeta.conf import store
from dfmeta.exceptions import ConfigError

GROUP: Final = store.GROUP

OPTS: Final = [
    cfg.Opt(
        "guest_listen",
        type=types.String(regex=r"^((\[[0-9A-Fa-f:.]+\]|[^:\s\[\]]+):\d{1,5})?$"),
        default="",
        help="HOST:PORT at which dfmeta-store answers guests, such as 192.0.2.1:80, or [::]:80 for "
        "every address of both families. Empty: it answers none, and its admin API is all there "
        "is. A guest is known by its address there, which is as good as the network between. "
        "dfmeta-agent does not look at it.",
    ),
    cfg.ListOpt(
        "trusted_proxies",
        default=[],
        help="Proxies of whom dfmeta-store takes the guest's address from X-Forwarded-For: their "
        "addresses or networks, with commas between them. The header is read from the right to "
        "the first address that is not among these. A guest that could send from one of them "
        "could name any address. Nobody else's X-Forwarded-For counts, and in dfmeta-agent "
        "nobody's at all.",
    ),
]


def check(conf: cfg.ConfigOpts) -> None:
    """Check what no single option can say.

    :raises ConfigError: naming the option.
    """
    listen = conf.store.guest_listen
    port = listen.rpartition(":")[2]
    if listen and not 1 <= int(port) <= 65535:
        raise ConfigError(
            option="[store] guest_listen",
            value=listen,
            cause=f"{port} is not a TCP port",
            remedy="Give a port from 1 to 65535 after the host",
        )
    for text in conf.store.trusted_proxies:
        _check_network(text)


def _check_network(text: str) -> None:
    cause = "an address with a zone means something on one host alone"
    try:
        if "%" not in text:
            ip_network(text, strict=False)
            return
    except ValueError:
        cause = "it is neither an address nor a network"
    raise ConfigError(
        option="[store] trusted_proxies",
        value=text,
        cause=cause,
        remedy="Give addresses or networks such as 192.0.2.7 or 2001:db8::/64, with commas between "
        "them",
    )
