"""Metrics of dfmeta. Their names are a contract; a test requires documentation for each.

They have a registry of their own, so that metrics of libraries are not exported. The values of
labels are closed sets, declared as types next to the metric: no value that a guest chooses becomes
a label.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, Protocol, TypeVar, TypeVarTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    disable_created_metrics,
)

from dfmeta.errors import BodyFault, HeadFault
from dfmeta.model import PortState

disable_created_metrics()  # type: ignore[no-untyped-call]  # the package has no annotation there
REGISTRY = CollectorRegistry()
M_co = TypeVar("M_co", covariant=True)
V = TypeVarTuple("V")


class By(Protocol[M_co, *V]):
    """Type of a metric with labels: its kind, and the type of each label's values, in order.

    The metrics are objects of prometheus_client. This type lets mypy check the values of labels,
    and tests/core/docs reads the values from it.
    """

    def labels(self, *values: *V) -> M_co:
        """Return the series with these label values."""


class CountedBy(By[M_co, *V], Protocol):
    """Type of a :class:`CountedGauge` with one label."""

    count: Callable[[], Mapping[str, int]]


class CountedGauge(Gauge):
    """Gauge with one label whose series are counted in one pass at each scrape."""

    count: Callable[[], Mapping[str, int]] = dict
    """Returns value of the label → number."""

    def collect(self) -> Iterable[Metric]:
        """Count the series, and return them."""
        for label, number in self.count().items():
            self.labels(label).set(number)
        return super().collect()


PACKET_INS: By[
    Counter,
    Literal["learned", "known", "held", "no_slot", "unknown_port", "malformed", "solicitation"],
] = Counter(
    "dfmeta_packet_ins",
    "SYNs and neighbour solicitations that the switch sent to the controller, by outcome: learned "
    "(a new address, which gets its flows), known (a repeated SYN), held (the instance of the port "
    "is not known), no_slot (all slots of the port are in use), unknown_port (just removed), "
    "malformed, solicitation (answered)",
    ["outcome"],
    registry=REGISTRY,
)
"""When ``held`` grows, see ``dfmeta_ports``. When ``known`` outgrows ``learned``, the switch
is slow."""
FIRST_SYN_SECONDS = Histogram(
    "dfmeta_first_syn_seconds",
    "Seconds from a first SYN's packet-in, or from the moment its instance was known, to its "
    "packet-out, including the confirmation of its flows",
    buckets=(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 1, 10),
    registry=REGISTRY,
)
"""When it grows, ovs-vswitchd confirms slowly, or the daemon is slow: see
``dfmeta_hub_stall_seconds``."""
PORTS: CountedBy[Gauge, PortState] = CountedGauge(
    "dfmeta_ports",
    "Guests' ports on the bridge, by state: served, or the reason why not",
    ["state"],
    registry=REGISTRY,
)
"""When a state other than ``served`` persists, ``dfmeta ports --failing`` names the ports and the
remedy."""
ADDRESSES: CountedBy[Gauge, Literal["4", "6"]] = CountedGauge(
    "dfmeta_addresses",
    "Guests' addresses that have a slot, and so flows, by version of IP",
    ["family"],
    registry=REGISTRY,
)
FLOWS: CountedBy[Gauge, Annotated[str, "the names of dfmeta.flows.pipeline:Purpose"]] = (
    CountedGauge(
        "dfmeta_flows",
        "Flows that dfmeta maintains on the switch, by purpose, as dfmeta sent them",
        ["purpose"],
        registry=REGISTRY,
    )
)
"""When it grows and the number of ports does not, guests keep changing addresses: see ``dfmeta
ports``."""
FLOW_MODS: By[Counter, Literal["add", "delete"]] = Counter(
    "dfmeta_flow_mods",
    "Flow-mods sent to the switch, by command",
    ["command"],
    registry=REGISTRY,
)
"""When it grows at rest, guests change addresses, or another program deletes flows."""
Dropped = Literal[
    "fragment", "no_connection", "no_answer", "second_tag", "source", "first_syn_rate", "syn_rate"
]
DROPPED: By[Counter, Dropped] = Counter(
    "dfmeta_dropped_packets",
    "Packets that the switch dropped, as of the last flow dump: fragment, no_connection (resets of "
    "no known address, another MAC than the subport's), no_answer (from the host into "
    "tap-metadata), second_tag (of a tagged subport), source (a container with another's address), "
    "first_syn_rate and syn_rate (floods)",
    ["reason"],
    registry=REGISTRY,
)
"""When ``no_connection`` grows all the time, ``dfmeta flows`` shows the guest; when ``no_answer``
does, a program of the host sends there: ``tcpdump -i tap-metadata``. The others are floods or
faults of one guest."""
RECONCILES: By[Counter, Literal["changed", "unchanged", "failed"]] = Counter(
    "dfmeta_reconciles",
    "Comparisons of the switch's flows with the desired flows, by result: unchanged, changed "
    "(flows were corrected), failed (no answer, or refused flows)",
    ["result"],
    registry=REGISTRY,
)
"""When ``changed`` grows, another program changes flows, as Neutron's agent does at its start."""
SWITCH_CONNECTED = Gauge(
    "dfmeta_switch_connected",
    "1 while there is an OpenFlow connection to the bridge",
    registry=REGISTRY,
)
"""When it is 0, known guests are served, new addresses and ports are not: check ovs-vswitchd."""
Bridge = Literal["integration", "meta"]
BRIDGE_CONNECTED: By[Gauge, Bridge] = Gauge(
    "dfmeta_bridge_connected",
    "1 while there is an OpenFlow connection to that bridge: integration, or meta (the second "
    "bridge of identity_scheme = meta_ip)",
    ["bridge"],
    registry=REGISTRY,
)
HELD_SYNS = Gauge(
    "dfmeta_held_syns",
    "SYNs that wait until their port's instance is known and its OpenFlow number is confirmed",
    registry=REGISTRY,
)
"""When it grows, identity sources are slow (``dfmeta_identity_lookups_total``), or OVSDB is."""
OVSDB_ECHOES = Counter(
    "dfmeta_ovsdb_echoes",
    "OVSDB echo replies, each of which confirms the OpenFlow numbers that Open vSwitch had "
    "reassigned before",
    registry=REGISTRY,
)
"""When it stays while ports come and go, OVSDB does not answer; the log names the ports that
wait."""
IdentitySource = Literal["libvirt", "neutron", "ovn", "store"]
LookupOutcome = Literal["found", "nothing", "conflict", "late", "timeout", "failed"]
IDENTITY_LOOKUPS: By[Counter, IdentitySource, LookupOutcome] = Counter(
    "dfmeta_identity_lookups",
    "Queries to identity sources, by outcome: found, nothing, conflict (with an earlier source), "
    "late (the port changed meanwhile), timeout, failed",
    ["source", "outcome"],
    registry=REGISTRY,
)
"""When ``nothing`` grows without end, the source lacks data on ports: see ``dfmeta ports``."""
PORT_DEFECTS = Counter(
    "dfmeta_port_defects",
    "Ports that could not be served because of an error in dfmeta; each is retried",
    registry=REGISTRY,
)
"""When it grows, report the traceback in the log."""
StatusClass = Literal["2xx", "3xx", "4xx", "5xx"]
Backend = Literal["nova", "store"]
Answerer = Backend | Literal["dfmeta"]
REQUESTS: By[Counter, StatusClass, Answerer] = Counter(
    "dfmeta_requests",
    "Guests' requests, by class of the answer's status and by the backend that answered: nova, "
    "store, or dfmeta if no backend was queried",
    ["status", "backend"],
    registry=REGISTRY,
)
"""When ``4xx`` of ``nova`` grows, the log has the cause of 400 and 403; see :doc:`runbook`."""
FAILED_REQUESTS = Counter(
    "dfmeta_failed_requests",
    "Guests' requests that the service failed: answered with 5xx, with 404 because the backend has "
    "no record of the guest, or with another error of the backend, or closed without an answer",
    registry=REGISTRY,
)
"""When it grows, ``dfmeta ports --failing`` names the guests and the remedy."""
FIRST_ANSWERS = Counter(
    "dfmeta_first_answers",
    "Guests that got metadata for the first time since they have had their port, or since the "
    "daemon's start",
    registry=REGISTRY,
)
REQUEST_SECONDS = Histogram(
    "dfmeta_request_seconds",
    "Seconds that a request took in dfmeta itself, without the backend's time and without waits",
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1),
    registry=REGISTRY,
)
"""When it grows, the daemon lacks CPU time. Without the requests that haproxy answers."""
BACKEND_SECONDS: By[Histogram, Backend] = Histogram(
    "dfmeta_backend_seconds",
    "Seconds from the query to the backend until its answer or the failure, including retries",
    ["backend"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)
"""When it grows, a host of Nova, the disk of the store or the upstream store is slow."""
HELD_REQUESTS: By[Counter, Literal["project", "backend", "port", "number"]] = Counter(
    "dfmeta_held_requests",
    "Requests that waited: until the instance's project was known (project), until the backend "
    "could be reached (backend), until other requests of the port were answered (port), or until "
    "OVSDB had confirmed the port's number (number)",
    ["why"],
    registry=REGISTRY,
)
"""When ``number`` grows, ovs-vswitchd restarts, or OVSDB is slow."""
DELAYED_REQUESTS = Counter(
    "dfmeta_delayed_requests",
    "Requests that were delayed because their port was above its rate",
    registry=REGISTRY,
)
Refused = HeadFault | BodyFault | Literal["rate", "forwarded", "forwarded_for", "token", "method"]
REFUSED: By[Counter, Refused] = Counter(
    "dfmeta_refused_requests",
    "Requests that dfmeta refused without a query to a backend, by reason: malformed (400), "
    "request_line (414), header and header_lines (431), header_timeout and body_timeout (408), "
    "body and chunks (413), rate (429), forwarded (by a proxy in the guest, 403), forwarded_for "
    "(in dfmeta-store, 400), token (400 to 405), method (405)",
    ["reason"],
    registry=REGISTRY,
)
Limit = Literal[
    "request_line_max",
    "header_max",
    "header_lines_max",
    "header_timeout",
    "body_max",
    "body_timeout",
    "send_timeout",
    "connections_per_port",
    "waiting_per_port",
    "connections",
    "requests_per_port",
]
LIMITS: By[Counter, Limit] = Counter(
    "dfmeta_limits_hit",
    "Number of times that a guest reached a limit of [guest_limits], by the option's name",
    ["limit"],
    registry=REGISTRY,
)
CONNECTIONS = Gauge(
    "dfmeta_open_connections",
    "Guests' open connections, including those that wait",
    registry=REGISTRY,
)
Retried = Literal["stale", "unreachable", "timeout", "broken"]
BACKEND_RETRIES: By[Counter, Retried] = Counter(
    "dfmeta_backend_retries",
    "Requests sent to Nova again: stale (a kept-alive connection had ended), unreachable, timeout, "
    "broken (the answer could not be forwarded)",
    ["reason"],
    registry=REGISTRY,
)
BACKEND_CONNECTIONS: By[Counter, Literal["opened", "failed", "reused", "stale"]] = Counter(
    "dfmeta_backend_connections",
    "Connections to the backend: opened, failed to open, reused, stale (closed while idle)",
    ["outcome"],
    registry=REGISTRY,
)
"""When ``opened`` grows as fast as requests, Nova's server does not keep connections."""
STORE_LOOKUPS: By[Counter, Literal["found", "absent", "away", "nonsense"]] = Counter(
    "dfmeta_store_lookups",
    "Lookups of the store in the upstream store: found, absent, away (slow or unreachable, after "
    "all retries), nonsense (an answer that cannot be used)",
    ["outcome"],
    registry=REGISTRY,
)
"""When ``absent`` grows without end, guests have no record, or no user-data, there."""
STORE_KEYS_LEFT_OUT = Counter(
    "dfmeta_store_keys_left_out",
    "Texts among the SSH keys of documents from the upstream store that are no keys; guests do not "
    "get them",
    registry=REGISTRY,
)
Closed = Literal["timeout", "changed", "unknown_peer", "too_many", "not_read", "silent", "defect"]
CLOSED: By[Counter, Closed] = Counter(
    "dfmeta_closed_connections",
    "Guests' connections closed without a complete answer, by reason: timeout (of the backend), "
    "changed (the port has another instance), unknown_peer (no guest's key), too_many, not_read "
    "(the answer), silent (no request), defect",
    ["reason"],
    registry=REGISTRY,
)
ADMIN_CONNECTIONS = Gauge(
    "dfmeta_admin_open_connections",
    "Open connections to the admin listener, including those that wait",
    registry=REGISTRY,
)
ADMIN_REFUSED: By[
    Counter, HeadFault | Literal["silent", "not_read", "crowded", "too_many", "memory", "defect"]
] = Counter(
    "dfmeta_admin_refused",
    "Requests and connections that the admin listener refused, closed or failed, by reason: of the "
    "header as for guests, silent (no request), not_read (the answer), crowded (an idle one was "
    "closed, or a new one waits), too_many (reset), memory (no room for a body, 503), defect (500)",
    ["reason"],
    registry=REGISTRY,
)
"""When ``crowded``, ``too_many`` or ``memory`` grows, a client floods the listener: ``ss -tnp``.
When ``defect`` grows, report the traceback."""
HUB_STALL_SECONDS = Histogram(
    "dfmeta_hub_stall_seconds",
    "Seconds by which the daemon's hub thread was late, measured 20 times a second",
    buckets=(0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5),
    registry=REGISTRY,
)
"""When more than 0.1 is frequent, requests wait: give it a core, or set ``proxy_workers``."""
HUB_LONGEST_STALL_SECONDS = Gauge(
    "dfmeta_hub_longest_stall_seconds",
    "Longest delay of the daemon's hub thread since its start, in seconds",
    registry=REGISTRY,
)

WorkerLost = Literal["ended", "hangs", "start", "full", "stays", "nonsense"]
WORKERS_LOST: By[Counter, WorkerLost] = Counter(
    "dfmeta_workers_lost",
    "Workers that ended unexpectedly or had to be ended, by reason: ended, hangs, start (not ready "
    "in time), full (its pipe), stays (after a reload), nonsense (its messages)",
    ["reason"],
    registry=REGISTRY,
)
"""When it grows, the host lacks CPU time or memory, or the log has an error in dfmeta."""

RoundFault = Literal["source", "defect"]
NEUTRON_ROUNDS_FAILED: By[Counter, RoundFault] = Counter(
    "dfmeta_neutron_rounds_failed",
    "Rounds of questions to Neutron that failed, by cause: source (no answer, or not as expected), "
    "defect",
    ["cause"],
    registry=REGISTRY,
)
"""When ``source`` grows, see the log of neutron-server; when ``defect`` grows, report it."""

HaproxyLost = Literal["ended", "hangs", "map"]
HAPROXY_LOST: By[Counter, HaproxyLost] = Counter(
    "dfmeta_haproxy_lost",
    "Processes of haproxy that ended unexpectedly or had to be killed, by reason: ended, hangs, "
    "map (a change was not confirmed)",
    ["reason"],
    registry=REGISTRY,
)
"""When it grows, the host lacks CPU time or memory, or the log has an error of haproxy."""
Attached = Literal["made", "found", "failed"]
ATTACH_SECONDS: By[Histogram, Attached] = Histogram(
    "dfmeta_attach_seconds",
    "Seconds of a VM's request for an attachment, until its data plane stands, by outcome: made, "
    "found (a repeated request), failed",
    ["outcome"],
    buckets=(0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)
"""When ``failed`` grows, the log has the causes."""
ATTACHMENTS: By[Gauge, Literal["wanted", "made", "active", "leaving"]] = Gauge(
    "dfmeta_attachments",
    "Attachments of this host's VMs as of the last comparison with the data plane, by state: "
    "wanted (numbers are taken), made (ports are being created), active, leaving",
    ["state"],
    registry=REGISTRY,
)
"""When a state but ``active`` stays, OVSDB or ovs-vswitchd is slow: ``dfmeta attachment list``."""
VIDS_FREE = Gauge(
    "dfmeta_vids_free",
    "Attachments that the VM with the fewest left can still get, by its quota and its VLAN ids, as "
    "of the last comparison",
    registry=REGISTRY,
)
"""When it nears 0, raise ``quota``, widen ``vid_range``, or delete unused attachments."""

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""Name and labels → value, of one process."""
_GREATEST = frozenset({"dfmeta_hub_longest_stall_seconds"})
"""Metrics that are merged by their maximum instead of their sum."""


def samples() -> list[Any]:
    """Return all samples of this process, as JSON values."""
    return [
        [sample.name, sorted(sample.labels.items()), sample.value]
        for family in REGISTRY.collect()
        for sample in family.samples
    ]


def samples_from(values: Iterable[Any]) -> Samples:
    """Parse the output of :func:`samples`.

    :raises ValueError, TypeError: when *values* has another form.
    """
    return {
        (name, tuple((label, text) for label, text in labels)): float(value)
        for name, labels, value in values
    }


def add(into: Samples, more: Samples) -> None:
    """Add the samples of another process."""
    for key, value in more.items():
        before = into.get(key, 0.0)
        into[key] = max(before, value) if key[0] in _GREATEST else before + value


def lasting(of: Samples) -> Samples:
    """Return the samples that remain valid after their process has ended: counters and histograms,
    and not gauges such as the number of open connections."""
    gauges = {family.name for family in REGISTRY.collect() if family.type == "gauge"}
    return {key: value for key, value in of.items() if key[0] not in gauges - _GREATEST}


def merged(others: Iterable[Samples]) -> list[Metric]:
    """Return the metrics of this process, with the samples of other processes added."""
    more: Samples = {}
    for other in others:
        add(more, other)
    families = list(REGISTRY.collect())
    for family in families:
        present = {(each.name, tuple(sorted(each.labels.items()))): each for each in family.samples}
        totals = {key: sample.value for key, sample in present.items()}
        add(totals, {key: value for key, value in more.items() if key in present})
        family.samples = [present[key]._replace(value=value) for key, value in totals.items()]
        for (name, labels), value in more.items():
            if (name, labels) not in present and _of(family, name):
                family.add_sample(name, dict(labels), value)
    return families


def _of(family: Metric, name: str) -> bool:
    endings = ("", "_total", "_bucket", "_sum", "_count")
    return any(name == family.name + ending for ending in endings)
