"""The configuration of haproxy, as text.

How it works: haproxy answers only plain requests itself: GET or HEAD, a path of ordinary
characters, no query, no body, few and short headers, from a source address in the map, and not for
the file that the daemon completes (:mod:`dfmeta.proxy.subports`). All other requests go to the
daemon (:mod:`dfmeta.proxy.haproxy.handover`), whose own engine answers or refuses them as it always
does. So the rules here need not repeat the engine's, and a request that two parsers could read in
two ways is read by the stricter one.

The map has one value for each source address: all that identifies a guest, separated by "|"
(:mod:`dfmeta.proxy.haproxy.entries`). A request looks it up once, and the answer leaves only while
the value is still the same.

Source: HAProxy 2.6, configuration manual, sections 3 (global), 4.2 (keywords), 5.2 (server), 7.3
(fetching samples). Trust: all parameters come from the operator or the daemon. Nothing of a guest
is part of this text.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from dfmeta.flows.pipeline import METADATA_IP
from dfmeta.proxy.limits import Limits
from dfmeta.proxy.network_data import FIRST, LAST

MARGIN: Final = 512
"""Bytes by which a plain request is shorter than the daemon's engine allows: haproxy counts them a
little differently."""
PLAIN_LINES: Final = 24
"""Header lines of a plain request."""
MORE_LINES: Final = 64
"""Header lines beyond the limit of the daemon's engine that haproxy reads, to hand them over."""
BUFFER: Final = 16384
"""Bytes of a buffer beyond the limits of the daemon's engine: a request that it refuses must fit,
or haproxy would refuse it in its own way."""
RESERVE: Final = 2048
"""Bytes of a buffer that headers may grow by."""
CONNECT_TIMEOUT: Final = 1.0
"""Seconds until another host of Nova, or the daemon, is tried."""
HANDOVER_EXTRA: Final = 5.0
"""Seconds beyond all waits of the daemon's engine after which haproxy gives up on the daemon."""
PORTS: Final = 16384
"""Guests' ports whose connections haproxy counts, and a fourth of their addresses."""
FORGET: Final = 600
"""Seconds after which the counts of a guest without requests are forgotten."""
ODD: Final = 20
"""Failed requests of an address in ten seconds after which no more of them are logged."""

NOVA: Final = "nova"
NOVA_CLOSES: Final = "nova_closes"
"""Nova, where a Nova without an answer in time is answered with 503, or not answered."""
PARTS: Final = ("instance", "project", "signature", "address", "port", "claim")
"""Parts of a value of the map, in its order, and the variables of a connection that have them."""

_OWN_PATHS: Final = (
    *("/api", "/healthz", "/metrics", "/version", "/ports", "/probe", "/options", "/device-"),
    *("/records", "/latest/api"),
)
"""Beginnings of paths that the daemon itself answers, and of some others."""
_ODD_IN_TARGETS: Final = (*"!\"#$%&'()*+,:;<=>?@[\\]^`{|}", "//")
"""What no plain target has: a query, an escape, an absolute form (RFC 9112, 3.2.2)."""
_COMMON: Final = "achux"
"""First letters of all headers that Nova gets, and of most headers of guests; in lower case, as in
haproxy."""
_RARE: Final = "".join(
    one for one in f"{string.ascii_lowercase}{string.digits}!#$%&'*+-.^_`|~" if one not in _COMMON
)
"""The other characters that a header's name may begin with (RFC 9110, 5.6.2)."""
_FOR_NOVA: Final = (
    ("User-Agent", "dfmeta"),
    ("Accept-Encoding", "identity"),
    ("X-Instance-ID", "%[var(sess.instance)]"),
    ("X-Tenant-ID", "%[var(sess.project)]"),
    ("X-Instance-ID-Signature", "%[var(sess.signature)]"),
    ("X-Forwarded-For", "%[var(sess.address)]"),
)
"""Headers that Nova gets, beside Host and Accept."""
_FORWARDED: Final = (
    *(f"x{one}forwarded{other}for" for one in "-_" for other in "-_"),
    *("forwarded:", "via:"),
)
"""Parts of the headers, in lower case, that may be a header of a proxy."""
_NOTHING: Final = "/dev/null"
"""Instead of an answer: the connection ends."""
_ODD_HEADERS: Final = (
    "content-length",
    "transfer-encoding",
    "expect",
    "upgrade",
    "te",
    "trailer",
    "x-aws-ec2-metadata-token",
)
"""Headers that announce a body or another protocol, and EC2's token."""
_CHANGED: Final = 500
"""Status that stands for a guest that has changed; it is answered with nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NovaServer:
    """One address of one Nova host."""

    host: str
    """Name or address as the operator wrote it, for the certificate."""
    authority: str
    """Value of the Host header."""
    address: IPv4Address | IPv6Address
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptors:
    """Descriptors that haproxy inherits."""

    listeners: tuple[int, ...]
    """The guests' listeners."""
    cli: int
    """haproxy's end of the runtime interface."""
    log: int
    """Pipe for the lines about failed requests."""
    map: int
    """File of the map, which is empty."""
    away: int
    """File with the answer for a Nova that gives none."""
    ca: int | None = None
    """File of trusted authorities; None: the system's."""
    cert: int | None = None
    """File of the client's certificate and key; None: it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that the configuration depends on, except descriptors and certificates."""

    servers: tuple[NovaServer, ...]
    """Nova's hosts in their order; empty: the daemon is asked for everything."""
    several: bool = False
    """Whether there are several hosts, so that a slow one is given half of the time."""
    tls: bool = False
    insecure: bool = False
    """With TLS: whether any certificate is accepted."""
    limits: Limits = field(default_factory=Limits)
    hold_timeout: float = 8.0
    """Seconds."""
    timeout_answer: str = "auto"
    """``auto``, ``503`` or ``close``."""
    refuse_forwarded: bool = False
    """Whether requests that a proxy forwarded are refused."""
    network_data_subports: bool = False
    """Whether the daemon is asked for every network_data.json, to complete it."""
    threads: int = 1
    maxconn: int = 4096
    hosts: tuple[str, ...] = (METADATA_IP,)
    """Values of the Host header of plain requests."""
    handover: str
    """Name of the daemon's listener in the abstract namespace (unix(7))."""


def map_name(given: Descriptors) -> str:
    """Return the name of the map, for the configuration and the runtime interface."""
    return _path(given.map)


def render(plan: Plan, given: Descriptors) -> str:
    """Return the configuration."""
    lines = [
        *_global(plan, given),
        *_defaults(plan),
        *_frontend(plan, given),
        *_nova(NOVA, plan, given),
        *_nova(NOVA_CLOSES, plan, given),
        *_handover(plan),
        *_tables(),
    ]
    return "\n".join(lines) + "\n"


def _global(plan: Plan, given: Descriptors) -> Iterator[str]:
    head = plan.limits.head
    yield "global"
    yield f"    maxconn {plan.maxconn}"
    yield f"    nbthread {plan.threads}"
    yield f"    stats socket sockpair@{given.cli} level admin"
    yield "    stats timeout 1h"
    yield f"    log fd@{given.log} format raw local0"
    yield "    hard-stop-after 10s"
    yield f"    tune.bufsize {BUFFER + head.header + head.request_line}"
    yield f"    tune.maxrewrite {RESERVE}"
    yield f"    tune.http.maxhdr {head.lines + MORE_LINES}"


def _defaults(plan: Plan) -> Iterator[str]:
    limits = plan.limits
    share = plan.hold_timeout / 2 if plan.several else plan.hold_timeout
    yield "defaults"
    yield "    mode http"
    yield "    option abortonclose"
    yield "    http-reuse always"
    yield f"    timeout http-request {_ms(limits.header_timeout)}"
    yield f"    timeout http-keep-alive {_ms(limits.keepalive_timeout)}"
    yield f"    timeout client {_ms(limits.send_timeout)}"
    yield f"    timeout connect {_ms(CONNECT_TIMEOUT)}"
    yield f"    timeout queue {_ms(plan.hold_timeout)}"
    yield f"    timeout server {_ms(share)}"
    yield "    timeout check 2s"


def _frontend(plan: Plan, given: Descriptors) -> Iterator[str]:
    limits, guests = plan.limits, f"src,map_ip({map_name(given)})"
    most = limits.connections_per_port + limits.waiting_per_port
    yield "frontend guests"
    for listener in given.listeners:
        # Without "proto h1" haproxy would speak HTTP/2 with a guest that begins so.
        yield f"    bind fd@{listener} proto h1"
    if not limits.keepalive_timeout:
        yield "    option httpclose"
    yield "    log global"
    yield '    log-format "%[var(sess.claim)] %ST %tsc %b %HP"'
    # With the time of arrival, and whether the guest was known, for the daemon.
    yield "    unique-id-format %Ts.%ms%[var(sess.port)]"
    yield f"    tcp-request connection set-var(sess.who) {guests}"
    for place, part in enumerate(PARTS, 1):
        yield f"    tcp-request connection set-var(sess.{part}) var(sess.who),word({place},|)"
    yield "    acl began var(sess.claim) -m found"
    yield "    tcp-request connection track-sc0 var(sess.port) table of_port if began"
    yield "    tcp-request connection track-sc1 var(sess.claim) table of_address if began"
    yield f"    tcp-request connection reject if {{ sc0_conn_cur gt {most} }}"
    yield f"    http-request set-var(txn.who) {guests}"
    yield "    acl known var(txn.who) -m found"
    # A connection is one guest's for as long as it lives.
    yield "    http-request reject if began known !{ var(txn.who),strcmp(sess.who) eq 0 }"
    # No regular expressions: haproxy compiles them to machine code, which the unit's
    # MemoryDenyWriteExecute= forbids.
    yield "    acl plain method GET HEAD"
    yield "    acl plain_target url -m beg /"
    yield f"    acl odd url -m sub {_quoted(_ODD_IN_TARGETS)}"
    yield f"    acl odd path -m beg {_quoted(_OWN_PATHS)}"
    yield f"    acl plain_host req.fhdr(host) -m str {_quoted(plan.hosts)}"
    yield "    acl plain_version req.ver 1.0 1.1"
    for name in _ODD_HEADERS:
        yield f"    acl odd req.fhdr({name}) -m found"
    yield "    acl odd req.fhdr_cnt(accept) gt 1"
    yield f"    acl odd req.fhdr_cnt gt {min(limits.head.lines, PLAIN_LINES)}"
    yield f"    acl odd req.hdrs,length gt {max(limits.head.header - MARGIN, 0)}"
    yield f"    acl odd url,length gt {max(limits.head.request_line - MARGIN, 0)}"
    # More at a time wait for their turn in the daemon.
    yield f"    acl odd sc0_conn_cur gt {limits.requests_per_port}"
    if plan.refuse_forwarded:
        yield f"    acl odd req.hdrs,lower -m sub {_quoted(_FORWARDED)}"
    plain = "known began plain plain_target plain_host plain_version !odd"
    yield f"    use_backend daemon {f'unless {plain}' if plan.servers else ''}"
    if plan.network_data_subports:
        yield f"    use_backend daemon if {{ path_beg {FIRST} }} {{ path_end {LAST} }}"
    if plan.timeout_answer == "auto":
        yield f"    use_backend {NOVA_CLOSES} if {{ path_beg /openstack/ }} !{{ path /openstack/ }}"
    yield f"    default_backend {NOVA_CLOSES if plan.timeout_answer == 'close' else NOVA}"


def _nova(name: str, plan: Plan, given: Descriptors) -> Iterator[str]:
    yield f"backend {name}"
    yield f"    errorfile {_CHANGED} {_NOTHING}"
    for status in (502, 503, 504):
        yield f"    errorfile {status} {_NOTHING if name == NOVA_CLOSES else _path(given.away)}"
    if len(plan.servers) > 1:
        yield "    balance first"
    yield "    option redispatch 1"
    yield "    retries 3"
    slow = " response-timeout" if plan.several else ""
    yield f"    retry-on conn-failure empty-response{slow}"
    # Of the guest's headers, only Accept is sent to Nova, whatever their spelling.
    yield "    http-request set-var(txn.accept) req.fhdr(accept)"
    yield "    http-request set-var(txn.root) path if { path / }"
    yield "    acl accepts var(txn.accept) -m found"
    yield from _deletion(_COMMON)
    # To several hosts as well: haproxy chooses one later.
    hosts = [("Host", server.authority) for server in plan.servers[:1]]
    for header, value in (*hosts, *_FOR_NOVA):
        yield f"    http-request set-header {header} {value}"
    yield "    http-request set-header Accept %[var(txn.accept)] if accepts"
    # Most requests have no header left. One of these rules takes as long as one of the others.
    own = len(hosts) + len(_FOR_NOVA)
    yield (
        f"    http-request allow if {{ req.fhdr_cnt {own} }} !accepts "
        f"or {{ req.fhdr_cnt {own + 1} }} accepts"
    )
    yield from _deletion(_RARE)
    # An answer leaves only while the address still stands for the same guest.
    yield f"    http-response set-var(txn.now) src,map_ip({map_name(given)})"
    yield (
        f"    http-response deny deny_status {_CHANGED} "
        "unless { var(txn.now),strcmp(txn.who) eq 0 }"
    )
    yield "    acl well status 200:399"
    yield "    http-response sc-inc-gpc0(1) if well"
    # The list of versions is the same for each guest.
    yield "    http-response sc-inc-gpc1(1) if well !{ var(txn.root) -m found }"
    yield f"    http-response set-log-level silent if well or {{ sc1_http_err_rate gt {ODD} }}"
    yield "    http-response del-header server"
    for number, server in enumerate(plan.servers):
        yield f"    server nova{number} {_address(server)} {_server(server, plan, given)}"
    yield f"    server daemon abns@{plan.handover} backup send-proxy-v2 proxy-v2-options unique-id"


def _deletion(firsts: str) -> Iterator[str]:
    """Yield the rules that delete all headers whose names begin with one of the characters."""
    for first in firsts:
        yield f"    http-request del-header {_quoted([first])} -m beg"


def _server(server: NovaServer, plan: Plan, given: Descriptors) -> str:
    rest = "inter 2s downinter 10s" if plan.several else "inter 1s"
    words = [f"check {rest} fall 1 rise 1 observe layer4 error-limit 1 on-error mark-down"]
    if plan.tls:
        words.append("ssl ssl-min-ver TLSv1.2")
        if plan.insecure:
            words.append("verify none")
        else:
            authorities = _path(given.ca) if given.ca is not None else "@system-ca"
            words.append(f"verify required verifyhost {server.host} ca-file {authorities}")
        words.append(f"sni str({server.host}) check-sni {server.host}")
        if given.cert is not None:
            words.append(f"crt {_path(given.cert)}")
    return " ".join(words)


def _handover(plan: Plan) -> Iterator[str]:
    waits = plan.hold_timeout + plan.limits.body_timeout + HANDOVER_EXTRA
    yield "backend daemon"
    yield "    http-reuse never"
    yield f"    timeout server {_ms(waits)}"
    # Where the daemon's engine ends without an answer, so does haproxy.
    for status in (502, 503, 504):
        yield f"    errorfile {status} {_NOTHING}"
    yield "    http-request set-log-level silent"
    yield f"    server daemon abns@{plan.handover} send-proxy-v2 proxy-v2-options unique-id"


def _tables() -> Iterator[str]:
    yield "backend of_port"
    yield (
        f"    stick-table type string len 48 size {PORTS} expire {FORGET}s store conn_cur,conn_cnt"
    )
    yield "backend of_address"
    yield (
        f"    stick-table type string len 64 size {4 * PORTS} expire {FORGET}s "
        "store conn_cur,gpc0,gpc1,http_err_rate(10s)"
    )


def _quoted(patterns: Iterable[str]) -> str:
    """Return patterns as arguments, none of which has a meaning in the configuration."""
    # In single quotes nothing has one, and the quote itself is written in double quotes.
    words = (f"'{one}'" if "'" not in one else f'"{one}"' for one in patterns)
    return " ".join(words)


def _address(server: NovaServer) -> str:
    if server.address.version == 6:
        return f"[{server.address}]:{server.port}"
    return f"{server.address}:{server.port}"


def _path(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def _ms(seconds: float) -> int:
    return max(round(seconds * 1000), 1)
