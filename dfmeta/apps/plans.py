"""The desired flows of each bridge, as the reconciler needs them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dfmeta.flows import meta_bridge
from dfmeta.flows.desired import Guest, fixed_flows, guest_flows
from dfmeta.flows.flow import Flow
from dfmeta.flows.pipeline import Purpose


@dataclass(frozen=True, slots=True)
class Plan:
    """The desired flows of one bridge. *target* names its ports: a Tap or a MetaTap."""

    fixed: Callable[[Any], tuple[Flow, ...]]
    """Returns the flows that do not depend on guests, for a target."""
    guest: Callable[[Guest, Any], tuple[Flow, ...]]
    """Returns the flows of a guest, for a target."""
    needed: Collection[Purpose]
    """Flows without which no guest is served: their refusal is an error."""
    removal_rank: Mapping[Purpose, int] = field(default_factory=dict)
    """Purpose → its place in the order of removals; all others come last."""
    shows_numbers: bool = False
    """Whether a number that no flow of this bridge has is on no bridge: its flows lead there."""


BR_INT_PLAN: Final = Plan(
    fixed_flows,
    guest_flows,
    # Frames from tap-metadata must not go anywhere else.
    frozenset({Purpose.FROM_TAP, Purpose.SERVICE_DROP, Purpose.REPLY_DROP}),
    # A path to the proxy is removed before its return path.
    {
        Purpose.GUEST_SYN: 0,
        Purpose.GUEST_HTTP: 0,
        Purpose.GUEST_FRAGMENT: 0,
        Purpose.GUEST_ARP: 0,
        Purpose.GUEST_NEXT_HOP: 0,
        Purpose.GUEST_ND: 0,
        Purpose.SYN: 1,
        Purpose.GUEST_ND_BARE: 1,
        Purpose.ADDRESS: 1,
    },
    shows_numbers=True,
)
BR_META_PLAN: Final = Plan(meta_bridge.fixed_flows, meta_bridge.guest_flows, meta_bridge.NEEDED)
