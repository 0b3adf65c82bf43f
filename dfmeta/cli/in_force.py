"""The values that the running daemon has, in place of those of a command's files.

A command's files may have been changed since the daemon read them. What a check or a trace says is
about the host as the daemon has made it.

Trust: any user of the host may listen at admin_listen while no daemon does, and doctor, which is
root, shows tokens and signatures to the servers that options name. So an answer counts only where
the listener is root's, this user's or that of state_path's owner.
"""

from __future__ import annotations

import contextlib
import http.client
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import click
from oslo_config import cfg

from dfmeta.cli.client import ask_agent
from dfmeta.conf import values
from dfmeta.conf.values import Taken
from dfmeta.exceptions import NotRunningError
from dfmeta.host.listeners import TcpListener, listener_at, listeners_of
from dfmeta.host.process import read_process
from dfmeta.inspect.finding import listed
from dfmeta.store import strictjson
from dfmeta.wiring.lock import lock_name

TIMEOUT = 3.0
"""Seconds for the daemon's answer."""
PATH = "/options"


@dataclass(frozen=True)
class InForce:
    """What has become of a command's configuration."""

    taken: Taken = field(default_factory=Taken)
    cause: str = ""
    """Why the daemon's values are not known; empty when they have been taken."""


def take_over(conf: cfg.ConfigOpts) -> InForce:
    """Give *conf* the values of the daemon that runs; without one it stays as it is."""
    group = conf.df_metadata
    place = group.admin_listen
    trusted = {0, os.geteuid(), _owner(group.state_path)}
    listener = listener_at(place)
    own = _own_listeners(conf)
    if own and listener not in own:
        answering = [one for one in own if one.uid in trusted and str(one.address) != group.host_ip]
        place = _elsewhere(answering) or place
        listener = listener_at(place)
    if listener is None:
        return InForce(cause=f"nothing listens at {place}")
    if listener.uid not in trusted:
        return InForce(cause=f"the program at {place} is one of user {listener.uid}")
    try:
        return InForce(values.take(conf, _ask(place)))
    except (OSError, http.client.HTTPException) as error:
        cause = getattr(error, "strerror", None) or str(error) or "no answer in time"
        return InForce(cause=f"{place} does not tell them: {cause}")
    except ValueError as error:
        return InForce(cause=f"{place} does not tell them: {error}")


def ask_running(conf: cfg.ConfigOpts, path: str) -> Any:
    """Get *path* from the daemon, also where admin_listen has changed since it started.

    :raises NotRunningError: when it does not run.
    """
    try:
        return ask_agent(conf, path)
    except NotRunningError:
        if take_over(conf).cause:
            raise
        return ask_agent(conf, path)


def say(found: InForce) -> None:
    """Tell the operator on stderr where the daemon's values, by which a command goes, differ."""
    other = [*found.taken.restart, *found.taken.reload]
    if other:
        click.echo(
            f"dfmeta: dfmeta-agent runs with other values than these files in {listed(other)}; "
            "this goes by the daemon's, and `dfmeta doctor` says what to do",
            err=True,
        )


def _own_listeners(conf: cfg.ConfigOpts) -> list[TcpListener]:
    """Listeners of the daemon of this bridge; none where it does not run, or cannot be seen."""
    group = conf.df_metadata
    process = read_process(lock_name(group.ovsdb_connection, group.integration_bridge))
    return listeners_of(process.pid) if process is not None else []


def _elsewhere(own: Iterable[TcpListener]) -> str:
    """Where the daemon has its admin listener; empty where it answers nowhere."""
    for one in own:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            if _ask(one.address_and_port):
                return one.address_and_port
    return ""


def _ask(place: str) -> object:
    """:raises OSError, HTTPException, ValueError: there is no such answer."""
    connection = http.client.HTTPConnection(place, timeout=TIMEOUT)
    try:
        connection.request("GET", PATH, headers={"Connection": "close"})
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise ValueError(f"GET {PATH} is answered with {response.status}")
    return strictjson.loads(body)


def _owner(path: str) -> int:
    try:
        return os.stat(path).st_uid
    except OSError:
        return 0
