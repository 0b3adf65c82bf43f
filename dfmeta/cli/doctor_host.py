"""Checks of doctor and trace on the host: a packet's path from tap-metadata to the listener."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dfmeta.doctor import checks_host
from dfmeta.doctor.facts import Settings
from dfmeta.doctor.finding import Finding, unknown
from dfmeta.doctor.firewall import firewall, read_chains
from dfmeta.flows.family import IPV4, IPV6
from dfmeta.host.facts import HostFacts
from dfmeta.host.host_facts import read_host
from dfmeta.ovsdb.rows import Snapshot

IPV6_NAME = "-ipv6"
"""End of the name of a check that both versions of IP have, for IPv6."""


def read(wanted: Settings) -> HostFacts:
    """Read the host's side in the version of IP of *wanted*.

    :raises HostError: when the kernel does not answer.
    """
    return read_host(
        wanted.tap,
        wanted.host_ip,
        table=wanted.route_table,
        family=wanted.family,
        keys=wanted.keys,
        network=wanted.network,
    )


def way(host: HostFacts, wanted: Settings, snapshot: Snapshot | None) -> Iterator[Finding]:
    """Run every check of that path, except the check of the listener at its end.

    :param snapshot: None when OVSDB does not answer.
    """
    yield checks_host.device(host, wanted)
    yield from _routing(host, wanted)
    yield _checksum(host, wanted, snapshot)
    yield named(firewall(read_chains(), wanted.family.version), wanted)


def beside(host: HostFacts, wanted: Settings, *, running: bool) -> Iterator[Finding]:
    """Run the checks that another version of IP than IPv4 has of its own."""
    yield from _routing(host, wanted)
    yield named(firewall(read_chains(), wanted.family.version), wanted)
    yield listener(host, wanted, running=running)


def listener(host: HostFacts, wanted: Settings, *, running: bool) -> Finding:
    """Run the check of the listener at the end of the path."""
    return named(checks_host.listener(host, wanted, running=running), wanted)


def named(finding: Finding, wanted: Settings) -> Finding:
    """Return *finding* with the name that its check has for one version of IP."""
    if wanted.family is not IPV6:
        return finding
    return replace(finding, check=f"{finding.check}{IPV6_NAME}")


def _routing(host: HostFacts, wanted: Settings) -> Iterator[Finding]:
    yield named(checks_host.address(host, wanted), wanted)
    yield from (named(one, wanted) for one in checks_host.rules(host, wanted))
    yield named(checks_host.route(host, wanted), wanted)
    yield from (named(one, wanted) for one in checks_host.way_back(host, wanted))
    yield named(checks_host.neighbour(host, wanted), wanted)
    if wanted.family is IPV4:
        yield checks_host.rp_filter(host, wanted)


def _checksum(host: HostFacts, wanted: Settings, snapshot: Snapshot | None) -> Finding:
    if snapshot is None:
        return unknown("checksum", "OVSDB does not answer")
    bridge = snapshot.bridge(wanted.bridge)
    if bridge is None or host.up is None:
        return unknown("checksum", f"{wanted.bridge} or {wanted.tap} does not exist")
    return checks_host.checksum(host, bridge.datapath_type, wanted=wanted)
