"""The setup of the engine haproxy: its plan, and the guests that it may serve."""

import hashlib
import hmac
import resource
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from oslo_config import cfg

from dfmeta import errors, model
from dfmeta.conf import nova as nova_options
from dfmeta.http.http1 import host_header
from dfmeta.identity.registry import Registry
from dfmeta.proxy.engines.haproxy import engine, entries, plan, process
from dfmeta.proxy.tokens import TokenMode
from dfmeta.runtime.threads import call_in_thread, green_socket
from dfmeta.wiring.backends import make_app_settings, make_limits, make_rates
from dfmeta.wiring.services import find_haproxy


def make_setup(conf: cfg.ConfigOpts, registry: Registry) -> engine.Setup:
    """Return everything that haproxy's configuration depends on.

    :raises ConfigError: when the program cannot be used, or may not open as many files as it needs.
    :raises StartError: when a file with certificates cannot be read.
    """
    _check_files(conf)
    secrets = _secrets(conf)
    # In a thread, so that no guest waits for it.
    program = call_in_thread(find_haproxy, conf)
    return engine.Setup(
        plan=lambda: replace(make_plan(conf), program=program, secrets=secrets),
        entries=entries.Entries(registry, _signer(conf), _plain(conf)),
    )


def _check_files(conf: cfg.ConfigOpts) -> None:
    """Check that haproxy may open as many files as its connections need: it would not start.

    :raises ConfigError: when it may not.
    """
    maxconn = conf.haproxy.maxconn
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = process.descriptors_of(maxconn)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise errors.ConfigError(
            option="[haproxy] maxconn",
            value=maxconn,
            cause=f"it needs {needed} open files, and dfmeta-agent may have {hard}",
            remedy=f"Set a lower value, or LimitNOFILE={needed} in its unit and restart it",
        )


def make_plan(conf: cfg.ConfigOpts) -> plan.HaproxyPlan:
    """Return the plan; it has the present addresses of Nova's hosts, as a resolver gives them."""
    hosts = list(dict.fromkeys(nova_options.hosts(conf)))
    answers = make_app_settings(conf)
    return plan.HaproxyPlan(
        servers=tuple(server for host in hosts for server in _servers(host, _tls(conf))),
        several=len(hosts) > 1,
        tls=_tls(conf),
        insecure=conf.nova_metadata_insecure,
        limits=make_limits(conf),
        hold_timeout=conf.df_metadata.hold_timeout,
        timeout_answer=answers.timeout_answer,
        refuse_forwarded=answers.refuse_forwarded,
        debug=conf.debug,
        network_data_subports=conf.df_metadata.network_data_subports,
        threads=conf.haproxy.threads,
        maxconn=conf.haproxy.maxconn,
        hosts=tuple(_hosts(conf.df_metadata.ip, *conf.df_metadata.ip6)),
    )


def _hosts(*services: str) -> Iterator[str]:
    """Return the values of the Host header that a client of the service sends."""
    for service in services:
        yield model.HttpHost(service, 80).authority.removesuffix(":80")
        yield model.HttpHost(service, 80).authority


def _servers(host: model.HttpHost, tls: bool) -> Iterator[plan.NovaServer]:
    """Return the addresses of a host; none: the daemon's own engine asks it."""
    try:
        numeric = ip_address(host.host) is not None
    except ValueError:
        numeric = False
    if numeric and tls:
        # haproxy compares a certificate with names only.
        return
    try:
        infos = green_socket.getaddrinfo(host.host, host.port, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    for _family, _kind, _protocol, _name, address in infos:
        if "%" not in address[0]:
            yield plan.NovaServer(
                host=host.host,
                authority=host_header(host).decode("ascii"),
                address=ip_address(address[0]),
                port=host.port,
            )


def _tls(conf: cfg.ConfigOpts) -> bool:
    return bool(conf.nova_metadata_protocol == "https")


def _secrets(conf: cfg.ConfigOpts) -> plan.Secrets:
    if not _tls(conf):
        return plan.Secrets()
    files = [conf.nova_client_cert, conf.nova_client_priv_key]
    return plan.Secrets(
        ca=_content(conf.auth_ca_cert), cert=b"\n".join(_content(file) for file in files if file)
    )


def _content(file: str | None) -> bytes:
    if not file:
        return b""
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise errors.StartError(
            cause=f"certificates for Nova cannot be loaded: {error.strerror}: {file}",
            remedy="See auth_ca_cert, nova_client_cert and nova_client_priv_key",
        ) from error


def _signer(conf: cfg.ConfigOpts) -> Callable[[str], str]:
    secret = conf.metadata_proxy_shared_secret.encode()
    return lambda instance: hmac.new(secret, instance.encode(), hashlib.sha256).hexdigest()


def _plain(conf: cfg.ConfigOpts) -> Callable[[model.Identity, int], bool]:
    """Return whether haproxy may answer a guest: it cannot delay requests, nor check tokens."""
    limited, answers = make_rates(conf), make_app_settings(conf)

    def plain(identity: model.Identity, version: int) -> bool:
        mode = answers.http_tokens_of.get(identity.instance_id.lower(), answers.http_tokens)
        rated = limited.enabled and version in limited.ip_versions
        return not rated and mode is not TokenMode.REQUIRED and bool(identity.project_id)

    return plain
