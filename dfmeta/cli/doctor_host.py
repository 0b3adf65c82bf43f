"""Checks of doctor and trace on the host: a packet's path from tap-metadata to the listener."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address

from dfmeta.inspect import checks_host, firewall
from dfmeta.inspect.facts import HostFacts, Settings, Snapshot
from dfmeta.inspect.finding import Finding, unknown
from dfmeta.inspect.programs import read_filters


def way(host: HostFacts, wanted: Settings, snapshot: Snapshot | None) -> Iterator[Finding]:
    """Run every check of that path, except the check of the listener at its end.

    :param snapshot: None when OVSDB does not answer.
    """
    yield checks_host.device(host, wanted)
    yield checks_host.address(host, wanted)
    yield from checks_host.rules(host, wanted)
    yield checks_host.route(host, wanted)
    yield from checks_host.way_back(host, wanted)
    yield checks_host.neighbour(host, wanted)
    yield checks_host.rp_filter(host, wanted)
    yield _checksum(host, wanted, snapshot)
    yield _firewall(wanted)


def _checksum(host: HostFacts, wanted: Settings, snapshot: Snapshot | None) -> Finding:
    if snapshot is None:
        return unknown("checksum", "OVSDB does not answer")
    bridge = snapshot.bridge(wanted.bridge)
    if bridge is None or host.up is None:
        return unknown("checksum", f"{wanted.bridge} or {wanted.tap} does not exist")
    return checks_host.checksum(host, bridge.datapath_type, wanted=wanted)


def _firewall(wanted: Settings) -> Finding:
    if wanted.port is None:
        return unknown("firewall", "the proxy's port is not known")
    syn = firewall.Syn(wanted.tap, IPv4Address(wanted.host_ip), wanted.port)
    return firewall.judge(read_filters(syn), wanted)
