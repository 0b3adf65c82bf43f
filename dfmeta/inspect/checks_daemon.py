"""Judgements on the daemon, its memory and its guests' ports. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dfmeta.inspect.facts import KnownPort, Settings
from dfmeta.inspect.finding import Finding, listed, ok, wrong
from dfmeta.model import PortState

START = "start dfmeta-agent (`systemctl start dfmeta-agent`), and read its log if it ends again"


@dataclass(frozen=True, slots=True)
class DaemonFacts:
    """What the daemon's admin listener says."""

    running: bool
    ready: bool = False
    missing: tuple[str, ...] = ()
    cause: str = ""
    """Why it counts as not running."""


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """What state_path is."""

    there: bool
    folder: bool = True
    mode: int = 0o700
    open_files: tuple[str, ...] = ()
    """Files in it that others than their owner may read or write."""
    error: str = ""


_MISSING = {
    "ovsdb": "it has no connection to OVSDB",
    "bridge": "OVSDB has no such bridge",
    "flows": "the switch has not confirmed its flows",
    "proxy": "the proxy does not listen, or tap-metadata is not in place",
}


def daemon(facts: DaemonFacts, wanted: Settings) -> Finding:
    """Whether dfmeta-agent runs and is ready."""
    if not facts.running:
        return wrong(
            "daemon",
            f"dfmeta-agent is not running: nobody answers at {wanted.admin}: {facts.cause}",
            f"{START}; or name its configuration with --config-file",
        )
    if not facts.ready:
        words = [_MISSING.get(one, one) for one in facts.missing]
        return wrong(
            "daemon",
            f"dfmeta-agent runs and is not ready: {'; '.join(words) or 'it does not say why'}",
            "mend what the other lines name; when there is none, wait until it has started, "
            "and then read its log",
        )
    return ok("daemon", "dfmeta-agent runs and is ready")


def state_path(facts: FolderFacts, wanted: Settings) -> Finding:
    """Whether state_path is a folder for the daemon alone."""
    path = wanted.state_path
    if not facts.there:
        return wrong(
            "state_path",
            f"{path} is not there: addresses and the port are forgotten at a restart",
            f"`mkdir -p -m 700 {path}`, or start dfmeta-agent, which makes it",
        )
    if facts.error or not facts.folder:
        return wrong(
            "state_path",
            f"{path} cannot be looked into: {facts.error or 'it is no folder'}",
            "run doctor as root; if that is so already, give [df_metadata] state_path a folder "
            "of the daemon's own",
        )
    if facts.mode & 0o077:
        return wrong(
            "state_path",
            f"{path} has mode {facts.mode:04o}: others than its owner get at the store",
            f"`chmod 700 {path}`",
        )
    return ok("state_path", f"{path} is its owner's alone")


def ports(known: Iterable[KnownPort], wanted: Settings, *, running: bool) -> Iterator[Finding]:
    """Whether each guest's port can be served; a dead one is its owner's wish.

    :param running: they come from the running daemon, who has asked all sources.
    """
    by_state: dict[PortState, list[KnownPort]] = {}
    for port in known:
        by_state.setdefault(port.state, []).append(port)
    served = by_state.get(PortState.SERVED, [])
    strangers = [port for port in served if wanted.needs_project and running and not port.project]
    found = [
        *_broken(by_state.get(PortState.BROKEN, [])),
        *_without_instance(by_state.get(PortState.NO_INSTANCE, []), wanted),
        *_without_number(by_state.get(PortState.NO_OFPORT, [])),
        *_without_project(strangers, wanted),
    ]
    yield from found
    if not found:
        dead = by_state.get(PortState.DEAD, [])
        off = f"; switched off by their owner: {listed(p.name for p in dead)}" if dead else ""
        count = sum(map(len, by_state.values()))
        yield ok("ports", f"{len(served)} of {count} guests' ports on {wanted.bridge} served{off}")


def _broken(ports: Sequence[KnownPort]) -> Iterator[Finding]:
    if ports:
        yield wrong(
            "ports",
            f"broken: {listed(f'{port.name} ({port.fault})' for port in ports)}",
            "mend its external_ids: "
            f"`ovs-vsctl set Interface {ports[0].name} external_ids:vm-uuid=<instance's UUID>`",
        )


def _without_instance(ports: Sequence[KnownPort], wanted: Settings) -> Iterator[Finding]:
    if ports:
        others = [one for one in wanted.sources if one != "ovsdb"]
        nor = f", and {listed(others)} says none" if others else ""
        yield wrong(
            "ports",
            f"no instance is known for {listed(port.name for port in ports)}: "
            f"external_ids:vm-uuid is missing{nor}",
            "see that os-vif or libvirt sets it, or "
            f"`ovs-vsctl set Interface {ports[0].name} external_ids:vm-uuid=<instance's UUID>`",
        )


def _without_number(ports: Sequence[KnownPort]) -> Iterator[Finding]:
    if ports:
        yield wrong(
            "ports",
            f"Open vSwitch has given no port number to {listed(port.name for port in ports)}",
            f"see why: `ovs-vsctl get Interface {ports[0].name} error`; its device may be missing",
        )


def _without_project(ports: Sequence[KnownPort], wanted: Settings) -> Iterator[Finding]:
    if ports:
        yield wrong(
            "ports",
            f"no project is known for {listed(port.name for port in ports)}, and Nova answers "
            f"nobody without: {listed(wanted.sources)} says none",
            "add libvirt or neutron to [df_metadata] identity_sources, or `ovs-vsctl set Interface "
            f"{ports[0].name} external_ids:project-id=<project's id>`",
        )
