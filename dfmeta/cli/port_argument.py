"""Finds the ports that the argument of a command names, and completes that argument."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from oslo_config import cfg

from dfmeta.cli.client import agent_of, make_host_settings
from dfmeta.cli.common import completions, load_config
from dfmeta.doctor import find_port
from dfmeta.doctor.facts import KnownPort
from dfmeta.errors import DfmetaError, NotRunningError, UsageError
from dfmeta.model import PortKind
from dfmeta.ovsdb.rows import Interface, Snapshot

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def complete_port(
    ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the words for a port that begin with the incomplete word, for a shell.

    They are the names of guests' ports, instances and instances' names of the running daemon, else
    the ports and instances of OVSDB; none if neither answers, or the configuration is wrong.
    """
    words: dict[str, str] = {}
    with contextlib.suppress(DfmetaError):
        for port in _ports(load_config(ctx.params.get("config_files") or ())):
            name, *others = (*port.names, port.instance)
            words |= {port.name: name} | dict.fromkeys((name, *others), port.name)
    return completions(words.items(), incomplete)


def _ports(conf: cfg.ConfigOpts) -> Iterable[KnownPort]:
    """Return guests' ports from the daemon, or else from OVSDB.

    :raises OvsdbError: when neither answers.
    """
    wanted = make_host_settings(conf)
    with contextlib.suppress(NotRunningError):
        return with_record_names(conf, agent_of(conf).ports(wanted.keys))
    from dfmeta.ovsdb.snapshot import read_snapshot

    return find_port.ovsdb_ports(read_snapshot(wanted.ovsdb), wanted.bridge)


def parent_of(conf: cfg.ConfigOpts, text: str) -> tuple[Interface, Snapshot]:
    """Return the interface of a parent that *text* names, and OVSDB's configuration.

    :param text: name, iface-id, MAC or instance of the VM's port.
    :raises OvsdbError: when OVSDB does not answer.
    :raises UsageError: when no port, several ports or a subport has that name.
    """
    # The IDL takes as long to import as all else of `dfmeta ports`, which does not need it.
    from dfmeta.ovsdb.snapshot import read_snapshot

    wanted = make_host_settings(conf)
    snapshot = read_snapshot(wanted.ovsdb)
    ports = find_port.ovsdb_ports(snapshot, wanted.bridge)
    matching = find_with_trunks(conf, ports, text, snapshot, bridge=wanted.bridge)
    parents = [port for port in matching if port.kind is not PortKind.SUBPORT]
    if len(parents) == 1:
        return next(row for row in snapshot.interfaces if row.name == parents[0].name), snapshot
    if parents:
        names = ", ".join(port.name for port in parents)
        raise UsageError(cause=f"{text} has several ports: {names}", remedy="Name one of them")
    if matching and matching[0].parent:
        port = matching[0]
        raise UsageError(
            cause=f"{port.name} is a subport of {port.parent}, with VID {port.segmentation_id}",
            remedy=f"Give its parent: {port.parent} --vid {port.segmentation_id}",
        )
    raise no_such_port(conf, snapshot, text)


def find_with_trunks(
    conf: cfg.ConfigOpts, ports: Iterable[KnownPort], text: str, snapshot: Snapshot, *, bridge: str
) -> list[KnownPort]:
    """Return the ports of :func:`find`, and those of trunks on whose bridges *text* names a port.

    :param bridge: name of the integration bridge.
    :raises UsageError: when several instances have that name.
    """
    ports = tuple(ports)
    matching = find(conf, ports, text)
    trunks = find_port.behind_trunk(ports, snapshot, text, bridge=bridge)
    return matching + [port for port in trunks if port not in matching]


def no_such_port(conf: cfg.ConfigOpts, snapshot: Snapshot, text: str) -> UsageError:
    """Return the error for a text that names no guest's port."""
    wanted = make_host_settings(conf)
    cause = find_port.no_port(snapshot, text, wanted=wanted, running=True)
    return UsageError(cause=cause, remedy="`dfmeta ports` lists the ports")


def find(conf: cfg.ConfigOpts, ports: Iterable[KnownPort], text: str) -> list[KnownPort]:
    """Return the guests' ports that *text* names: see :func:`dfmeta.doctor.find_port.named`.

    Libvirt's names of domains, and the names in records of the store, count last.

    :raises UsageError: when several instances have that name.
    """
    ports = tuple(ports)
    matching = list(find_port.named(ports, text))
    if matching and not all(text in port.names and text != port.name for port in matching):
        return matching
    matching = matching or _of_domain(conf, ports, text)
    if not matching:
        named = find_port.named(with_record_names(conf, ports), text)
        places = {(port.name, port.vid) for port in named}
        matching = [port for port in ports if (port.name, port.vid) in places]
    if several := find_port.several(matching):
        raise UsageError(
            cause=f"several instances have the name {text}: {several}",
            remedy="Give the name of one of these ports",
        )
    return matching


def _of_domain(conf: cfg.ConfigOpts, ports: tuple[KnownPort, ...], text: str) -> list[KnownPort]:
    """Return the ports of the libvirt domains on this host that have the name *text*."""
    from dfmeta.cli.store_target import Domains

    instances = Domains(conf).ids(text)
    return [port for instance in instances for port in find_port.named(ports, instance)]


def with_record_names(conf: cfg.ConfigOpts, ports: Iterable[KnownPort]) -> list[KnownPort]:
    """Return *ports* with the names in the records of their instances, from the running daemon."""
    names = agent_of(conf).record_names()
    return [replace(port, record_names=names.get(port.instance, ())) for port in ports]
