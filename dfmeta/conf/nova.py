"""Options of Nova's metadata API: those of Neutron's metadata agent, in ``[DEFAULT]``."""

import ipaddress
import re
import ssl
from typing import Final

from oslo_config import cfg

from dfmeta import errors, model
from dfmeta.conf.kinds import check_file, reloaded, without_password

_HOST: Final = re.compile(r"(?:\[([^\[\]]+)\]|([^\s/?#@\[\]:%]+))(?::([0-9]{1,5}))?")
"""An IPv6 address in brackets or a name, and a port."""

OPTS: Final = reloaded(
    cfg.StrOpt(
        "auth_ca_cert",
        help="PEM file with the certificates of the authorities for Nova's certificate. Unset: the "
        "system's authorities. Read at the start and at a SIGHUP.",
    ),
    cfg.StrOpt(
        "nova_metadata_host",
        default="127.0.0.1",
        # Neutron's name for it before its release of 2017; files of upgraded hosts still have it.
        deprecated_opts=[cfg.DeprecatedOpt("nova_metadata_ip")],
        help="Host of Nova's metadata API, or a comma list of hosts, each with an optional :port. "
        "They are tried in this order. A host that fails is skipped for 10 seconds, unless all "
        "hosts have failed. Write an IPv6 address with a port in brackets.",
    ),
    cfg.PortOpt(
        "nova_metadata_port",
        default=8775,
        min=1,
        help="TCP port of Nova's metadata API on hosts of nova_metadata_host without a :port.",
    ),
    cfg.StrOpt(
        "nova_metadata_protocol",
        default="http",
        choices=["http", "https"],
        help="Protocol of Nova's metadata API. Must match the service at nova_metadata_port.",
    ),
    cfg.BoolOpt(
        "nova_metadata_insecure",
        default=False,
        help="With https, do not check Nova's certificate. An attacker on the network path can "
        "then read user-data and send answers in Nova's name.",
    ),
    cfg.StrOpt(
        "nova_client_cert",
        help="PEM file with the client certificate for Nova, followed by the certificates of the "
        "chain to its authority. Read at the start and at a SIGHUP.",
    ),
    cfg.StrOpt(
        "nova_client_priv_key",
        help="PEM file with the private key of nova_client_cert, without a passphrase. Read at the "
        "start and at a SIGHUP; the daemon's user must be able to read it.",
    ),
    cfg.StrOpt(
        "metadata_proxy_shared_secret",
        default="",
        secret=True,
        help="Secret for the signature of instance ids. Must be the same as [neutron] "
        "metadata_proxy_shared_secret in nova.conf; if it differs, Nova answers 403. Required with "
        "backend = nova.",
    ),
)
for _option in OPTS:
    # Where the configuration of Neutron's extension metadata_path has it.
    _option.deprecated_opts.append(cfg.DeprecatedOpt(_option.name, group="METADATA"))


def hosts(conf: cfg.ConfigOpts) -> list[model.HttpHost]:
    """Return the hosts of nova_metadata_host, in its order.

    :raises ConfigError: for a list with an entry that is not a host.
    """
    return [
        _host(entry.strip(), conf.nova_metadata_port)
        for entry in conf.nova_metadata_host.split(",")
    ]


def check(conf: cfg.ConfigOpts) -> None:
    """Check the hosts, the secret and the files of certificates.

    :raises ConfigError: naming the option.
    """
    hosts(conf)
    if conf.df_metadata.backend == "nova" and not conf.metadata_proxy_shared_secret:
        raise errors.ConfigError(
            option="[DEFAULT] metadata_proxy_shared_secret",
            value="",
            cause="backend = nova needs it, since Nova refuses requests without a signature",
            remedy="Set it to the value of [neutron] metadata_proxy_shared_secret in nova.conf",
        )
    if bool(conf.nova_client_cert) != bool(conf.nova_client_priv_key):
        missing = "nova_client_priv_key" if conf.nova_client_cert else "nova_client_cert"
        raise errors.ConfigError(
            option=f"[DEFAULT] {missing}",
            value="",
            cause="a client certificate and its key must be set together",
            remedy="Set both, or neither",
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
        raise errors.ConfigError(
            option=option,
            value=path,
            cause="it contains no certificate that can be loaded",
            remedy="Name a file with certificates in PEM",
        ) from error


def _check_key(certificate: str, key: str) -> None:
    try:
        # An empty passphrase, since OpenSSL would otherwise ask for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, lambda: b"")
    except (OSError, ValueError) as error:
        differs = getattr(error, "reason", "") == "KEY_VALUES_MISMATCH"
        cause = (
            "it is not the key of the certificate that nova_client_cert names"
            if differs
            else "it contains no private key that can be loaded"
        )
        raise errors.ConfigError(
            option="[DEFAULT] nova_client_priv_key",
            value=key,
            cause=cause,
            remedy="Name the file with that certificate's private key in PEM, without a passphrase",
        ) from error


def _host(entry: str, default_port: int) -> model.HttpHost:
    match = _HOST.fullmatch(f"[{entry}]" if _is_ipv6(entry) else entry)
    six, name, port = match.groups() if match is not None else ("", "", "")
    number = int(port or default_port)
    if not (_is_name(name) if name else _is_ipv6(six)) or not 1 <= number <= 65535:
        raise errors.ConfigError(
            option="[DEFAULT] nova_metadata_host",
            value=without_password(entry),
            cause="it is not a host with an optional :port",
            remedy="Give names or addresses such as nova-1:8775, [2001:db8::1]:8775, with commas "
            "between them",
        )
    return model.HttpHost(name or str(ipaddress.ip_address(six)), number)


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def _is_name(text: str) -> bool:
    try:
        return bool(text.encode("idna")) and text.isprintable()
    except UnicodeError:
        return False
