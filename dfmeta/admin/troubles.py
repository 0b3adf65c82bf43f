"""Which counters mean trouble, and what to look at: what the status page says of them.

The page on metrics in the documentation says more of each, under the name of the metric.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dfmeta.metrics import Samples

SEVERE, OWN = "severe", "own"
"""Guests go without metadata, or may; or a guest harms itself alone."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A figure that is zero on a host where all is well."""

    name: str
    """As Prometheus has it."""
    labels: Mapping[str, str]
    """Those that the series has to have."""
    means: str
    look: str
    """What to do first."""
    weight: str = SEVERE
    above: float = field(default=0.0)


@dataclass(frozen=True, slots=True)
class Sign:
    """A series that is above what is well."""

    trouble: Trouble
    series: str
    value: float


_LOG: Final = "The log says why, and what to do, once a minute for each port"
_PORTS: Final = "dfmeta ports"
_GUEST: Final = "A guest does what no usual client does; others do not notice"

TROUBLES: Final = (
    Trouble(
        "dfmeta_requests_total",
        {"status": "5xx", "backend": "nova"},
        "Nova failed, or did not answer in time",
        _LOG,
    ),
    Trouble(
        "dfmeta_requests_total",
        {"status": "5xx", "backend": "store"},
        "The store failed, or whoever it asks",
        _LOG,
    ),
    Trouble(
        "dfmeta_requests_total",
        {"status": "5xx", "backend": "dfmeta"},
        "The time was out before a backend could be asked, or dfmeta failed",
        _LOG,
    ),
    Trouble(
        "dfmeta_closed_connections_total",
        {"reason": "timeout"},
        "Closed without an answer after hold_timeout",
        "The backend is away, or the instance's project is not known: the log, and dfmeta ports",
    ),
    Trouble(
        "dfmeta_closed_connections_total",
        {"reason": "defect"},
        "An error in dfmeta",
        "Report it with the traceback that the log has",
    ),
    Trouble(
        "dfmeta_reconciles_total",
        {"result": "failed"},
        "The switch did not answer, or refused what every guest needs",
        "The log has the switch's words; then dfmeta doctor",
    ),
    Trouble(
        "dfmeta_backend_connections_total",
        {"outcome": "failed"},
        "No connection to a host of Nova's",
        "The log names the host, the cause and the remedy",
    ),
    *(
        Trouble("dfmeta_backend_retries_total", {"reason": reason}, means, _LOG)
        for reason, means in (
            ("unreachable", "A host of Nova's could not be reached"),
            ("timeout", "A host of Nova's did not answer in time"),
            ("broken", "What answers at Nova's address is not Nova"),
        )
    ),
    *(
        Trouble("dfmeta_store_lookups_total", {"outcome": outcome}, means, _LOG)
        for outcome, means in (
            ("away", "The other store is slow or away, or gives no token"),
            ("nonsense", "The other store answers what cannot be taken"),
        )
    ),
    *(
        Trouble("dfmeta_identity_lookups_total", {"outcome": outcome}, means, look)
        for outcome, means, look in (
            ("timeout", "A source of identity did not answer in time", "The log names it"),
            ("failed", "A source of identity could not be asked", "The log says why"),
            ("conflict", "Two sources disagree on who a port is", "The log names both"),
        )
    ),
    *(
        Trouble("dfmeta_held_requests_total", {"why": why}, means, look)
        for why, means, look in (
            ("backend", "Requests waited for Nova, which was away", _LOG),
            ("project", "Requests waited for the project of the instance", _PORTS),
        )
    ),
    Trouble(
        "dfmeta_limits_hit_total",
        {"limit": "connections"},
        "All guests together had as many connections as may be",
        "Raise connections, or find who keeps them: ss -tn, and dfmeta ports for the keys",
    ),
    Trouble(
        "dfmeta_dropped_packets_total",
        {"reason": "no_answer"},
        "A program of this host sends to tap-metadata",
        "tcpdump -i tap-metadata",
    ),
    Trouble(
        "dfmeta_hub_longest_stall_seconds",
        {},
        "Seconds for which nobody was served, most often at the start",
        "Is the host short of CPU time? dfmeta_hub_stall_seconds says whether it comes again",
        above=1.0,
    ),
    Trouble(
        "dfmeta_refused_requests_total",
        {"reason": "token"},
        "Tokens that were missing, wrong or too old",
        "Is http_tokens required where cloud-init has none?",
        OWN,
    ),
    Trouble(
        "dfmeta_refused_requests_total",
        {"reason": "rate"},
        "Refused with 429: asked more often than the rates allow",
        "The log names the guest; [metadata_rate_limiting]",
        OWN,
    ),
    Trouble(
        "dfmeta_refused_requests_total",
        {"reason": "forwarded"},
        "Passed on by a proxy",
        "A program in a guest is used to reach the service",
        OWN,
    ),
    Trouble(
        "dfmeta_delayed_requests_total",
        {},
        "Delayed to the rates",
        "If boots are slow by it, raise [metadata_rate_limiting]",
        OWN,
    ),
    Trouble(
        "dfmeta_held_requests_total",
        {"why": "port"},
        "Waited for others of the same port",
        _GUEST,
        OWN,
    ),
    *(
        Trouble("dfmeta_closed_connections_total", {"reason": reason}, means, _GUEST, OWN)
        for reason, means in (
            ("too_many", "No place for a further connection of a port"),
            ("not_read", "Answers that were not read"),
            ("silent", "Connections on which nothing came"),
        )
    ),
    *(
        Trouble("dfmeta_packet_ins_total", {"outcome": outcome}, means, _GUEST, OWN)
        for outcome, means in (
            ("no_slot", "First SYNs from more addresses than a port may have"),
            ("malformed", "SYNs that cannot be read"),
        )
    ),
    *(
        Trouble("dfmeta_dropped_packets_total", {"reason": reason}, means, _GUEST, OWN)
        for reason, means in (
            ("first_syn_rate", "First SYNs above the meter of their port"),
            ("syn_rate", "SYNs above the meter of their port"),
        )
    ),
)
"""The severe ones first, as they are to be looked at."""


def signs(samples: Samples) -> Iterator[Sign]:
    """What is above what is well, in the order of :data:`TROUBLES`.

    :param samples: of all processes.
    """
    for trouble in TROUBLES:
        for (name, labels), value in samples.items():
            there = name == trouble.name and trouble.labels.items() <= dict(labels).items()
            if there and value > trouble.above:
                said = ", ".join(f"{label} {text}" for label, text in labels)
                yield Sign(trouble, f"{name} ({said})" if said else name, value)
