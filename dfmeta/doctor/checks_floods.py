"""Check for guests whose packets the switch drops because they flood. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dfmeta.doctor.finding import Finding, listed, ok, warning
from dfmeta.doctor.flow_diff import drops_flood
from dfmeta.flows.dump import Seen
from dfmeta.flows.flow import comes_in_at
from dfmeta.model import Endpoint


def floods(flows: Iterable[Seen], names: Mapping[Endpoint, str]) -> Finding:
    """Name the guests that flood; they harm no other guest.

    :param flows: dfmeta's flows on the switch.
    :param names: endpoint → name of the guest's port.
    """
    flooding = {
        names.get(endpoint, f"ofport {endpoint.ofport}")
        for seen in flows
        if seen.flow is not None and drops_flood(seen.flow)
        if (endpoint := comes_in_at(seen.flow)) is not None
    }
    if not flooding:
        return ok("floods", "no guest floods the service")
    return warning(
        "floods",
        f"{listed(sorted(flooding))}: the guest sends too many SYNs, and the switch drops them "
        "until it stops; other guests are served",
        "look in the guest for a program that connects to 169.254.169.254 in a loop",
    )
