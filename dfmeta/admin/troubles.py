"""Metrics that indicate trouble, with the explanation and the first step for the operator.

The status page shows them, and so does the page on metrics of the documentation.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dfmeta.metrics import Samples

SEVERE, OWN = "severe", "own"
"""SEVERE: guests get no metadata, or may get none. OWN: a guest affects only itself."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A metric that is zero on a healthy host."""

    name: str
    """Name of the metric in Prometheus."""
    labels: Mapping[str, str]
    """Labels that the series must have."""
    means: str
    look: str
    """The first step for the operator."""
    weight: str = SEVERE
    above: float = field(default=0.0)


@dataclass(frozen=True, slots=True)
class Sign:
    """A series that indicates trouble by its value."""

    trouble: Trouble
    series: str
    value: float


_LOG: Final = "The log has the cause and the remedy, once a minute for each port"
_PORTS: Final = "See dfmeta ports"
_GUEST: Final = "A guest behaves unlike any usual client; other guests are not affected"

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
        "The store failed, or its upstream store",
        _LOG,
    ),
    Trouble(
        "dfmeta_requests_total",
        {"status": "5xx", "backend": "dfmeta"},
        "hold_timeout was over before a backend could be queried, or dfmeta failed",
        _LOG,
    ),
    Trouble(
        "dfmeta_closed_connections_total",
        {"reason": "timeout"},
        "Closed without an answer after hold_timeout",
        "The backend is unreachable, or the instance's project is not known: see the log, and "
        "dfmeta ports",
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
        "The switch did not answer, or refused flows that every guest needs",
        "The log quotes the switch's error; then run dfmeta doctor",
    ),
    Trouble(
        "dfmeta_backend_connections_total",
        {"outcome": "failed"},
        "No connection to a host of Nova",
        "The log names the host, the cause and the remedy",
    ),
    *(
        Trouble("dfmeta_backend_retries_total", {"reason": reason}, means, _LOG)
        for reason, means in (
            ("unreachable", "A host of Nova could not be reached"),
            ("timeout", "A host of Nova did not answer in time"),
            ("broken", "A program other than Nova answers at Nova's address"),
        )
    ),
    *(
        Trouble("dfmeta_store_lookups_total", {"outcome": outcome}, means, _LOG)
        for outcome, means in (
            ("away", "The upstream store is slow or unreachable, or there is no token for it"),
            ("nonsense", "The upstream store's answer cannot be used"),
        )
    ),
    *(
        Trouble("dfmeta_identity_lookups_total", {"outcome": outcome}, means, look)
        for outcome, means, look in (
            ("timeout", "An identity source did not answer in time", "The log names it"),
            ("failed", "An identity source could not be queried", "The log has the cause"),
            (
                "conflict",
                "Two identity sources give different instances for a port",
                "The log names both",
            ),
        )
    ),
    *(
        Trouble("dfmeta_held_requests_total", {"why": why}, means, look)
        for why, means, look in (
            ("backend", "Requests waited because Nova was unreachable", _LOG),
            ("project", "Requests waited for the project of the instance", _PORTS),
        )
    ),
    Trouble(
        "dfmeta_limits_hit_total",
        {"limit": "connections"},
        "All guests together reached the maximum number of connections",
        "Raise connections, or find the guests that keep them: ss -tn shows the keys, dfmeta ports "
        "the guest of each key",
    ),
    Trouble(
        "dfmeta_hub_longest_stall_seconds",
        {},
        "Longest time in seconds in which no guest was served, most often during the start",
        "Check whether the host is short of CPU time; dfmeta_hub_stall_seconds shows repetitions",
        above=1.0,
    ),
    Trouble(
        "dfmeta_refused_requests_total",
        {"reason": "token"},
        "Tokens that were missing, wrong or expired",
        "Check whether http_tokens is required although the guest's cloud-init uses no tokens",
        OWN,
    ),
    Trouble(
        "dfmeta_refused_requests_total",
        {"reason": "rate"},
        "Refused with 429: more requests than the rates allow",
        "The log names the guest; the rates are in [metadata_rate_limiting]",
        OWN,
    ),
    Trouble(
        "dfmeta_refused_requests_total",
        {"reason": "forwarded"},
        "Forwarded by a proxy",
        "A program in a guest is abused to reach the service, or uses a proxy on purpose",
        OWN,
    ),
    Trouble(
        "dfmeta_delayed_requests_total",
        {},
        "Delayed because the port was above its rate",
        "If this slows down boots, raise the rates in [metadata_rate_limiting]",
        OWN,
    ),
    Trouble(
        "dfmeta_held_requests_total",
        {"why": "port"},
        "Waited for other requests of the same port",
        _GUEST,
        OWN,
    ),
    *(
        Trouble("dfmeta_closed_connections_total", {"reason": reason}, means, _GUEST, OWN)
        for reason, means in (
            ("too_many", "No room for a further connection of a port"),
            ("not_read", "Answers that the guest did not read"),
            ("silent", "Connections without any data"),
        )
    ),
    *(
        Trouble("dfmeta_packet_ins_total", {"outcome": outcome}, means, _GUEST, OWN)
        for outcome, means in (
            ("no_slot", "First SYNs from more addresses than a port may have"),
            ("malformed", "Invalid SYNs"),
        )
    ),
    *(
        Trouble("dfmeta_dropped_packets_total", {"reason": reason}, means, _GUEST, OWN)
        for reason, means in (
            ("first_syn_rate", "First SYNs of guests that flood"),
            ("syn_rate", "SYNs of guests that flood"),
        )
    ),
)
"""In the order in which an operator should look at them: the severe ones first."""


def signs(samples: Samples) -> Iterator[Sign]:
    """Yield the series that indicate trouble, in the order of :data:`TROUBLES`.

    :param samples: samples of all processes, merged.
    """
    for trouble in TROUBLES:
        for (name, labels), value in samples.items():
            matches = name == trouble.name and trouble.labels.items() <= dict(labels).items()
            if matches and value > trouble.above:
                shown = ", ".join(f"{label} {text}" for label, text in labels)
                yield Sign(trouble, f"{name} ({shown})" if shown else name, value)
