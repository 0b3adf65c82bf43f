"""Builds the listings that the daemon serves to dfmeta's commands."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dfmeta.flows.integration_bridge import usable_next_hops
from dfmeta.flows.pipeline import METADATA_IP
from dfmeta.identity.registry import Registry
from dfmeta.model import Port, PortState
from dfmeta.proxy.recent import (
    CLASSES,
    CLOSED,
    RECENT,
    Asked,
    Failure,
    Recent,
    brief_reason,
    guest_remedy,
)
from dfmeta.runtime.hub import Turns

if TYPE_CHECKING:
    from dfmeta.apps.controller import Controller
    from dfmeta.flows.integration_bridge import Tap


def port_rows(
    registry: Registry,
    recent: Recent = RECENT,
    state_of: Callable[[Port], tuple[PortState, str]] = lambda port: (port.state, port.fault),
    connections: Callable[[Port], dict[str, Any] | None] = lambda _port: None,
    *,
    backend: str = "store",
    service_ip: str = METADATA_IP,
) -> list[dict[str, Any]]:
    """Return every guest port, sorted by ofport and VLAN id.

    :param recent: recent requests of the guests.
    :param state_of: returns a port's state and its cause; by default those from its row.
    :param connections: returns the member ``connections``.
    :param backend: ``store`` or ``nova``; the remedies depend on it.
    :param service_ip: IPv4 address of the service for guests.
    """
    rows = []
    turns = Turns()
    for port, slots in list(registry):
        turns.give_way()
        endpoint = port.endpoint
        state, cause = state_of(port)
        keys = [
            {
                "slot": registry.keys.shown(number),
                "key": str(registry.keys.key_of(endpoint, number)),
                "meta_mac": registry.keys.label(number),
                "mac": slot.address.mac,
                "ip": str(slot.address.ip),
                "service": str(slot.address.service) if slot.address.service else None,
                "connections": slot.connections,
            }
            for number, slot in sorted(slots.items())
            if endpoint is not None
        ]
        key, key6 = (registry.allocator.first_key(port, version) for version in (4, 6))
        number = registry.keys.number_of(key) if key is not None else None
        rows.append(
            {
                "port": port.name,
                "ofport": port.ofport,
                "vid": port.vid,
                "key": str(key) if key is not None else None,
                "key6": str(key6) if key6 is not None else None,
                "meta_mac": registry.keys.label(number) if number is not None else None,
                "addresses": keys,
                "iface_id": port.iface_id,
                "mac": port.mac,
                "instance": port.instance_id,
                "instance_name": port.instance_name,
                "project": port.project_id,
                "sources": dict(port.sources),
                "state": str(state),
                "fault": cause,
                "kind": str(port.kind),
                "segmentation_id": port.segmentation_id or None,
                "parent": port.parent or None,
                "subport_faults": list(port.subport_faults),
                "source": str(port.binding.ip) if port.binding is not None else None,
                "connections": connections(port),
                **_next_hops(registry, port, service_ip),
                **_asked(_asked_at(registry, port, recent), port, backend),
            }
        )
    return sorted(rows, key=_place)


def service_row(tap: Tap | None, ipv6_fault: str = "") -> dict[str, Any]:
    """Return the addresses at which guests are served at this moment: ``GET /service``.

    :param tap: the target of the flows; None while there is none.
    :param ipv6_fault: see :class:`~dfmeta.host.sides.HostSides`.
    """
    ip, ip6 = (tap.guest_ip, list(tap.guest_ip6)) if tap is not None else (None, [])
    return {"ip": ip, "ip6": ip6, "ip6_fault": ipv6_fault}


def probe_row(controller: Controller) -> dict[str, Any]:
    """Probe the path to the proxy, and return the results: ``GET /probe``. Waits.

    The members are those of IPv4, and ``ip6`` has the same members for IPv6; it is None if guests
    are served over IPv4 only.
    """
    tap = controller.bridge.reconciler.tap
    served = tap is not None and bool(tap.guest_ip6)
    return {
        **controller.probe.report(),
        "ip6": controller.probe6.report() if served else None,
    }


def _next_hops(registry: Registry, port: Port, service_ip: str) -> dict[str, Any]:
    """Return the members ``next_hops`` and ``next_hop_faults``.

    The former is None while Neutron has not been asked. Next hops that an earlier run has left on
    the switch are among them even then.
    """
    endpoint, faults = port.endpoint, list(port.next_hop_faults)
    hops, addresses = port.next_hops, []
    guest = registry.guest(endpoint) if endpoint is not None else None
    if guest is not None and guest.port == port:
        hops = guest.next_hops or hops
        addresses = [slot.address for slot in guest.slots.values()]
    if hops is None:
        return {"next_hops": None, "next_hop_faults": faults}
    usable = usable_next_hops(hops, addresses, service_ip)
    for hop in hops:
        if hop not in usable:
            whose = "the service" if hop.ip == service_ip else "the guest itself"
            faults.append(f"{hop.ip}: it is the address of {whose}")
    listed = [{"ip": one.ip, "mac": one.mac or None, "source": one.source} for one in usable]
    return {"next_hops": listed, "next_hop_faults": faults}


def _place(row: dict[str, Any]) -> tuple[bool, int, int, str]:
    return row["ofport"] is None, row["ofport"] or 0, row["vid"], row["port"]


def moment(seconds: float) -> str:
    """Format a time as RFC 3339, in whole seconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def failure_row(one: Failure) -> dict[str, Any]:
    """Return a row for failed requests; status None: closed without an answer."""
    return {
        "at": moment(one.at),
        "status": None if one.status == CLOSED else one.status,
        "path": one.path,
        "reason": one.reason,
        "times": one.times,
    }


def _asked_at(registry: Registry, port: Port, recent: Recent) -> Asked | None:
    """Return the recent requests of a port's guest; None when it has none.

    Of two rows with the same ofport only one has the guest.
    """
    endpoint = port.endpoint
    if endpoint is None or registry.port_at(endpoint) != port:
        return None
    identity = registry.identity(endpoint)
    return None if identity is None else recent.of(endpoint, identity.incarnation)


def _asked(one: Asked | None, port: Port, backend: str) -> dict[str, Any]:
    """Return the members ``requests`` and ``last_failure``; each is None when there were none."""
    if one is None:
        return {"requests": None, "last_failure": None}
    # A subport without an instance gets 404 as it should.
    failures = one.failures() if port.instance_id else []
    requests = {
        **dict(zip(CLASSES, one.counts, strict=True)),
        "last_at": moment(one.last_at),
        "last_status": None if one.last_status == CLOSED else one.last_status,
    }
    return {
        "requests": requests,
        "last_failure": _last_failure(one, failures[0], port, backend) if failures else None,
    }


def _last_failure(one: Asked, last: Failure, port: Port, backend: str) -> dict[str, Any]:
    since = one.failing_since
    return {
        **failure_row(last),
        "own": not one.counts_as(last),
        "brief": brief_reason(last, backend),
        "remedy": guest_remedy(last, backend, port=port.name, instance=port.instance_id),
        "failing": one.failing,
        "failing_since": moment(since) if since else None,
    }
