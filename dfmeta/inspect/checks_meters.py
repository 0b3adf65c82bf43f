"""Judgements on meters: what keeps one guest's SYNs from drowning the others'. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dfmeta.flows.flow import comes_in_at
from dfmeta.flows.metering import is_of_our_form
from dfmeta.flows.pipeline import Purpose
from dfmeta.inspect.facts import MeterFact, Seen, Settings
from dfmeta.inspect.finding import Finding, listed, ok, wrong
from dfmeta.model import Endpoint

_WHAT = {Purpose.SYN: "first SYNs", Purpose.GUEST_SYN: "SYNs"}


def used_meters(flows: Iterable[Seen]) -> dict[int, Purpose]:
    """Meter → purpose of the flow of ours that uses it."""
    return {
        seen.flow.meter: seen.flow.purpose
        for seen in flows
        if seen.flow is not None and seen.flow.meter is not None
    }


def meters(
    flows: Sequence[Seen],
    there: Sequence[MeterFact] | None,
    *,
    names: Mapping[Endpoint, str],
    wanted: Settings,
) -> Finding:
    """Whether each guest's SYNs are limited; how many were dropped for it is for information.

    :param flows: those of ours on the switch.
    :param there: its meters; None where the datapath has none.
    :param names: of the guests' ports.
    """
    rates = wanted.layout.pipeline.rates
    metered = [seen.flow for seen in flows if seen.flow and seen.flow.purpose in rates]
    if there is None:
        return wrong(
            "meters",
            f"the datapath of {wanted.bridge} has no meters: one guest that floods it with SYNs "
            "slows all others down",
            "run a kernel from 4.18 on, or Open vSwitch from 2.10 on, and restart dfmeta-agent: "
            f"`ovs-ofctl -O OpenFlow13 meter-features {wanted.bridge}` shows max_meter",
        )
    if not metered:
        text = "the datapath has meters, and no guest's flow is on the switch"
        return ok("meters", text + _left_over(there, rates))
    by_number = {one.number: one for one in there}
    without, changed = set(), set()
    for flow in metered:
        at = comes_in_at(flow)
        name = names.get(at, "gone") if at is not None else "gone"
        if flow.meter is None or flow.meter not in by_number:
            without.add(name)
        elif by_number[flow.meter].rate != rates[flow.purpose]:
            changed.add(flow.meter)
    if without:
        return wrong(
            "meters",
            f"SYNs of {listed(sorted(without))} are not limited",
            "its log says why: `journalctl -u dfmeta-agent | grep -i meter`; a restart of "
            "dfmeta-agent makes meters anew",
        )
    if changed:
        return wrong(
            "meters",
            f"somebody has changed meters of ours: {listed(map(str, sorted(changed)))}",
            "dfmeta-agent takes other meters within 30 s; `systemctl restart dfmeta-agent` if this "
            "line stays. Do not delete them: Open vSwitch deletes the flows of other programs that "
            "use a meter together with it",
        )
    text = f"all guests' SYNs are limited; {_dropped(flows, by_number)}"
    return ok("meters", text + _left_over(there, rates))


def _left_over(there: Iterable[MeterFact], rates: Mapping[Purpose, int]) -> str:
    """Name the meters of ports that have gone; they harm no guest."""
    numbers = [one.number for one in there if is_of_our_form(one.number, one.rate, rates)]
    left = sorted({one.number for one in there if not one.flows}.intersection(numbers))
    if not left:
        return ""
    return (
        f"; no flow uses the meters {listed(list(map(str, left)))}: dfmeta-agent or `dfmeta-agent "
        "--cleanup` deletes what ports that have gone left over, dfmeta-agent within a minute"
    )


def _dropped(flows: Iterable[Seen], by_number: Mapping[int, MeterFact]) -> str:
    counts = dict.fromkeys(_WHAT, 0)
    for number, purpose in used_meters(flows).items():
        counts[purpose] += by_number[number].dropped
    return ", ".join(f"{count} {_WHAT[purpose]} dropped" for purpose, count in counts.items())
