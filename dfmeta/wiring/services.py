"""Clients of Nova, Neutron and the upstream store, and the program haproxy, from the configuration.

The module does not use the hub, so that commands can use it too.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from oslo_config import cfg

from dfmeta.conf import neutron as neutron_options
from dfmeta.conf import nova as nova_options
from dfmeta.conf.kinds import HAPROXY_ACCOUNT, account_of
from dfmeta.errors import ConfigError
from dfmeta.neutron.client import NeutronApi
from dfmeta.proxy.backends.nova_requests import NovaSettings
from dfmeta.proxy.engines.haproxy.plan import Program
from dfmeta.runtime.clock import ANSWER_TIMEOUT

if TYPE_CHECKING:
    from dfmeta.http.client import Resolve
    from dfmeta.store.db.repository import Repository
    from dfmeta.store.lookup.puller import Puller
    from dfmeta.store.lookup.upstream import TokenSource, Upstream

LOG = logging.getLogger(__name__)

HAPROXY_OLDEST: Final = (2, 6)
"""Oldest version of haproxy that was tried."""
HAPROXY_FOLDERS: Final = ("/usr/sbin", "/usr/local/sbin")
_DESCRIPTORS: Final = 64
"""Descriptors for a program that only prints its version."""
_VERSION: Final = re.compile(r"HAProxy version (([0-9]+)\.([0-9]+)\S*)")


def make_nova_settings(conf: cfg.ConfigOpts) -> NovaSettings:
    """Read Nova's options.

    :raises ConfigError: for a list of hosts with an entry that is not a host.
    """
    return NovaSettings(
        hosts=tuple(nova_options.hosts(conf)),
        secret=conf.metadata_proxy_shared_secret.encode(),
        protocol=conf.nova_metadata_protocol,
        insecure=conf.nova_metadata_insecure,
        ca_cert=conf.auth_ca_cert,
        client_cert=conf.nova_client_cert,
        client_key=conf.nova_client_priv_key,
    )


def make_neutron_client(conf: cfg.ConfigOpts) -> NeutronApi:
    """Build the client of ``[neutron]``; send nothing yet.

    :raises ConfigError: when its options are wrong, or keystoneauth1 is not installed.
    """
    group = conf.neutron
    return NeutronApi(
        neutron_options.session(conf),
        host=neutron_host(conf),
        where={"interface": group.valid_interfaces, "region_name": group.region_name},
        endpoint=group.endpoint_override,
    )


def neutron_host(conf: cfg.ConfigOpts) -> str:
    """Return the name of this host in Neutron's ``binding:host_id``."""
    return str(conf.neutron.host or socket.gethostname())


def southbound(conf: cfg.ConfigOpts) -> str:
    """Return the configured address of OVN's southbound database, or an empty one.

    This process uses the configured files for it.
    """
    from dfmeta.ovsdb.idl import use_files

    group = conf.ovn
    use_files(group.ovn_sb_private_key, group.ovn_sb_certificate, group.ovn_sb_ca_cert)
    return ",".join(group.ovn_sb_connection or ())


def make_puller(
    conf: cfg.ConfigOpts, repository: Repository, *, resolve: Resolve | None = None
) -> Puller | None:
    """Build the puller, which reads *repository* and looks up missing records upstream.

    :param resolve: see :func:`make_upstream`.
    :returns: None without an upstream store.
    :raises ConfigError: for a token file that cannot be used.
    """
    group = conf.store
    upstream = make_upstream(conf, resolve=resolve)
    if upstream is None:
        return None
    from dfmeta.store.lookup.puller import Lifetimes, Puller

    if group.lookup_token_file or group.lookup_issuer:
        for option in ("lookup_base_url", "lookup_issuer"):
            if (group[option] or "https:").lower().startswith("http:"):
                LOG.warning(
                    "[store] %s is an http URL, so an attacker on the network path can read "
                    "tokens and secrets. Use https",
                    option,
                )
    lifetimes = Lifetimes(negative=group.lookup_negative_ttl, expiry=group.lookup_expiry)
    return Puller(repository, upstream, lifetimes=lifetimes)


def make_upstream(conf: cfg.ConfigOpts, *, resolve: Resolve | None = None) -> Upstream | None:
    """Build the client of the upstream store; send nothing yet.

    The environment's HTTP proxies are not used, since a metadata store is in the same network.

    :param resolve: returns a name's addresses within a time limit; None: the C library, without a
        time limit.
    :returns: None without an upstream store.
    :raises ConfigError: for a token file that cannot be used.
    """
    group = conf.store
    if not group.lookup_base_url:
        return None
    from dfmeta.http import client as http_client
    from dfmeta.store.lookup.tokens import Credentials, IssuerToken
    from dfmeta.store.lookup.upstream import Patience, Upstream

    urls = (group.lookup_base_url, group.lookup_issuer or "")
    tls = any(url.lower().startswith("https:") for url in urls)
    client = http_client.HttpClient(tls=tls, resolve=resolve or http_client.resolve)
    tokens: TokenSource | None = _file_token(group.lookup_token_file, group.lookup_base_url)
    if group.lookup_issuer:
        credentials = Credentials(
            issuer=group.lookup_issuer,
            client_id=group.lookup_client_id,
            client_secret=group.lookup_client_secret,
            audience=group.lookup_audience or "",
            scopes=tuple(group.lookup_scopes),
        )
        tokens = IssuerToken(credentials, client)
    return Upstream(
        group.lookup_base_url,
        client=client,
        tokens=tokens,
        patience=Patience(timeout=group.lookup_timeout, retries=group.lookup_retries),
    )


def _file_token(path: str | None, upstream: str) -> TokenSource | None:
    if not path:
        return None
    from dfmeta.store.lookup.tokens import FileToken, read_token, reason

    try:
        read_token(Path(path))
    except (OSError, ValueError) as error:
        raise ConfigError(
            option="[store] lookup_token_file",
            value=path,
            cause=reason(error),
            remedy="Write the token that dfmeta token create prints into it, with mode 0600",
        ) from error
    return FileToken(Path(path), upstream)


class HaproxyVersion(NamedTuple):
    """The version of a program haproxy, as it prints it."""

    text: str
    """The version as it is written, such as ``2.6.12-1+deb12u3``."""
    number: tuple[int, int]
    """Its first two numbers."""
    lua: bool
    """Whether the program was built with Lua, as those of all distributions are."""


def find_haproxy(conf: cfg.ConfigOpts) -> Program:
    """Return the program haproxy, after it has printed its version. Waits for it.

    :raises ConfigError: when it is missing, does not run as the user, or is too old.
    """
    group, user = conf.haproxy, account_of(conf.haproxy.user, HAPROXY_ACCOUNT)
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *HAPROXY_FOLDERS])
    binary = shutil.which(group.binary, path=path)
    if binary is None:
        raise _unusable(group.binary, "there is no such program")
    version = haproxy_version(Program(binary=binary, user=user))
    if version is None:
        as_user = f"as user {user}" if user else "without privileges"
        raise _unusable(group.binary, f"{binary} is not haproxy, or does not run {as_user}")
    if version.number < HAPROXY_OLDEST:
        raise _unusable(group.binary, f"{binary} has version {version.text}")
    return Program(binary=binary, user=user, version=version.text, lua=version.lua)


def haproxy_version(program: Program) -> HaproxyVersion | None:
    """Return the version that a program prints; None: it prints none.

    The program runs as it does for guests: as its user, without privileges.
    """
    try:
        output = subprocess.run(  # noqa: S603  # the operator's program
            program.command("-vv", descriptors=_DESCRIPTORS),
            capture_output=True,
            text=True,
            timeout=ANSWER_TIMEOUT,
            check=True,
        ).stdout
    except Exception as error:
        # OSError, ValueError, SubprocessError; and after eventlet's patch a TimeoutExpired that is
        # not Python's.
        LOG.info("%s does not tell its version: %s", program.binary, error)
        return None
    match = _VERSION.search(output)
    if match is None:
        return None
    return HaproxyVersion(match[1], (int(match[2]), int(match[3])), "+LUA" in output.split())


def _unusable(binary: str, cause: str) -> ConfigError:
    return ConfigError(
        option="[haproxy] binary",
        value=binary,
        cause=cause,
        remedy="Install the package haproxy, version "
        f"{HAPROXY_OLDEST[0]}.{HAPROXY_OLDEST[1]} or later, or set engine = wsgi",
    )
