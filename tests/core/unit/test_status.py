"""The status page should show failing guests first, and no text of a guest or a client as it is."""

import base64
import hashlib
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import webob
from prometheus_client import Metric

from dfmeta import metrics
from dfmeta.admin import troubles
from dfmeta.admin.history import MINUTES, History
from dfmeta.admin.status import (
    BEHIND,
    FILTER_MAX,
    SHOWN,
    TILES,
    Query,
    Status,
    StatusPage,
    render,
    style_hash,
)
from dfmeta.errors import printable
from dfmeta.model import PortState
from tests.core.unit.support import GUEST_IP6, GUEST_MAC, INSTANCE, PROJECT

NOW = 1_800_000_000.0
HOSTILE = "\"><script>alert('x')</script><img src=http://192.0.2.1/>&amp;{{ 7 * 7 }}\u202e"

ADDRESS = {"slot": 0, "mac": GUEST_MAC, "ip": "10.0.0.5", "service": None, "connections": 1}
NETWORK = "fd00:a9fe:a9fe:a9fe:1::"


def at(seconds_ago: float) -> str:
    return datetime.fromtimestamp(NOW - seconds_ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def failure(ago: float = 5.0, *, failing: bool = True, **values: Any) -> dict[str, Any]:
    fields = {"at": at(ago), "status": 403, "path": "openstack", "reason": "secrets differ"}
    since = at(ago) if failing else None
    listed = {"own": False, "remedy": "`mend it` <at once>", "failing_since": since}
    return {**fields, **listed, "times": 1, "failing": failing, **values}


def row(ofport: int | None = 3, **values: Any) -> dict[str, Any]:
    key = f"128.0.0.{(ofport or 0) % 256}"
    requests = {"2xx": 12, "3xx": 0, "4xx": 3, "5xx": 0, "closed": 0}
    return {
        "port": f"tap{ofport}",
        "ofport": ofport,
        "vid": 0,
        "kind": "port",
        "segmentation_id": None,
        "parent": None,
        "key": key,
        "addresses": [
            {**ADDRESS, "key": key},
            {**ADDRESS, "slot": 1, "key": f"{NETWORK}{ofport or 0:x}", "ip": GUEST_IP6},
        ],
        "iface_id": f"port-{ofport}",
        "mac": GUEST_MAC,
        "instance": INSTANCE,
        "instance_name": f"web-{ofport}",
        "project": PROJECT,
        "sources": {"instance_id": "ovsdb"},
        "state": str(PortState.SERVED),
        "fault": "",
        "requests": {**requests, "last_at": at(60), "last_status": 200},
        "last_failure": None,
        **values,
    }


def status(*rows: dict[str, Any], **values: Any) -> Status:
    fields = {
        "program": "dfmeta-agent",
        "version": "0.1.0",
        "host": "compute1",
        "now": NOW,
        "since": NOW - 3700,
        "missing": (),
        "facts": (("Bridge", "br-int"),),
        "ports": rows,
        "samples": {},
    }
    return Status(**{**fields, **values})


class Seen(HTMLParser):
    """What a page has: its elements, and the texts of the guests' rows."""

    void = frozenset({"meta", "link", "input"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.guests: list[str] = []
        self.feed(page)
        assert self.open == [], "an element is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.void:
            self.open.append(tag)
        if (tag, dict(attrs).get("scope")) == ("th", "row") and dict(attrs).get("data-label"):
            self.guests.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if "bdi" in self.open and "th" in self.open:
            self.guests[-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for element, attributes in self.elements if element == tag]


def see(*rows: dict[str, Any], query: Query | None = None, **values: Any) -> Seen:
    return Seen(render(status(*rows, **values), query or Query()))


def test_failing_guests_come_first_the_latest_before_the_others() -> None:
    rows = [
        row(1),
        row(2, state=str(PortState.DEAD)),
        row(3, last_failure=failure(50)),
        row(4, last_failure=failure(5)),
        row(5, state=str(PortState.NO_INSTANCE), requests=None),
        row(6, last_failure=failure(500, failing=False)),
        row(None, state=str(PortState.NO_OFPORT), key=None, addresses=[]),
    ]
    seen = see(*rows)
    assert seen.guests == ["web-4", "web-3", "web-5", "web-None", "web-6", "web-1", "web-2"]
    for words in ("2 guests fail", "secrets differ", "5 s ago", "✖", "failed earlier", "openstack"):
        assert words in seen.text


def test_verdict_is_the_worst_of_all() -> None:
    for rows, missing, verdict in (
        ([row()], [], "Ready, no guest fails"),
        ([row(last_failure=failure())], [], "1 guest fails"),
        ([row(state="broken", fault="odd")], [], "1 port is not served"),
        ([row(last_failure=failure())], ["ovsdb"], "Not ready: ovsdb missing"),
    ):
        page = render(status(*rows, missing=missing), Query())
        assert re.search(rf"<title>{re.escape(verdict)} · compute1", page), verdict


def test_names_are_text_and_no_markup() -> None:
    address = {
        **dict.fromkeys(("key", "mac", "ip", "service"), HOSTILE),
        "slot": 0,
        "connections": 0,
    }
    names = ("port", "instance", "instance_name", "project", "fault", "key", "mac", "iface_id")
    hostile = row(
        addresses=[address],
        sources={HOSTILE: HOSTILE},
        last_failure=failure(reason=HOSTILE, path=HOSTILE, remedy=f"{HOSTILE}`{HOSTILE}`"),
        record_names=[f"record {HOSTILE}"],
        record_name=f"record {HOSTILE}",
        **dict.fromkeys(names, HOSTILE),
    )
    failed = {
        **failure(reason=HOSTILE, path=HOSTILE, remedy=f"{HOSTILE}`{HOSTILE}`"),
        "port": HOSTILE,
        "instance": HOSTILE,
        "name": HOSTILE,
    }
    samples: metrics.Samples = {("dfmeta_flows", (("purpose", HOSTILE),)): 1.0}
    values = {"host": HOSTILE, "version": HOSTILE, "missing": [HOSTILE], "samples": samples}
    facts = ((HOSTILE, HOSTILE),)
    query = Query(port=HOSTILE, refresh=0)
    seen = see(hostile, failures=[failed], query=query, facts=facts, **values)
    assert not {tag for tag, _ in seen.elements} & {"script", "img", "iframe", "object", "base"}
    harmless = {**failure(), "port": "a", "instance": "b", "name": "c"}
    guest = row(last_failure=failure(), record_name="a record", record_names=("a record",))
    plain = see(guest, failures=[harmless], query=Query(port="a", refresh=0))
    assert {tag for tag, _ in seen.elements} <= {tag for tag, _ in plain.elements}
    shown = printable(HOSTILE)
    assert seen.text.count(shown) > len(names)
    assert seen.all("input")[0]["value"] == shown


def test_names_have_no_control_characters() -> None:
    drawn = render(status(row(instance_name="we\x1b[2Jb\u202e", project="p\x9b1m")), Query())
    assert not [char for char in drawn if not char.isprintable() and char != "\n"]
    assert r"we\x1b[2Jb\u202e" in drawn


def test_failing_ports_of_a_thousand_are_shown() -> None:
    rows = [row(number) for number in range(1, 1001)]
    rows[700]["last_failure"] = failure()
    seen = see(*rows)
    assert len(seen.guests) == SHOWN
    assert seen.guests[0] == "web-701"
    assert f"The first {SHOWN} of 1000 ports" in seen.text
    assert see(*rows, query=Query(port="WEB-999")).guests == ["web-999"]
    assert see(*rows, query=Query(state="failing")).guests == ["web-701"]
    assert "No port matches the filter." in see(*rows, query=Query(port="nobody")).text


def test_fault_of_a_port_stands_with_its_command_in_the_column_of_faults() -> None:
    fault = "the switch accepts no frames: `ovs-ofctl mod-port br-int tap3 receive`"
    page = render(status(row(3, state="cut off", fault=fault), row(4)), Query())
    (cell,) = re.findall(r'<td role="cell" data-label="What is wrong"><div>(.*?)</div>', page)
    assert "<code>ovs-ofctl mod-port br-int tap3 receive</code>" in cell
    assert "nothing" not in cell


def test_only_well_guests_are_folded_on_a_narrow_screen() -> None:
    rows = [row(1), row(2, state="dead"), row(3, last_failure=failure()), row(4, state="broken")]
    rules = re.findall(
        r'<tr role="row" id="g\d+" class="(\w+)( well" tabindex="0)?">',
        render(status(*rows), Query()),
    )
    assert [bool(folded) for _tone, folded in rules] == [False, False, True, True]


def test_ports_that_could_have_a_guest_are_named() -> None:
    text = see(row(3), others=["vnet8", HOSTILE]).text
    assert f"vnet8, {printable(HOSTILE)}" in text
    assert "ovs-vsctl set Interface vnet8 external_ids:vm-uuid=<instance's UUID>" in text
    assert "vm-uuid" not in see(row(3)).text


def test_flows_are_counted_by_the_names_of_their_tables() -> None:
    names = ("GUEST_HTTP", "GUEST_ARP", "ADDRESS")
    samples = {("dfmeta_flows", (("purpose", name),)): 2.0 for name in names}
    page = render(status(samples=samples), Query())
    figures = dict(re.findall(r"<dt>([^<]*)</dt><dd>([0-9]+)</dd>", page))
    assert (figures["classification"], figures["metadata service"]) == ("4", "2")


def test_filter_finds_a_guest_by_its_names_and_addresses() -> None:
    other = row(4, instance="", instance_name="x", addresses=[], key=None)
    for wanted in (
        *("tap3", "web-3", INSTANCE[:9], "10.0.0.5", "128.0.0.3", "PORT-3", GUEST_IP6),
        *("FD12:3456:0:0:0::5", f"{GUEST_IP6}%eth0", "fd00:a9fe:a9fe:a9fe:1:0:0:3", "fd12:3456"),
    ):
        assert see(row(3), other, query=Query(port=wanted)).guests == ["web-3"], wanted


class Counted:
    """Counters of all processes, a clock, and the history of both."""

    def __init__(self) -> None:
        self.now, self.totals = NOW, {"requests": 0.0, "failed_requests": 0.0}
        self.history = History(self.collect, clock=lambda: self.now)

    def collect(self) -> list[Metric]:
        families = []
        for name, total in self.totals.items():
            families.append(Metric(f"dfmeta_{name}", "", "counter"))
            families[-1].add_sample(f"dfmeta_{name}_total", {"status": "2xx"}, total)
        waits = Metric("dfmeta_first_syn_seconds", "", "histogram")
        for bound, share in (("0.002", 0.5), ("0.02", 1.0), ("+Inf", 1.0)):
            count = self.totals["requests"] * share
            waits.add_sample(f"{waits.name}_bucket", {"le": bound}, count)
        return [*families, waits]

    def pass_on(self, seconds: float, **gains: float) -> None:
        for name, gain in gains.items():
            self.totals[name] += gain
        self.now += seconds
        self.history.read()

    def seen(self) -> list[str]:
        """The texts of the chart, in order, and the titles of its minutes."""
        values = {"minutes": self.history.minutes, "now": self.now}
        chart = images(render(status(**values), Query(refresh=0)))[0]
        return [element.text or "" for element in chart.iter()]


def images(page: str) -> list[ElementTree.Element]:
    """The outer images of a page, each of which must be well-formed XML."""
    result, begins = [], list[int]()
    for tag in re.finditer("<svg |</svg>", page):
        if tag[0] == "<svg ":
            begins.append(tag.start())
        elif len(begins) == 1:
            result.append(ElementTree.fromstring(page[begins.pop() : tag.end()]))
        else:
            begins.pop()
    return result


def test_chart_has_what_the_counters_of_all_processes_have_grown_by() -> None:
    counted = Counted()
    counted.pass_on(30, requests=7)
    counted.pass_on(31, requests=3, failed_requests=1)
    counted.pass_on(59, requests=1200)
    # Another reading begins, and ends only after a later one.
    late = dict(counted.totals)
    counted.pass_on(0, requests=5)
    latest, counted.totals = counted.totals, late
    counted.pass_on(0)
    counted.totals = latest
    counted.pass_on(0)
    seen = counted.seen()
    assert seen.count("1,215") == 1
    for words in (
        "at most 1,200 a minute",
        "08:00 UTC: 10 requests, 1 failure, 0 first answers",
        "08:01 UTC: 1,200 requests, 0 failures, 0 first answers",
        "08:02 UTC: 5 requests, 0 failures, 0 first answers",
    ):
        assert words in seen
    page = render(status(minutes=counted.history.minutes, now=counted.now), Query())
    assert "half within 2 ms, all within 20 ms" in page


def test_history_is_bounded_and_forgets_after_an_hour() -> None:
    counted = Counted()
    for _ in range(3 * MINUTES):
        counted.pass_on(60, requests=2)
    assert len(counted.history.minutes) == MINUTES
    assert sum(m.gains["dfmeta_requests_total"] for m in counted.history.minutes) == 2 * MINUTES
    counted.now -= 1800
    counted.pass_on(1, requests=1)
    # Half an hour of minutes that are in the future now is left out.
    assert "63" in counted.seen()
    counted.now += 3600
    assert not [text for text in counted.seen() if "at most" in text]


def test_picture_has_each_container_behind_its_vm_and_text_alone() -> None:
    pods = [
        row(3, vid=n, kind="subport", parent="tap3", instance_name=f"pod-{n}{HOSTILE}")
        for n in range(1, BEHIND + 3)
    ]
    pods[1]["last_failure"] = failure()
    vm = row(3, kind="trunk parent", instance_name=HOSTILE)
    rest = [row(n, instance_name=f"vm-{n}") for n in range(10, 10 + TILES)]
    page = render(status(vm, *pods, *rest, others=[HOSTILE]), Query())
    _chart, tile, *others, dots = images(page)
    assert len(others) == TILES - 1
    label = tile.attrib["aria-label"]
    assert label.startswith(f"{printable(HOSTILE)}: served; port tap3, 128.0.0.3; behind it pod-2")
    texts = ["".join(text.itertext()) for text in tile.iter("text")]
    assert "VID 1, 128.0.0.3" in texts
    assert texts[-1] == "more: ✔ 2 served"
    assert dots.attrib["aria-label"] == "✔ 1 served"
    assert "And 1 more: ✔ 1 served" in page
    assert {element.tag for image in images(page) for element in image.iter()} <= {
        *("svg", "g", "title", "text", "tspan", "path", "rect", "line")
    }
    filtered = render(status(vm, *pods, *rest), Query(state="failing"))
    assert [image.attrib["aria-label"][:5] for image in images(filtered)][1:] == ["pod-2"]


def test_page_loads_no_foreign_resource() -> None:
    seen = see(row(last_failure=failure()))
    for tag, attributes in seen.elements:
        for name in ("src", "href", "action", "srcset", "data", "style", "onclick"):
            value = attributes.get(name) or ""
            is_local = value.startswith(("#", "/", "data:image/svg+xml,")) and "//" not in value[:2]
            assert not value or is_local, (tag, name, value)
    style = re.findall(r"<style>(.*?)</style>", render(status(), Query()), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style[0].encode()).digest()).decode()
    assert len(style) == 1
    assert style_hash() == f"sha256-{digest}"
    assert not re.search(r"url\(|@import", style[0])


def test_count_above_its_bound_is_a_sign_of_trouble() -> None:
    samples: metrics.Samples = {
        ("dfmeta_identity_lookups_total", (("outcome", "timeout"), ("source", "neutron"))): 4.0,
        ("dfmeta_identity_lookups_total", (("outcome", "found"), ("source", "neutron"))): 9.0,
        ("dfmeta_reconciles_total", (("result", "failed"),)): 0.0,
        ("dfmeta_hub_longest_stall_seconds", ()): 0.4,
        # Multicast of the host's own kernel and programs on tap-metadata.
        ("dfmeta_dropped_packets_total", (("reason", "no_answer"),)): 7.0,
    }
    (sign,) = troubles.signs(samples)
    assert (sign.value, sign.trouble.labels) == (4.0, {"outcome": "timeout"})
    assert sign.trouble.means in see(samples=samples).text
    samples["dfmeta_hub_longest_stall_seconds", ()] = 1.4
    assert [sign.value for sign in troubles.signs(samples)] == [4.0, 1.4]


def ask(url: str = "/", host: str | None = "127.0.0.1:9697", listen: str = "127.0.0.1:9697") -> Any:
    request = webob.Request.blank(url)
    if host is None:
        del request.environ["HTTP_HOST"]
    else:
        request.environ["HTTP_HOST"] = host
    return StatusPage(listen, lambda query: f"<p>{query.refresh}</p>")(request)


def test_page_is_served_by_an_address_or_its_own_name_and_no_other_name() -> None:
    for host in (
        *("127.0.0.1:9697", "localhost", "LOCALHOST:80", "[::1]:9697", "192.0.2.7"),
        *("admin.example", None),
    ):
        assert ask(host=host, listen="admin.example:9697").status_int == 200, host
    for host in (
        *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:9697", "[evil]", "a b"),
        *("@", "127.0.0.1:9697@evil.example", "evil.example:127", "<b>\r\nx", "1.2.3.4.5"),
    ):
        response = ask(host=host)
        assert response.status_int == 421, host
        assert response.content_type == "text/plain"
        assert "localhost" in response.text


def test_page_forbids_frames_caches_and_sniffing() -> None:
    for response in (ask(), ask(host="evil.example"), ask("/?refresh=x")):
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Cache-Control"] == "no-store"


def test_malformed_query_is_refused_with_its_field() -> None:
    for fields in (
        *("refresh=-1", "refresh=3601", "refresh=1e3", "refresh=٣", "refresh=", "state=odd"),
        *("port=%ff", f"port={'x' * (FILTER_MAX + 1)}"),
    ):
        response = ask(f"/?{fields}")
        assert response.status == "400 Bad Request", fields
        assert re.match("400: (refresh|state|port|what is asked for) ", response.text)
