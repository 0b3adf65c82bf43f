"""The running daemon's values, which commands use instead of those of their files.

A command's files may have changed since the daemon read them. Checks and traces are about the host
as the daemon has configured it.

Trust: any user of the host may listen at admin_listen while no daemon does, and doctor, which runs
as root, sends tokens and signatures to the servers that options name. So an answer is accepted only
from a listener of root, of this user or of state_path's owner.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

import click
from oslo_config import cfg

from dfmeta.cli.client import ask_agent, request_admin
from dfmeta.conf import values
from dfmeta.conf.values import Differences
from dfmeta.doctor.finding import listed
from dfmeta.errors import NotRunningError, UpstreamError
from dfmeta.host.listeners import listener_at, listeners_of
from dfmeta.host.process import read_process
from dfmeta.host.sock_diag import TcpListener
from dfmeta.store import strictjson
from dfmeta.wiring.process import lock_name

TIMEOUT = 3.0
"""Seconds for the daemon's answer."""
PATH = "/options"
T = TypeVar("T")


@dataclass(frozen=True)
class InForce:
    """The result of setting a command's configuration to the daemon's values."""

    differences: Differences = field(default_factory=Differences)
    cause: str = ""
    """The reason why the daemon's values are unknown; empty when they are in use."""


def take_over(conf: cfg.ConfigOpts) -> InForce:
    """Set *conf* to the values of the running daemon; leave it unchanged if none runs."""
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
        return InForce(cause=f"the program at {place} belongs to user {listener.uid}")
    try:
        return InForce(values.take(conf, _ask(place)))
    except UpstreamError as error:
        return InForce(cause=f"{place} does not report them: {error.cause}")
    except ValueError as error:
        return InForce(cause=f"{place} does not report them: {error}")


def ask_running(conf: cfg.ConfigOpts, path: str) -> Any:
    """Return the daemon's JSON document at *path*, even if admin_listen changed since its start.

    :raises NotRunningError: when the daemon does not run.
    """
    return running(conf, lambda: ask_agent(conf, path))


def running(conf: cfg.ConfigOpts, ask: Callable[[], T]) -> T:
    """Return the result of *ask*, which uses *conf*; see :func:`ask_running`.

    :raises NotRunningError: when the daemon does not run.
    """
    try:
        return ask()
    except NotRunningError:
        if take_over(conf).cause:
            raise
        return ask()


def say(found: InForce) -> None:
    """Print on stderr the options whose values in the daemon, which a command uses, differ."""
    other = [*found.differences.restart, *found.differences.reload]
    if other:
        click.echo(
            f"dfmeta: dfmeta-agent runs with other values than these files in {listed(other)}; "
            "this command uses the daemon's values, and `dfmeta doctor` shows the remedy",
            err=True,
        )


def _own_listeners(conf: cfg.ConfigOpts) -> list[TcpListener]:
    """Return the listeners of this bridge's daemon; empty if it does not run or is not visible."""
    group = conf.df_metadata
    process = read_process(lock_name(group.ovsdb_connection, group.integration_bridge))
    return listeners_of(process.pid) if process is not None else []


def _elsewhere(own: Iterable[TcpListener]) -> str:
    """Return the address of the daemon's admin listener; empty if no listener answers."""
    for one in own:
        with contextlib.suppress(UpstreamError, ValueError):
            if _ask(one.address_and_port):
                return one.address_and_port
    return ""


def _ask(place: str) -> object:
    """Return the document of :data:`PATH` at *place*.

    :raises UpstreamError, ValueError: when there is no such answer.
    """
    response = request_admin(place, PATH, timeout=TIMEOUT)
    if response.status != HTTPStatus.OK:
        raise ValueError(f"GET {PATH} is answered with {response.status}")
    return strictjson.loads(response.body)


def _owner(path: str) -> int:
    try:
        return os.stat(path).st_uid
    except OSError:
        return 0
