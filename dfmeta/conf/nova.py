"""How Nova is reached: Neutron's metadata agent's own options, in ``[DEFAULT]``."""

from __future__ import annotations

import ipaddress
from typing import Final

from oslo_config import cfg

from dfmeta.exceptions import ConfigError
from dfmeta.model import HttpHost

OPTS: Final = [
    cfg.StrOpt(
        "auth_ca_cert",
        help="File with the certificates of the authorities that Nova's certificate is checked "
        "against, PEM. Unset: the system's.",
    ),
    cfg.StrOpt(
        "nova_metadata_host",
        default="127.0.0.1",
        help="Host of Nova's metadata API, or a comma list of them, each with an optional :port. "
        "They are tried in this order; one that fails rests for 10 seconds. An IPv6 address "
        "with a port stands in brackets.",
    ),
    cfg.PortOpt(
        "nova_metadata_port",
        default=8775,
        min=1,
        help="TCP port of Nova's metadata API where nova_metadata_host names none.",
    ),
    cfg.StrOpt(
        "nova_metadata_protocol",
        default="http",
        choices=["http", "https"],
        help="How Nova's metadata API is spoken to.",
    ),
    cfg.BoolOpt(
        "nova_metadata_insecure",
        default=False,
        help="Do not check Nova's certificate. Whoever is between can then read user-data.",
    ),
    cfg.StrOpt("nova_client_cert", help="Client certificate for Nova, PEM."),
    cfg.StrOpt("nova_client_priv_key", help="Private key of nova_client_cert, PEM."),
    cfg.StrOpt(
        "metadata_proxy_shared_secret",
        default="",
        secret=True,
        help="Secret that signs instance ids. Must be the same as [neutron] "
        "metadata_proxy_shared_secret in nova.conf; with another, Nova answers 403. Required "
        "with backend = nova.",
    ),
]


def hosts(conf: cfg.ConfigOpts) -> list[HttpHost]:
    """Read nova_metadata_host.

    :raises ConfigError: for a list with an entry that is no host.
    """
    return [
        _host(entry.strip(), conf.nova_metadata_port)
        for entry in conf.nova_metadata_host.split(",")
    ]


def check(conf: cfg.ConfigOpts) -> None:
    """Check what no single option can say.

    :raises ConfigError: naming the option.
    """
    hosts(conf)
    if conf.df_metadata.backend == "nova" and not conf.metadata_proxy_shared_secret:
        raise ConfigError(
            option="[DEFAULT] metadata_proxy_shared_secret",
            value="",
            cause="backend = nova needs it, since Nova refuses what is not signed",
            remedy="Give the value of [neutron] metadata_proxy_shared_secret in nova.conf",
        )
    if bool(conf.nova_client_cert) != bool(conf.nova_client_priv_key):
        missing = "nova_client_priv_key" if conf.nova_client_cert else "nova_client_cert"
        raise ConfigError(
            option=f"[DEFAULT] {missing}",
            value="",
            cause="a client certificate and its key go together",
            remedy="Give both, or neither",
        )
    for option in ("auth_ca_cert", "nova_client_cert", "nova_client_priv_key"):
        check_file(f"[DEFAULT] {option}", conf[option])


def _host(entry: str, default_port: int) -> HttpHost:
    try:
        address = ipaddress.ip_address(entry.strip("[]"))
        return HttpHost(str(address), default_port)
    except ValueError:
        pass
    name, colon, port = entry.rpartition(":") if ":" in entry else (entry, "", "")
    number = int(port) if port.isascii() and port.isdigit() else 0
    name = name.removeprefix("[").removesuffix("]")
    if (
        not name
        or any(c.isspace() or c in "/?#@[]" for c in name)
        or (colon and not 1 <= number <= 65535)
    ):
        raise ConfigError(
            option="[DEFAULT] nova_metadata_host",
            value=entry,
            cause="it is not a host with an optional :port",
            remedy="Give names or addresses such as nova-1:8775, [2001:db8::1]:8775, with commas "
            "between them",
        )
    return HttpHost(name, number or default_port)


def check_file(option: str, path: str | None) -> None:
    """Check that a file which *option* names can be read; an empty *path* names none.

    :raises ConfigError: naming the option.
    """
    if not path:
        return
    try:
        with open(path, "rb"):
            return
    except OSError as error:
        raise ConfigError(
            option=option,
            value=path,
            cause=error.strerror,
            remedy="Name a PEM file that the daemon may read",
        ) from error
