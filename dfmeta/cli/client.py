"""Requests to the running daemon, over its admin listener, and the values in force there.

Commands use the daemon's values instead of those of their files, which may have changed since the
daemon read them. Checks and traces are about the host as the daemon has configured it.

Trust: any user of the host may listen at admin_listen while no daemon does, and doctor, which runs
as root, sends tokens and signatures to the servers that options name. So options are accepted only
from a listener of root, of this user or of state_path's owner.
"""

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from oslo_config import cfg

from dfmeta.conf import agent, metadata, values
from dfmeta.doctor.agent import Agent, HangsError, another_program
from dfmeta.doctor.facts import HostSettings, MetaSide
from dfmeta.doctor.finding import listed
from dfmeta.errors import NotRunningError, UpstreamError
from dfmeta.host.listeners import TcpListener, listener_at, listeners_of
from dfmeta.host.process import read_process
from dfmeta.http.client import HttpClient, UrlRequest
from dfmeta.http.responses import HttpResponse
from dfmeta.ovsdb.vswitchd import management_socket
from dfmeta.runtime import clock, saved_state
from dfmeta.runtime.clock import ANSWER_TIMEOUT
from dfmeta.store import strictjson
from dfmeta.wiring.process import lock_name

OPTIONS: Final = "/options"
T = TypeVar("T")


def agent_of(conf: cfg.ConfigOpts) -> Agent:
    """Return the running daemon that *conf* is for."""
    return Agent(conf.df_metadata.admin_listen, partial(request_agent, conf))


def request_agent(
    conf: cfg.ConfigOpts, path: str, method: str = "GET", *, timeout: float = ANSWER_TIMEOUT
) -> tuple[int, Any]:
    """Return the status and the JSON document of an answer; None for one without a body.

    :param timeout: seconds.
    :raises HangsError: when the daemon's process is there and does not answer in time.
    :raises NotRunningError: when there is no answer, or it is not JSON.
    """
    address = conf.df_metadata.admin_listen
    try:
        response = _request(address, path, method, timeout=timeout)
    except UpstreamError as error:
        pid = _daemon_pid(conf) if isinstance(error.__cause__, TimeoutError) else 0
        if pid:
            raise HangsError(
                pid=pid,
                cause=f"it does not answer at {address} within {timeout:g} s",
                remedy="Restart it: systemctl restart dfmeta-agent",
            ) from error
        raise NotRunningError(
            address=address,
            cause=error.cause,
            remedy="Start it, or name its configuration with --config-file",
        ) from error
    try:
        return response.status, None if response.status == 204 else strictjson.loads(response.body)
    except ValueError as error:
        raise another_program(address, f"the answer for {path} is not JSON") from error


def _request(address: str, path: str, method: str = "GET", *, timeout: float) -> HttpResponse:
    deadline = clock.now() + timeout
    return HttpClient().handle_request(
        UrlRequest(f"http://{address}{path}", deadline=deadline, method=method)
    )


def _daemon_pid(conf: cfg.ConfigOpts) -> int:
    """Return the process of the daemon that *conf* is for; 0: there is none, or it is not visible.

    It does not have to answer.
    """
    group = conf.df_metadata
    process = read_process(lock_name(group.ovsdb_connection, group.integration_bridge))
    return process.pid if process is not None else 0


def with_running(conf: cfg.ConfigOpts, call: Callable[[], T]) -> T:
    """Return the result of *call*, which uses *conf*, even if admin_listen changed since the
    daemon's start.

    :raises NotRunningError: when the daemon does not run.
    """
    try:
        return call()
    except NotRunningError:
        if take_over(conf).cause:
            raise
        return call()


@dataclass(frozen=True)
class InForce:
    """The result of setting a command's configuration to the daemon's values."""

    differences: values.Differences = field(default_factory=values.Differences)
    cause: str = ""
    """The reason why the daemon's values are unknown; empty when they are in use."""


def take_over(conf: cfg.ConfigOpts) -> InForce:
    """Set *conf* to the values of the running daemon; leave it unchanged if none runs."""
    group = conf.df_metadata
    address = group.admin_listen
    trusted = {0, os.geteuid(), _owner(group.state_path)}
    listener = listener_at(address)
    listeners = _daemon_listeners(conf)
    if listeners and listener not in listeners:
        address = _admin_address(
            each for each in listeners if each.uid in trusted and str(each.address) != group.host_ip
        )
        address = address or group.admin_listen
        listener = listener_at(address)
    if listener is None:
        return InForce(cause=f"nothing listens at {address}")
    if listener.uid not in trusted:
        return InForce(cause=f"the program at {address} belongs to user {listener.uid}")
    try:
        return InForce(values.take(conf, _options(address)))
    except UpstreamError as error:
        return InForce(cause=f"{address} does not report them: {error.cause}")
    except ValueError as error:
        return InForce(cause=f"{address} does not report them: {error}")


def report_differences(in_force: InForce) -> None:
    """Print on stderr the options whose values in the daemon, which a command uses, differ."""
    differing = [*in_force.differences.restart, *in_force.differences.reload]
    if differing:
        click.echo(
            f"dfmeta: dfmeta-agent runs with other values than these files in {listed(differing)}; "
            "this command uses the daemon's values, and `dfmeta doctor` shows the remedy",
            err=True,
        )


def _daemon_listeners(conf: cfg.ConfigOpts) -> list[TcpListener]:
    """Return the listeners of this bridge's daemon; empty if it does not run or is not visible."""
    pid = _daemon_pid(conf)
    return listeners_of(pid) if pid else []


def _admin_address(listeners: Iterable[TcpListener]) -> str:
    """Return the address of the daemon's admin listener; empty if no listener answers."""
    for listener in listeners:
        with contextlib.suppress(UpstreamError, ValueError):
            if _options(listener.address_and_port):
                return listener.address_and_port
    return ""


def _options(address: str) -> object:
    """Return the options that the program at *address* reports.

    :raises UpstreamError, ValueError: when there is no such answer.
    """
    response = _request(address, OPTIONS, timeout=ANSWER_TIMEOUT)
    if response.status != HTTPStatus.OK:
        raise ValueError(f"GET {OPTIONS} is answered with {response.status}")
    return strictjson.loads(response.body)


def _owner(path: str) -> int:
    try:
        return os.stat(path).st_uid
    except OSError:
        return 0


def make_host_settings(conf: cfg.ConfigOpts) -> HostSettings:
    """Return the settings of the host that follow from *conf* and state_path."""
    group = conf.df_metadata
    bridge, ovsdb = group.integration_bridge, group.ovsdb_connection
    meta, state = metadata.meta_of(conf), saved_state.SavedState()
    with contextlib.suppress(*saved_state.UNREADABLE):
        state = saved_state.read_state(Path(group.state_path))
    return HostSettings(
        bridge=bridge,
        tap=group.metadata_interface,
        ip=group.ip,
        host_ip=group.host_ip,
        port=group.port or state.port or None,
        listener=state.listener,
        route_table=group.route_table,
        layout=agent.layout_of(group),
        ovsdb=ovsdb,
        socket=str(management_socket(group.openflow_connection, ovsdb, bridge)),
        admin=group.admin_listen,
        state_path=group.state_path,
        sources=tuple(group.identity_sources),
        needs_project=group.backend == "nova",
        host_service=state.host_service,
        ip6=tuple(str(IPv6Address(text)) for text in group.ip6),
        host_ip6=str(IPv6Address(group.host_ip6)),
        listener6=state.listener6,
        keys=metadata.keys_of(conf),
        meta=None
        if meta is None
        else MetaSide(
            meta,
            conf.METADATA.provider_vlan_id,
            str(management_socket("auto", ovsdb, meta.bridge)),
        ),
    )
