"""The check of guest next hops. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dfmeta.doctor.facts import KnownPort
from dfmeta.doctor.finding import Finding, listed, ok, unknown, wrong


def next_hops(known: Sequence[KnownPort]) -> Iterator[Finding]:
    """Check that no guest next hop is left out; no line if no guest has one.

    :param known: the guests' ports.
    """
    faulty = [(port, fault) for port in known for fault in port.next_hop_faults]
    if faulty:
        yield wrong(
            "next-hops",
            "guest next hops are left out: "
            f"{listed(f'{port.name} ({fault})' for port, fault in faulty)}",
            f"`ovs-vsctl set Interface {faulty[0][0].name} "
            "'external_ids:dfmeta-next-hops=\"<IP>=<MAC>\"'`, with the address and the MAC of the "
            "DHCP port",
        )
    late = [port.name for port in known if port.next_hops is None]
    if late:
        yield unknown(
            "next-hops",
            f"Neutron has not given the guest next hops of {listed(late)} yet: see source-neutron",
        )
    hops = [hop for port in known for hop in port.next_hops or ()]
    if hops and not faulty:
        ports = sum(bool(port.next_hops) for port in known)
        bare = sum(not hop.mac for hop in hops)
        without = f", {bare} of them with tap-metadata's MAC instead of their own" if bare else ""
        yield ok("next-hops", f"{ports} ports have {len(hops)} guest next hops{without}")
