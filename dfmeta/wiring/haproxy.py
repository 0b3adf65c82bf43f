"""The engine haproxy from the configuration: its program, its plan, and the guests it may serve."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from eventlet.green import socket as green_socket
from oslo_config import cfg

from dfmeta.conf import nova as nova_options
from dfmeta.exceptions import ConfigError, StartError
from dfmeta.model import HttpHost, Identity
from dfmeta.proxy.haproxy.config import NovaServer, Plan
from dfmeta.proxy.haproxy.engine import Setup
from dfmeta.proxy.haproxy.entries import Entries
from dfmeta.proxy.haproxy.process import Program, Secrets
from dfmeta.proxy.nova.request import host_header
from dfmeta.proxy.tokens import TokenMode
from dfmeta.registry import Registry
from dfmeta.wiring import backends
from dfmeta.wiring.limits import limits, rates

OLDEST: Final = (2, 6)
"""Oldest version of haproxy that was tried."""
FOLDERS: Final = ("/usr/sbin", "/usr/local/sbin")
_VERSION: Final = re.compile(r"HAProxy version ([0-9]+)\.([0-9]+)")
_ASKED: Final = 10.0
"""Seconds for the program to tell its version."""


def program(conf: cfg.ConfigOpts) -> Program:
    """Return the program.

    :raises ConfigError: when it is missing, does not run or is too old.
    """
    group = conf.haproxy
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *FOLDERS])
    binary = shutil.which(group.binary, path=path)
    if binary is None:
        raise _unusable(group.binary, "there is no such program")
    found = version(binary)
    if found is None:
        raise _unusable(group.binary, f"{binary} is not haproxy, or does not run")
    if found < OLDEST:
        raise _unusable(group.binary, f"it has version {found[0]}.{found[1]}")
    return Program(binary=binary, user=group.user)


def version(binary: str) -> tuple[int, int] | None:
    """Return the version of a program; None: it does not tell one."""
    try:
        said = subprocess.run(  # noqa: S603  # the operator's program
            [binary, "-v"], capture_output=True, text=True, timeout=_ASKED, check=True
        ).stdout
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(said)
    return (int(found[1]), int(found[2])) if found is not None else None


def setup(conf: cfg.ConfigOpts, registry: Registry) -> Setup:
    """Return everything that haproxy's configuration depends on.

    :raises ConfigError: when the program cannot be used.
    :raises StartError: when a file with certificates cannot be read.
    """
    return Setup(
        plan=lambda name: plan(conf, name),
        secrets=_secrets(conf),
        program=program(conf),
        entries=Entries(registry, _signer(conf), _plain(conf)),
    )


def plan(conf: cfg.ConfigOpts, name: str) -> Plan:
    """Return the plan; it has the present addresses of Nova's hosts, as a resolver gives them.

    :param name: of the daemon's listener.
    """
    hosts = list(dict.fromkeys(nova_options.hosts(conf)))
    answers = backends.settings(conf)
    return Plan(
        servers=tuple(one for host in hosts for one in _servers(host, _tls(conf))),
        several=len(hosts) > 1,
        tls=_tls(conf),
        insecure=conf.nova_metadata_insecure,
        limits=limits(conf),
        hold_timeout=conf.df_metadata.hold_timeout,
        timeout_answer=answers.timeout_answer,
        refuse_forwarded=answers.refuse_forwarded,
        network_data_subports=conf.df_metadata.network_data_subports,
        threads=conf.haproxy.threads,
        maxconn=conf.haproxy.maxconn,
        hosts=tuple(_hosts(conf.df_metadata.ip, *conf.df_metadata.ip6)),
        handover=name,
    )


def _hosts(*services: str) -> Iterator[str]:
    """Return the values of the Host header that a client of the service sends."""
    for service in services:
        yield HttpHost(service, 80).authority.removesuffix(":80")
        yield HttpHost(service, 80).authority


def _servers(host: HttpHost, tls: bool) -> Iterator[NovaServer]:
    """Return the addresses of a host; none: the daemon's own engine asks it."""
    try:
        numeric = ip_address(host.host) is not None
    except ValueError:
        numeric = False
    if numeric and tls:
        # haproxy compares a certificate with names only.
        return
    try:
        found = green_socket.getaddrinfo(host.host, host.port, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    for _family, _kind, _protocol, _name, address in found:
        if "%" not in address[0]:
            yield NovaServer(
                host=host.host,
                authority=host_header(host).decode("ascii"),
                address=ip_address(address[0]),
                port=host.port,
            )


def _tls(conf: cfg.ConfigOpts) -> bool:
    return bool(conf.nova_metadata_protocol == "https")


def _secrets(conf: cfg.ConfigOpts) -> Secrets:
    if not _tls(conf):
        return Secrets()
    files = [conf.nova_client_cert, conf.nova_client_priv_key]
    return Secrets(
        ca=_content(conf.auth_ca_cert), cert=b"\n".join(_content(one) for one in files if one)
    )


def _content(file: str | None) -> bytes:
    if not file:
        return b""
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise StartError(
            cause=f"certificates for Nova cannot be loaded: {error.strerror}: {file}",
            remedy="See auth_ca_cert, nova_client_cert and nova_client_priv_key",
        ) from error


def _signer(conf: cfg.ConfigOpts) -> Callable[[str], str]:
    secret = conf.metadata_proxy_shared_secret.encode()
    return lambda instance: hmac.new(secret, instance.encode(), hashlib.sha256).hexdigest()


def _plain(conf: cfg.ConfigOpts) -> Callable[[Identity, int], bool]:
    """Return whether haproxy may answer a guest: it cannot delay requests, nor check tokens."""
    limited, answers = rates(conf), backends.settings(conf)

    def plain(identity: Identity, version: int) -> bool:
        mode = answers.http_tokens_of.get(identity.instance_id.lower(), answers.http_tokens)
        rated = limited.enabled and version in limited.ip_versions
        return not rated and mode is not TokenMode.REQUIRED and bool(identity.project_id)

    return plain


def _unusable(binary: str, cause: str) -> ConfigError:
    return ConfigError(
        option="[haproxy] binary",
        value=binary,
        cause=cause,
        remedy="Install the package haproxy, version "
        f"{OLDEST[0]}.{OLDEST[1]} or later, or set engine = wsgi",
    )
