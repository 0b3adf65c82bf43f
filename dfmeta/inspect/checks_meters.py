"""Checks of meters, which keep one guest's SYNs from slowing down the other guests. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dfmeta.flows.flow import Flow, comes_in_at
from dfmeta.flows.metering import is_of_our_form
from dfmeta.flows.pipeline import METER_OF, Purpose
from dfmeta.inspect.facts import MeterFact, Seen, Settings
from dfmeta.inspect.finding import Finding, listed, ok, wrong
from dfmeta.model import Endpoint

_WHAT = {Purpose.SYN: "first SYNs", Purpose.GUEST_SYN: "SYNs"}


def used_meters(flows: Iterable[Seen]) -> dict[int, Purpose]:
    """Return meter → purpose that it is made for."""
    return {
        seen.flow.meter: purpose
        for seen in flows
        if seen.flow is not None and seen.flow.meter is not None
        if (purpose := _meter_of(seen.flow)) is not None
    }


def meters(
    flows: Sequence[Seen],
    there: Sequence[MeterFact] | None,
    *,
    names: Mapping[Endpoint, str],
    wanted: Settings,
) -> Finding:
    """Check that each guest's SYNs are limited; the number of dropped SYNs is for information.

    :param flows: dfmeta's flows on the switch.
    :param there: the switch's meters; None if the datapath does not support meters.
    :param names: endpoint → name of the guest's port.
    """
    rates = wanted.layout.pipeline.rates
    metered = [
        (seen.flow, purpose)
        for seen in flows
        if seen.flow is not None
        if (purpose := _meter_of(seen.flow)) is not None and purpose in rates
    ]
    if there is None:
        return wrong(
            "meters",
            f"the datapath of {wanted.bridge} has no meters: one guest that floods it with SYNs "
            "slows down all other guests",
            "run a kernel from 4.18 on, or Open vSwitch from 2.10 on, and restart dfmeta-agent: "
            f"`ovs-ofctl -O OpenFlow13 meter-features {wanted.bridge}` shows max_meter",
        )
    if not metered:
        text = "the datapath has meters, and the switch has no flow of a guest yet"
        return ok("meters", text + _left_over(there, rates))
    by_number = {one.number: one for one in there}
    without, changed = set(), set()
    for flow, purpose in metered:
        at = comes_in_at(flow)
        name = names.get(at, "a removed port") if at is not None else "a removed port"
        if flow.meter is None or flow.meter not in by_number:
            without.add(name)
        elif by_number[flow.meter].rate != rates[purpose]:
            changed.add(flow.meter)
    if without:
        return wrong(
            "meters",
            f"SYNs of {listed(sorted(without))} are not limited",
            "the log of dfmeta-agent says why: `journalctl -u dfmeta-agent | grep -i meter`; a "
            "restart of dfmeta-agent makes the meters again",
        )
    if changed:
        return wrong(
            "meters",
            f"another program has changed dfmeta's meters: {listed(map(str, sorted(changed)))}",
            "dfmeta-agent takes other meters within 30 s; `systemctl restart dfmeta-agent` if this "
            "line stays. Do not delete them: together with a meter Open vSwitch deletes all flows "
            "that use it, also those of other programs",
        )
    text = f"all guests' SYNs are limited; {_dropped(flows, by_number)}"
    return ok("meters", text + _left_over(there, rates))


def _meter_of(flow: Flow) -> Purpose | None:
    """Return the purpose whose meter *flow* uses; None on a bridge without meters."""
    purpose = METER_OF.get(flow.purpose, flow.purpose)
    return purpose if isinstance(purpose, Purpose) else None


def _left_over(there: Iterable[MeterFact], rates: Mapping[Purpose, int]) -> str:
    """Return a clause that names the meters of removed ports; these harm no guest."""
    numbers = [one.number for one in there if is_of_our_form(one.number, one.rate, rates)]
    left = sorted({one.number for one in there if not one.flows}.intersection(numbers))
    if not left:
        return ""
    return (
        f"; no flow uses the meters {listed(list(map(str, left)))}: if they are left over from "
        "removed ports, dfmeta-agent deletes them within a minute, and so does `dfmeta-agent "
        "--cleanup`"
    )


def _dropped(flows: Iterable[Seen], by_number: Mapping[int, MeterFact]) -> str:
    counts = dict.fromkeys(_WHAT, 0)
    for number, purpose in used_meters(flows).items():
        counts[purpose] += by_number[number].dropped
    return ", ".join(f"{count} {_WHAT[purpose]} dropped" for purpose, count in counts.items())
