"""The status page, ``GET /`` of the admin listener: values in, HTML out.

The template engine escapes every value, whatever its origin: tenants choose the names of ports and
instances. No user-data, token, password, query or path of a guest reaches this module.

There is no authentication: every client that reaches the listener sees the page. A foreign web page
in the operator's browser could reach it as well, through a name of its own (see
:mod:`dfmeta.admin.browsers`). So a request is answered only if Host has an address or one of the
own names. A link from another site works like any other.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import webob

from dfmeta import errors, metrics, model
from dfmeta.admin.browsers import HOW, own_name, own_names, shown
from dfmeta.admin.history import Minute, chart
from dfmeta.admin.troubles import SEVERE, signs
from dfmeta.doctor.finding import listed, make_guests, span
from dfmeta.flows.pipeline import Purpose, Stage, table_of
from dfmeta.proxy.recent import CLASSES

if TYPE_CHECKING:
    from jinja2 import Template

SHOWN: Final = 200
"""Maximum number of guests on one page; the filter finds the others."""
FAILURES_SHOWN: Final = 10
"""Maximum number of failures in the list of all guests' failures."""
TILES: Final = 18
"""Maximum number of guests that the picture of the bridge shows one by one."""
BEHIND: Final = 6
"""Maximum number of containers that it shows behind one guest."""
REFRESH: Final = 10
"""Default interval, in seconds, after which a browser reloads the page."""
REFRESH_MAX: Final = 3600
FILTER_MAX: Final = 64
"""Maximum number of characters of the filter for ports."""
_DIGITS: Final = re.compile(r"[0-9]{1,4}")
FAILING, EARLIER = "failing", "failed earlier"
"""Additional states of a guest's port: no successful answer since a failure, or one since then."""
STATES: Final = (FAILING, EARLIER, *map(str, model.PortState))
"""States that the page can be filtered by."""
_FOLDER: Final = Path(__file__).with_name("templates")
_RANKS: Final[Mapping[str, int]] = {
    FAILING: 0,
    str(model.PortState.BROKEN): 1,
    str(model.PortState.NO_INSTANCE): 1,
    str(model.PortState.NO_OFPORT): 1,
    str(model.PortState.NO_PROJECT): 1,
    str(model.PortState.NO_META_IP): 1,
    str(model.PortState.CUT_OFF): 1,
    str(model.PortState.NO_CONNECTION): 0,
    EARLIER: 2,
    str(model.PortState.SERVED): 3,
    str(model.PortState.UNNAMED): 3,
    str(model.PortState.DEAD): 4,
}
"""State of :data:`STATES` → its rank; the lowest rank comes first."""
_STAGES: Final[Mapping[str, Stage]] = {purpose.name: purpose.stage for purpose in Purpose}
"""Name of a purpose → the stage of its table."""
_COLUMNS: Final = 60
"""Squares in a row of the picture's further ports."""
_TONES: Final[Mapping[int, str]] = {0: "bad", 1: "warn", 2: "warn", 3: "good", 4: "off"}

Row = Mapping[str, Any]
Figures = Sequence[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Query:
    """Query parameters of the page.

    :param port: show only ports that have this text in a name, an id or an address.
    :param state: one of :data:`STATES`, or "" for all.
    :param refresh: seconds after which the browser reloads the page; 0: never.
    """

    port: str = ""
    state: str = ""
    refresh: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Snapshot of the daemon, or of the store as a service."""

    program: str
    version: str
    host: str
    now: float
    since: float
    """Start of the process. ``now`` and ``since`` are seconds since the epoch."""
    missing: Sequence[str]
    facts: Sequence[tuple[str, str]] = ()
    """Names and values for the top of the page."""
    ports: Sequence[Row] | None = None
    """Rows as in ``GET /ports``; None if the program has no ports."""
    failures: Sequence[Row] = ()
    """Failures as in the member ``last_failure``, with ``port``, ``instance``, ``name`` and
    ``remedy``; the latest first."""
    failures_in_all: int = 0
    others: Sequence[str] = ()
    """Names of the bridge's ports that are no guest's and could have a guest."""
    samples: metrics.Samples
    minutes: Sequence[Minute] = ()
    """The last hour; see :attr:`dfmeta.admin.history.History.minutes`."""
    bridge: str = ""
    """Name of the bridge of *ports*."""


Render = Callable[[Query], str]


class StatusPage:
    """Answers requests for the page.

    :param listen: admin_listen; its host's name is accepted in Host.
    :param render: returns the page; see :func:`dfmeta.admin.status.render`.
    """

    def __init__(self, listen: str, render: Render) -> None:
        self._names = own_names(listen)
        self._render = render

    def __call__(self, request: webob.Request) -> webob.Response:
        """Answer a GET or HEAD.

        Trust: of the request, only the filter for ports gets into the page, and it is escaped.
        """
        host = request.headers.get("Host", "")
        if not own_name(host, self._names):
            return _words(421, f"there is no page under the name {shown(host)}: {HOW}")
        try:
            query = parse(request.GET)
        except UnicodeError:
            return _words(400, "what is asked for is not UTF-8")
        except ValueError as error:
            return _words(400, str(error))
        response = webob.Response(
            status=200, content_type="text/html", charset="UTF-8", text=self._render(query)
        )
        response.headers.update(_headers())
        return response


def parse(fields: Mapping[str, str]) -> Query:
    """Parse the query parameters of the page; unknown parameters are ignored.

    :raises ValueError: if a parameter is invalid; the message says so to the client.
    """
    refresh, state = fields.get("refresh", str(REFRESH)), fields.get("state", "")
    if not _DIGITS.fullmatch(refresh) or int(refresh) > REFRESH_MAX:
        raise ValueError(f"refresh is a number of seconds up to {REFRESH_MAX}, or 0 for never")
    if state and state not in STATES:
        raise ValueError(f"state is one of: {', '.join(STATES)}")
    port = fields.get("port", "").strip()
    if len(port) > FILTER_MAX:
        raise ValueError(f"port has {FILTER_MAX} characters at most")
    return Query(port=port, state=state, refresh=int(refresh))


def _headers() -> list[tuple[str, str]]:
    policy = (
        f"default-src 'none'; style-src '{style_hash()}'; img-src data:; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    )
    return [
        ("Content-Security-Policy", policy),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Frame-Options", "DENY"),
        ("Referrer-Policy", "no-referrer"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        ("Cache-Control", "no-store"),
    ]


def _words(status: int, words: str) -> webob.Response:
    text = f"{status}: {words}.\n"
    response = webob.Response(status=status, content_type="text/plain", charset="UTF-8", text=text)
    response.headers.update(_headers())
    return response


def render(status: Status, query: Query) -> str:
    """Return the page. This may take tens of milliseconds: do not call it on the hub.

    Trust: all values are escaped.
    """
    rows = [_guest(row, status.now) for row in status.ports or ()]
    guests = sorted((row for row in rows if _matches(row, query)), key=_order)
    for number, row in enumerate(guests[:SHOWN]):
        row["anchor"] = f"g{number}"
    troubles = list(signs(status.samples))
    view = {
        "query": query,
        "states": STATES,
        "guests": guests[:SHOWN],
        "found": len(guests),
        "failures": [_failure(row, status.now) for row in status.failures],
        "more_failures": max(0, status.failures_in_all - len(status.failures)),
        "troubles": troubles,
        "severe": SEVERE,
        "others": listed(status.others),
        "first_other": make_guests(next(iter(status.others), "")),
        "hour": chart(status.minutes, since=status.since, now=status.now),
        "picture": _picture(guests),
        **_summary(status, rows),
        **_figures(status.samples),
        "style": _style(),
        "short": _short,
        "span": span,
        "clock": _clock,
        "stamp": _stamp,
    }
    return _template().render(status=status, **view)


def style_hash() -> str:
    """Return the hash that permits the page's style in Content-Security-Policy (CSP 3, 2.3.1)."""
    digest = hashlib.sha256(_style().encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


@functools.cache
def _style() -> str:
    return (_FOLDER / "status.css").read_text(encoding="utf-8")


@functools.cache
def _template() -> Template:
    # The import takes 30 ms, so it is done only when the page is requested.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    engine = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        # A page is also read in a terminal.
        finalize=lambda value: errors.printable(value) if _is_odd(value) else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return engine.get_template("status.html")


def _is_odd(value: object) -> bool:
    """Return whether a value is text with control characters or marks of its direction."""
    return type(value) is str and not value.isprintable()


# Guests


def _guest(row: Row, now: float) -> dict[str, Any]:
    last = row["last_failure"]
    word = row["state"]
    if row["state"] == model.PortState.SERVED and last is not None and not last["own"]:
        word = FAILING if last["failing"] else EARLIER
    rank = _RANKS[word]
    requests, record = row["requests"], row.get("record_name", "")
    return {
        **row,
        "word": word,
        "rank": rank,
        "anchor": "",
        "tone": _TONES[rank],
        "failed": None if last is None else _failure(last, now),
        "fault_pieces": row["fault"].split("`"),
        "well": rank > 2,
        "counts": [(name, requests[name]) for name in CLASSES if requests and requests[name]],
        "asked_ago": _ago(requests["last_at"], now) if requests else "",
        "name": row["instance_name"] or record or row["instance"] or row["port"],
        "record": record,
    }


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the sort key of a row: failing ports first, then the latest failure, then ofport."""
    failed = row["failed"]
    since = failed["ago_seconds"] if failed is not None and row["rank"] in (0, 2) else 0.0
    return row["rank"], since, row["ofport"] is None, row["ofport"] or 0, row["port"]


def _matches(row: Mapping[str, Any], query: Query) -> bool:
    if query.state and query.state not in (row["word"], row["state"]):
        return False
    if not query.port:
        return True
    wanted = _canonical(query.port)
    names = (row["port"], row["instance"], row["instance_name"], row["project"], row["iface_id"])
    texts = [*names, *row.get("record_names", ()), row["key"] or "", row["mac"]]
    texts += [address[name] for address in row["addresses"] for name in ("ip", "mac", "key")]
    return any(wanted in text.lower() for text in texts)


def _canonical(text: str) -> str:
    """Return text of the filter in lower case, and a whole IP address as listings write it."""
    try:
        return str(ip_address(text.strip().partition("%")[0]))
    except ValueError:
        return text.lower()


def _picture(guests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the picture of the bridge: the first guests, each with the containers behind it, and
    the number of all others by state.

    :param guests: rows of guests, in the order of the page.
    """
    names = {row["port"] for row in guests if row["kind"] != model.PortKind.SUBPORT}
    behind: dict[str, list[Row]] = {}
    heads: list[Row] = []
    for row in guests:
        is_behind = row["kind"] == model.PortKind.SUBPORT and row["parent"] in names
        (behind.setdefault(row["parent"], []) if is_behind else heads).append(row)
    tiles: list[dict[str, Any]]
    tiles = [{"row": row, "behind": behind.get(row["port"], [])} for row in heads]
    tiles.sort(key=lambda tile: min(row["rank"] for row in (tile["row"], *tile["behind"])))
    rest = [row for tile in tiles[TILES:] for row in (tile["row"], *tile["behind"])]
    for tile in tiles[:TILES]:
        tile["more"] = _counts(tile["behind"][BEHIND:])
        tile["behind"] = tile["behind"][:BEHIND]
    rest.sort(key=lambda row: row["rank"])
    runs: dict[str, str] = {}
    for y, at in enumerate(range(0, len(rest), _COLUMNS)):
        x = 0
        for tone, run in groupby(rest[at : at + _COLUMNS], itemgetter("tone")):
            length = len(list(run))
            runs[tone] = f"{runs.get(tone, '')}M{x} {y}.5h{length}"
            x += length
    lines = -(-len(rest) // _COLUMNS)
    return {"tiles": tiles[:TILES], "rest": _counts(rest), "runs": runs, "lines": lines}


def _counts(rows: Sequence[Row]) -> Sequence[tuple[str, str, int]]:
    """Return tone, state and number of those rows, without states that none of them has."""
    states = Counter((row["tone"], row["word"]) for row in rows)
    return [(tone, word, count) for (tone, word), count in states.items()]


def _short(text: str, most: int) -> str:
    """Cut a text for the picture, which has its whole in the title."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _failure(row: Row, now: float) -> dict[str, Any]:
    status = "no answer" if row["status"] is None else str(row["status"])
    seconds = max(0.0, now - _seconds(row["at"]))
    since = row.get("failing_since")
    return {
        **row,
        "said": status,
        "ago": f"{span(seconds)} ago",
        "ago_seconds": seconds,
        "lasts": span(max(0.0, now - _seconds(since))) if since else "",
        "pieces": row["remedy"].split("`"),
    }


def _summary(status: Status, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    failing = sum(row["rank"] == 0 for row in rows)
    unserved = sum(row["rank"] == 1 for row in rows)
    if status.missing:
        verdict, tone = f"Not ready: {', '.join(status.missing)} missing", "bad"
    elif failing:
        verdict, tone = _many(failing, "guest fails", "guests fail"), "bad"
    elif unserved:
        verdict, tone = _many(unserved, "port is not served", "ports are not served"), "warn"
    else:
        verdict, tone = "Ready" if status.ports is None else "Ready, no guest fails", "good"
    dead = sum(row["state"] == model.PortState.DEAD for row in rows)
    return {
        "verdict": verdict,
        "tone": tone,
        "failing": failing,
        "unserved": unserved,
        "dead": dead,
        # All other ports are served: ports that are not served have ranks of their own.
        "served": len(rows) - failing - unserved - dead,
        "total": len(rows),
    }


# Figures


def _figures(samples: metrics.Samples) -> dict[str, Any]:
    def labels_of(name: str) -> list[tuple[dict[str, str], float]]:
        return [(dict(labels), value) for (key, labels), value in samples.items() if key == name]

    def total(name: str) -> float:
        return sum(value for _labels, value in labels_of(name))

    def by(name: str, label: str) -> Figures:
        return sorted(_added((labels[label], value) for labels, value in labels_of(name)).items())

    def table(name: str, row: str, column: str) -> dict[str, dict[str, float]]:
        rows: dict[str, dict[str, float]] = {}
        for labels, value in labels_of(name):
            rows.setdefault(labels[row], {})[labels[column]] = value
        return dict(sorted(rows.items()))

    lookups = table("dfmeta_identity_lookups_total", "source", "outcome")
    return {
        "classes": CLASSES[:-1],
        "requests": table("dfmeta_requests_total", "backend", "status").items(),
        "asked": total("dfmeta_requests_total"),
        "connections": total("dfmeta_open_connections"),
        "held_syns": total("dfmeta_held_syns"),
        "connected": total("dfmeta_switch_connected") > 0,
        "lookups": lookups.items(),
        "outcomes": sorted({outcome for row in lookups.values() for outcome in row}),
        "sets": [
            ("requests", "Refused by dfmeta", by("dfmeta_refused_requests_total", "reason")),
            ("requests", "Held", by("dfmeta_held_requests_total", "why")),
            ("requests", "Delayed", [("rate", total("dfmeta_delayed_requests_total"))]),
            ("requests", "Closed", by("dfmeta_closed_connections_total", "reason")),
            ("requests", "Limits reached", by("dfmeta_limits_hit_total", "limit")),
            ("flows", "Flows by table", _by_table(by("dfmeta_flows", "purpose"))),
            ("flows", "Comparisons with the switch", by("dfmeta_reconciles_total", "result")),
            ("flows", "Flows sent", by("dfmeta_flow_mods_total", "command")),
            ("flows", "First SYNs of addresses", by("dfmeta_packet_ins_total", "outcome")),
            ("flows", "Dropped, floods last", by("dfmeta_dropped_packets_total", "reason")),
            ("store", "Lookups", by("dfmeta_store_lookups_total", "outcome")),
        ],
    }


def _by_table(purposes: Figures) -> Figures:
    """Add up the numbers of flows by the names of their tables."""
    return list(
        _added(
            (table_of(_STAGES[name]).name if name in _STAGES else name, value)
            for name, value in purposes
        ).items()
    )


def _added(figures: Iterable[tuple[str, float]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for name, value in figures:
        totals[name] = totals.get(name, 0.0) + value
    return totals


# Words


def _many(count: int, singular: str, plural: str) -> str:
    return f"{count} {singular if count == 1 else plural}"


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).isoformat()


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def _ago(moment: str, now: float) -> str:
    return f"{span(max(0.0, now - _seconds(moment)))} ago"
