"""Checks of guests: their ports, their next hops, and the answers that they get. Pure.

Trust: the daemon itself writes the statuses, reasons and remedies of answers. A guest decides only
whether its own port is named.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from dfmeta.doctor import find_port
from dfmeta.doctor.checks_trunks import leads_to_trunk
from dfmeta.doctor.facts import GuestFailure, HostSettings, KnownPort
from dfmeta.doctor.finding import Finding, listed, make_guests, ok, time_of_day, unknown, wrong
from dfmeta.model import PortState
from dfmeta.ovsdb.rows import USERSPACE, Snapshot

KINDS: Final = 4
"""Number of lines, one for each way to fail; the guests that fail in other ways are counted."""
ALL: Final = "`dfmeta ports --failing` lists all of them"
DRIVER: Final = (
    "<driver name='qemu'>"
    "<host csum='off' gso='off' tso4='off' tso6='off' ecn='off' ufo='off'/>"
    "<guest csum='off' tso4='off' tso6='off' ecn='off' ufo='off'/>"
    "</driver>"
)
"""Element of an interface in a libvirt domain, for a virtio NIC without offloads."""
_VHOST_USER: Final = "dpdkvhostuser"
"""Prefix of the interface types that connect a virtual machine by a socket (vhost-user)."""
_OF_A_NAMESPACE: Final = "`ethtool -K DEVICE tx off` in the guest, on its own end of the device"
_OF_A_MACHINE: Final = (
    "`virsh edit` the guest's domain and give its interface a `<driver>` with csum='off' "
    "(`dfmeta doctor` has the element); until its next start, `ethtool -K DEVICE tx off` in it"
)


def ports(
    all_ports: Iterable[KnownPort],
    wanted: HostSettings,
    *,
    running: bool,
    snapshot: Snapshot | None = None,
) -> Iterator[Finding]:
    """Check that each guest's port can be served. A dead port is not a fault: its owner wants it.

    :param running: *all_ports* comes from the daemon, which has queried all identity sources.
    :param snapshot: OVSDB's configuration, for the datapath's type and the devices' drivers.
    """
    by_state: dict[PortState, list[KnownPort]] = {}
    for port in all_ports:
        by_state.setdefault(port.state, []).append(port)
    served = by_state.get(PortState.SERVED, [])
    strangers = [port for port in served if wanted.needs_project and running and not port.project]
    strangers += by_state.get(PortState.NO_PROJECT, [])
    nameless = by_state.get(PortState.NO_INSTANCE, [])
    behind = [port for port in nameless if leads_to_trunk(port, snapshot, wanted.bridge)]
    faults = [
        *_broken(by_state.get(PortState.BROKEN, [])),
        *_without_instance([port for port in nameless if port not in behind], wanted),
        *_without_vm(behind),
        *_without_number(by_state.get(PortState.NO_OFPORT, [])),
        *_without_project(strangers, wanted),
        *_without_connection(by_state.get(PortState.NO_CONNECTION, []), wanted, snapshot),
        *_cut_off(by_state.get(PortState.CUT_OFF, []), wanted),
    ]
    yield from faults
    if not faults:
        dead = by_state.get(PortState.DEAD, [])
        off = f"; switched off by their owner: {_names(dead)}" if dead else ""
        count = sum(map(len, by_state.values()))
        unnamed = len(by_state.get(PortState.UNNAMED, ()))
        without = f"; subports without an instance, which get 404: {unnamed}" if unnamed else ""
        yield ok(f"{len(served)} of {count} guests' ports on {wanted.bridge} served{without}{off}")


def _broken(ports: Sequence[KnownPort]) -> Iterator[Finding]:
    if ports:
        remedy = f"correct its external_ids: `{make_guests(ports[0].name)}`"
        yield wrong(f"broken: {_with_faults(ports)}", remedy)


def _without_instance(ports: Sequence[KnownPort], wanted: HostSettings) -> Iterator[Finding]:
    if ports:
        others = [source for source in wanted.sources if source != "ovsdb"]
        nor = f", and {listed(others)} does not know it" if others else ""
        yield wrong(
            f"no instance is known for {_names(ports)}: external_ids:vm-uuid is missing{nor}",
            f"`{make_guests(ports[0].name)}`",
        )


def _without_vm(parents: Sequence[KnownPort]) -> Iterator[Finding]:
    if parents:
        names = listed(f"{port.name} (iface-id {port.iface_id})" for port in parents)
        yield wrong(
            f"no instance is known for trunk parents: {names}",
            "start the VM, or look for its interface: `ovs-vsctl find Interface "
            f"external_ids:iface-id={parents[0].iface_id}`",
        )


def _without_number(ports: Sequence[KnownPort]) -> Iterator[Finding]:
    if ports:
        show = f"`ovs-vsctl get Interface {ports[0].name} error` shows the cause"
        yield wrong(f"Open vSwitch has given no port number to {_names(ports)}", show)


def _without_connection(
    ports: Sequence[KnownPort], wanted: HostSettings, snapshot: Snapshot | None
) -> Iterator[Finding]:
    if ports:
        checksums = "; ".join(_checksums(snapshot, wanted.bridge, ports))
        if checksums:
            checksums = (
                "complete TCP checksums, if `nstat -az TcpInCsumErrors` grows while the guests "
                f"try: {checksums} (userspace datapath); "
            )
        yield wrong(
            f"SYNs arrive and no connection follows: {_with_faults(ports)}",
            f"check in this order: {checksums}a packet filter of the host or of the guest (`nft "
            f"list ruleset`); the listener (`ss -ltn sport = :{wanted.port}`)",
        )


def _cut_off(ports: Sequence[KnownPort], wanted: HostSettings) -> Iterator[Finding]:
    if ports:
        causes = ((port.name, port.cut.cause if port.cut else port.fault) for port in ports)
        cut = next((port.cut for port in ports if port.cut), None)
        show = f"`ovs-ofctl -O OpenFlow13 show {wanted.bridge}` shows the bits of each port"
        yield wrong(
            f"cut off: {listed(f'{name} ({cause})' for name, cause in causes)}",
            cut.remedy if cut else show,
        )


def _without_project(ports: Sequence[KnownPort], wanted: HostSettings) -> Iterator[Finding]:
    if ports:
        yield wrong(
            f"no project is known for {_names(ports)}, and Nova needs it to answer: "
            f"{listed(wanted.sources)} does not know it",
            f"`ovs-vsctl set Interface {ports[0].name} external_ids:project-id=<project's id>`",
        )


def _names(ports: Iterable[KnownPort]) -> str:
    return listed(port.name for port in ports)


def _with_faults(ports: Iterable[KnownPort]) -> str:
    return listed(f"{port.name} ({port.fault})" for port in ports)


# A guest's kernel may leave a checksum to its network interface. The kernel's datapath of Open
# vSwitch completes it; the userspace datapath passes the segment on as it is, and the host drops
# it.


def checksum_advice(driver: str) -> str:
    """Return a short remedy with which the guest behind a device sends complete checksums.

    :param driver: the device's driver, by the kernel's name; empty: it is not known.
    """
    if driver == "veth":
        return _OF_A_NAMESPACE
    if driver == "tun":
        return _OF_A_MACHINE
    return f"{_OF_A_NAMESPACE}; for a virtual machine: {_OF_A_MACHINE}"


def _checksums(snapshot: Snapshot | None, bridge: str, ports: Iterable[KnownPort]) -> Iterator[str]:
    """Yield the remedies for the guests behind *ports*, each once.

    None unless *bridge* has a userspace datapath.
    """
    row = snapshot.bridge(bridge) if snapshot is not None else None
    if snapshot is None or row is None or row.datapath_type != USERSPACE:
        return
    rows = [snapshot.interface(port.name, bridge) for port in ports]
    machines = [_is_machine(row.type, row.driver) for row in rows if row is not None]
    if not all(machines):
        yield _OF_A_NAMESPACE
    if any(machine is not False for machine in machines):
        yield f"for a virtual machine, `{DRIVER}` in its domain's <interface>"


def _is_machine(kind: str, driver: str) -> bool | None:
    """Return whether a virtual machine is behind an interface; None if that is not known."""
    if kind.startswith(_VHOST_USER):
        return True
    if kind == "internal":
        # Its driver is tun on this datapath, but a namespace is behind it.
        return False
    return {"tun": True, "veth": False}.get(driver)


def other_ports(snapshot: Snapshot, wanted: HostSettings) -> Iterator[Finding]:
    """List the ports that are not guests' ports though a guest could be connected to them.

    Yields nothing if there are none.
    """
    names = [row.name for row in snapshot.interfaces if find_port.could_be_a_guests(row, wanted)]
    if names:
        yield ok(
            f"ports of {wanted.bridge} that are not guests' ports ({len(names)}): {listed(names)}. "
            f"That is right for an uplink; `{make_guests(names[0])}` makes one a guest's"
        )


def next_hops(ports: Sequence[KnownPort]) -> Iterator[Finding]:
    """Check that no guest next hop is left out; no line if no guest has one."""
    faulty = [(port, fault) for port in ports for fault in port.next_hop_faults]
    if faulty:
        yield wrong(
            "guest next hops are left out: "
            f"{listed(f'{port.name} ({fault})' for port, fault in faulty)}",
            f"`ovs-vsctl set Interface {faulty[0][0].name} "
            "'external_ids:dfmeta-next-hops=\"<IP>=<MAC>\"'`",
        )
    late = [port.name for port in ports if port.next_hops is None]
    if late:
        yield unknown(
            f"Neutron has not given the guest next hops of {listed(late)} yet: see source-neutron"
        )
    hops = [hop for port in ports for hop in port.next_hops or ()]
    if hops and not faulty:
        count = sum(bool(port.next_hops) for port in ports)
        bare = sum(not hop.mac for hop in hops)
        without = f", {bare} of them with tap-metadata's MAC instead of their own" if bare else ""
        yield ok(f"{count} ports have {len(hops)} guest next hops{without}")


def guests(ports: Sequence[KnownPort], now: datetime) -> Iterator[Finding]:
    """Check that each guest that has asked for metadata got it.

    :param ports: the guests' ports, from the running daemon.
    :param now: the time now, in UTC.
    """
    senders = sum(port.requested for port in ports)
    kinds: dict[tuple[int | None, str], list[tuple[KnownPort, GuestFailure]]] = {}
    for port in ports:
        if port.failure is not None:
            kind = port.failure.status, port.failure.brief
            kinds.setdefault(kind, []).append((port, port.failure))
    if not kinds:
        yield ok(
            f"no guest fails, of {senders} that have sent requests since dfmeta-agent's start; "
            f"{len(ports) - senders} of {len(ports)} guests have sent none"
        )
        return
    failing = sum(map(len, kinds.values()))
    ordered = sorted(kinds.items(), key=lambda kind: -len(kind[1]))
    for (status, brief), failures in ordered[:KINDS]:
        latest = sorted(failures, key=lambda pair: pair[1].since, reverse=True)
        named = listed(_since(port, failure, now) for port, failure in latest)
        remedy = latest[0][1].remedy
        yield wrong(
            f"{len(failures)} of {senders} guests that have sent requests get "
            f"{'no answer' if status is None else status} ({brief}): {named}",
            remedy if len(failures) == 1 else f"{remedy}; {ALL}",
        )
    if rest := ordered[KINDS:]:
        left = sum(len(failures) for _kind, failures in rest)
        yield wrong(f"{left} of {failing} guests that fail do so in {len(rest)} other ways", ALL)


def _since(port: KnownPort, failure: GuestFailure, now: datetime) -> str:
    times = "" if failure.times == 1 else f", {failure.times} times"
    return f"{port.name} (since {time_of_day(failure.since, now)}{times})"
