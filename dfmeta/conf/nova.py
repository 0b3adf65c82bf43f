"""How Nova is reached: Neutron's metadata agent's own options, in ``[DEFAULT]``."""

from __future__ import annotations

import ipaddress
import ssl
from typing import Final

from oslo_config import cfg

from dfmeta.conf.kinds import without_password
from dfmeta.exceptions import ConfigError
from dfmeta.model import HttpHost

OPTS: Final = [
    cfg.StrOpt(
        "auth_ca_cert",
        help="File with the certificates of the authorities that Nova's certificate is checked "
        "against, PEM. Unset: the system's. Read at the start and at a SIGHUP.",
    ),
    cfg.StrOpt(
        "nova_metadata_host",
        default="127.0.0.1",
        # Neutron's name for it before its release of 2017, still in files that came along since.
        deprecated_name="nova_metadata_ip",
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
        help="How Nova's metadata API is spoken to. Must be what listens at nova_metadata_port.",
    ),
    cfg.BoolOpt(
        "nova_metadata_insecure",
        default=False,
        help="With https, do not check Nova's certificate. Whoever is between can then read "
        "user-data, and answer in Nova's place.",
    ),
    cfg.StrOpt(
        "nova_client_cert",
        help="Client certificate for Nova, PEM, with those that lead to its authority after it. "
        "Read at the start and at a SIGHUP.",
    ),
    cfg.StrOpt(
        "nova_client_priv_key",
        help="Private key of nova_client_cert, PEM, without a passphrase. Read when that is; the "
        "daemon's user must be able to read it.",
    ),
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
    for option in ("auth_ca_cert", "nova_client_cert"):
        _check_certificates(f"[DEFAULT] {option}", conf[option])
    if conf.nova_client_cert:
        _check_key(conf.nova_client_cert, conf.nova_client_priv_key)


def _check_certificates(option: str, path: str | None) -> None:
    try:
        if path:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            option=option,
            value=path,
            cause="there is no certificate in it that can be loaded",
            remedy="Name a file with certificates in PEM",
        ) from error


def _check_key(certificate: str, key: str) -> None:
    try:
        # With a passphrase of nothing, for OpenSSL would ask on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, lambda: b"")
    except (OSError, ValueError) as error:
        differs = getattr(error, "reason", "") == "KEY_VALUES_MISMATCH"
        cause = (
            "it is not the key of the certificate that nova_client_cert names"
            if differs
            else "there is no private key in it that can be loaded"
        )
        raise ConfigError(
            option="[DEFAULT] nova_client_priv_key",
            value=key,
            cause=cause,
            remedy="Name the file with that certificate's private key in PEM, without a passphrase",
        ) from error


def _host(entry: str, default_port: int) -> HttpHost:
    try:
        bare = entry[1:-1] if entry.startswith("[") and entry.endswith("]") else entry
        return HttpHost(str(ipaddress.ip_address(bare)), default_port)
    except ValueError:
        pass
    name, colon, port = entry.rpartition(":") if ":" in entry else (entry, "", "")
    number = int(port) if port.isascii() and port.isdigit() else 0
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
        sound = _is_ipv6(name)
    else:
        sound = _is_name(name)
    if not sound or (colon and not 1 <= number <= 65535):
        raise ConfigError(
            option="[DEFAULT] nova_metadata_host",
            value=without_password(entry),
            cause="it is not a host with an optional :port",
            remedy="Give names or addresses such as nova-1:8775, [2001:db8::1]:8775, with commas "
            "between them",
        )
    return HttpHost(name, number or default_port)


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def _is_name(text: str) -> bool:
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return (
        bool(text) and text.isprintable() and not any(c.isspace() or c in "/?#@[]:%" for c in text)
    )


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
