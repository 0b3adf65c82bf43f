"""The configuration of haproxy, as text.

How it works: haproxy answers only plain requests itself, and none for the file that the daemon
completes (:mod:`dfmeta.proxy.backends.network_data`). Plain are GET and HEAD of a path of ordinary
characters, with no query, no body, and few and short headers, from a source address in the map. All
other requests go to the daemon (:mod:`dfmeta.proxy.engines.haproxy.handover`), whose own engine
answers or refuses them as it always does. So a rule here may be too strict, and never too lax: a
request that two parsers could read in two ways is read by the stricter one.

The map has one value for each source address: all that identifies a guest, separated by "|"
(:mod:`dfmeta.proxy.engines.haproxy.entries`). A connection takes it at its beginning. haproxy
answers a request, and lets the answer leave, only while the value is still the same.

No regular expressions: haproxy compiles them to machine code, which the unit's
MemoryDenyWriteExecute= forbids.

Source: HAProxy 2.6, configuration manual, sections 3 (global), 4.2 (keywords), 5.2 (server), 7.3
(fetching samples). Trust: all parameters come from the operator or the daemon. Nothing of a guest
is part of this text.
"""

import itertools
import math
import string
from collections.abc import Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Final

from dfmeta.http.limits import CROWDED, FEW
from dfmeta.http.responses import BODY_MAX
from dfmeta.proxy.application import ADMIN, ADMIN_TREES
from dfmeta.proxy.backends import network_data
from dfmeta.proxy.backends.nova import REST
from dfmeta.proxy.engines.haproxy.plan import Descriptors, HaproxyPlan, NovaServer
from dfmeta.proxy.engines.haproxy.runtime import REQUEST
from dfmeta.runtime.clock import ANSWER_TIMEOUT, FULL_CHECK_INTERVAL, POLL
from dfmeta.runtime.throttle import PORTS

BUFFER: Final = 1280
"""Bytes of a buffer beyond the limits of the daemon's engine, of which haproxy takes 8 for each
header line: a request that the engine refuses must fit, or haproxy would refuse it in its own way.
No more: for a second try, haproxy copies the whole buffer of each request, twice, and with 6144
bytes it answers 9 % fewer requests."""
RESERVE: Final = 640
"""Bytes of a buffer that headers may grow by: those for Nova have 500."""
PER_CONNECTION: Final = 3
"""Descriptors of a guest's connection: its own, that of the present request, and an idle one."""
CONNECT_TIMEOUT: Final = 1.0
"""Seconds until another host of Nova, or the daemon, is tried."""
FORGET: Final = 600
"""Seconds after which the counts of a guest without requests are forgotten."""
LINES: Final = 20
"""Lines in the log: of haproxy's own within a minute, and about failed requests of an address
within ten seconds."""

LAST: Final = "X-Dfmeta-Last"
"""Header of the daemon's answers to haproxy: the guest's connection ends with this answer."""
FRONTEND: Final = "guests"
NOVA: Final = "nova"
NOVA_CLOSES: Final = "nova_closes"
"""Nova, where a Nova without an answer in time is answered with 503, or not answered."""
DAEMON: Final = "daemon"
"""Backend and server: the daemon's own engine."""
_TABLES: Final = "counts"
OF_PORT: Final = f"{_TABLES}/of_port"
OF_ADDRESS: Final = f"{_TABLES}/of_address"
OF_VM: Final = f"{_TABLES}/of_vm"
"""Stick-tables: the numbers of a port, of an address, and of a virtual machine with its
containers."""
COUNTED: Final = ("port", "vm")
"""Parts of each value of the map, in its order; the value of a guest whose requests are all the
daemon's has no others. Connections are counted by them."""
PARTS: Final = (*COUNTED, "claim", "address", "project", "instance", "signature")
"""Parts of a value of the map, in its order, and the variables of a connection that have them. The
short ones come first: haproxy reads a value up to the part."""
IN_DOUBT: Final = "?"
"""Value of an address whose port has a number in doubt: an answer to it waits, and the daemon has
its requests."""

_IN_SERVERS: Final = frozenset(string.ascii_letters + string.digits + ".:_-")
"""Characters of a server's name (haproxy's configuration manual, 2.2)."""
_COMMON: Final = ("accept-", "c", "h", "u", "x")
"""Beginnings of all headers that Nova gets, except Accept, and of most headers of guests; in lower
case, as in haproxy."""
_RARE: Final = tuple(
    character
    for character in f"{string.ascii_lowercase}{string.digits}!#$%&'*+-.^_`|~"
    if character not in _COMMON
)
"""The other characters that a header's name may begin with (RFC 9110, 5.6.2)."""
_FOR_NOVA: Final = (
    "User-Agent: dfmeta",
    "Accept-Encoding: identity",
    "X-Instance-ID: %[var(sess.instance)]",
    "X-Tenant-ID: %[var(sess.project)]",
    "X-Instance-ID-Signature: %[var(sess.signature)]",
    "X-Forwarded-For: %[var(sess.address)]",
)
"""Headers that Nova gets, beside Host and Accept. haproxy encodes a line's end in a variable."""
_NOTHING: Final = "/dev/null"
"""Instead of an answer: the connection ends."""
_ONE_HOP: Final = ("keep-alive", "te", "trailer", "upgrade")
"""Headers of an answer that end here, as those do that begin with "proxy-" (RFC 9110, 7.6.1)."""
_INTRODUCED: Final = "send-proxy-v2 proxy-v2-options unique-id"
"""How a connection to the daemon begins."""
_BEGAN: Final = "acl began var(sess.claim) -m len 1:"
"""The guest's value had a claim."""
_SETTLE: Final = "settle"
"""Name of the action in Lua."""
CHANGED: Final = int(HTTPStatus.INTERNAL_SERVER_ERROR)
"""Status that stands for a guest that has changed; it is answered with nothing."""


_OWN_PATHS: Final = (
    *(f"/{name}" for name in sorted(ADMIN | ADMIN_TREES)),
    *("/api", "/latest/api", "/dfmeta"),
)
"""Beginnings of paths that the daemon itself answers, and of some others."""
_ODD_IN_TARGETS: Final = (*"!\"#$%&'()*+,:;<=>?@[\\]^`{|}", "//", "/.")
"""What no plain target has: a query, an escape, an absolute form (RFC 9112, 3.2.2), and what the
daemon reads as another path or refuses: doubled slashes, and segments of dots."""
_FORWARDED: Final = (
    *(f"x{first}forwarded{second}for" for first in "-_" for second in "-_"),
    *("forwarded:", "via:"),
)
"""Parts of the headers, in lower case, that may be a header of a proxy."""
_ODD_NAMES: Final = (
    "content-length",
    "transfer-encoding",
    "expect",
    "upgrade",
    ",te",
    "trailer",
    "x-aws-ec2-metadata-token",
)
"""Parts of the list of headers' names, in lower case: headers that announce a body or another
protocol, and EC2's token. A longer name with such a part is no loss."""

_PLAIN: Final = (
    "same plain plain_version !crowded plain_host !odd plain_target !odd_target !odd_names"
)
"""Conditions of a plain request, which haproxy evaluates up to the first that does not hold. The
frontend defines ``same``: the guest is still the same."""


def map_name(given: Descriptors) -> str:
    """Return the name of the map, for the configuration and the runtime interface."""
    return _path(given.map)


def server_names(plan: HaproxyPlan) -> list[str]:
    """Return the names of Nova's servers for the runtime interface."""
    names = _names(plan.servers)
    return [f"{backend}/{name}" for backend in (NOVA, NOVA_CLOSES) for name in names]


def waiting(plan: HaproxyPlan, given: Descriptors) -> str:
    """Return the program in Lua with which an answer waits while its guest's number is in doubt.

    haproxy compares the value of the map after the wait, so this program decides nothing.
    """
    return f"""local guests = Map.new("{map_name(given)}", Map._ip)
core.register_action("{_SETTLE}", {{ "http-res" }}, function(txn)
    local source = txn.f:src()
    for _ = 1, {round(plan.hold_timeout / POLL)} do
        if guests:lookup(source) ~= "{IN_DOUBT}" then
            return
        end
        core.msleep({_ms(POLL)})
    end
end)
"""


def render(plan: HaproxyPlan, given: Descriptors) -> str:
    """Return the configuration."""
    lines = [
        *_global(plan, given),
        *_defaults(plan),
        *_frontend(plan, given),
        *_nova(NOVA, plan, given),
        *_nova(NOVA_CLOSES, plan, given),
        *_handover(plan, given),
        *_tables(),
    ]
    return "\n".join(lines) + "\n"


def _global(plan: HaproxyPlan, given: Descriptors) -> Iterator[str]:
    head = plan.limits.head
    yield "global"
    # haproxy opens twice as many descriptors at most.
    yield f"    maxconn {math.ceil(plan.maxconn * PER_CONNECTION / 2)}"
    yield f"    nbthread {plan.threads}"
    yield f"    stats socket sockpair@{given.cli} level admin"
    yield f"    log fd@{given.log} format raw local0"
    # A request at the runtime interface has to fit too, with its command.
    yield f"    tune.bufsize {BUFFER + max(head.header + head.request_line, REQUEST)}"
    yield f"    tune.maxrewrite {RESERVE}"
    # haproxy hands over the requests that the daemon refuses.
    yield f"    tune.http.maxhdr {2 * head.lines}"
    if given.waiting is not None:
        yield f"    lua-load {_path(given.waiting)}"


def _defaults(plan: HaproxyPlan) -> Iterator[str]:
    limits = plan.limits
    share = plan.hold_timeout / 2 if plan.several else plan.hold_timeout
    yield "defaults"
    yield "    mode http"
    yield "    option abortonclose"
    # A connection to Nova is one guest's, as is the one to the daemon, and each guest's connection
    # has at most one that is idle: bytes behind an answer would be another guest's next answer.
    yield "    http-reuse never"
    yield "    max-session-srv-conns 1"
    yield f"    timeout http-request {_ms(limits.header_timeout)}"
    yield f"    timeout http-keep-alive {_ms(limits.keepalive_timeout)}"
    yield f"    timeout client {_ms(limits.send_timeout)}"
    yield f"    timeout connect {_ms(CONNECT_TIMEOUT)}"
    yield f"    timeout queue {_ms(plan.hold_timeout)}"
    yield f"    timeout server {_ms(share)}"
    yield "    timeout check 2s"


def _frontend(plan: HaproxyPlan, given: Descriptors) -> Iterator[str]:
    limits, guests = plan.limits, f"src,map_ip({map_name(given)})"
    yield f"frontend {FRONTEND}"
    yield f"    maxconn {plan.maxconn}"
    for listener in given.listeners:
        # Without "proto h1" haproxy would speak HTTP/2 with a guest that begins so.
        yield f"    bind fd@{listener} proto h1"
    if not limits.keepalive_timeout:
        yield "    option httpclose"
    # A connection that sends nothing in time is closed without haproxy's 408.
    yield "    option http-ignore-probes"
    yield "    log global"
    yield '    log-format "%[var(sess.claim)] %ST %tsc %b %HP %HM %B %Ta %Tr %Tw"'
    # With the time of arrival, and whether the guest was known, for the daemon.
    yield "    unique-id-format %Ts.%ms%[var(sess.port)]"
    yield f"    tcp-request connection set-var(sess.who) {guests}"
    yield f"    tcp-request connection unset-var(sess.who) if {{ var(sess.who) -m str {IN_DOUBT} }}"
    # A word beyond the last one is empty, and found.
    for place, part in enumerate(PARTS, 1):
        yield f"    tcp-request connection set-var(sess.{part}) var(sess.who),word({place},|)"
    yield from _shares(plan)
    yield f"    {_BEGAN}"
    yield f"    tcp-request connection track-sc1 var(sess.claim) table {OF_ADDRESS} if began"
    # No request of another guest is plain.
    yield "    tcp-request connection unset-var(sess.who) unless began"
    yield f"    acl same {guests},strcmp(sess.who) eq 0"
    yield from _plain_acls(plan)
    unless = f"unless {_PLAIN}" if plan.servers else ""
    yield f"    use_backend {DAEMON} {unless}"
    if plan.network_data_subports:
        # Too strict, so that each spelling is the daemon's.
        yield f"    use_backend {DAEMON} if {{ path -m sub {network_data.LAST} }}"
    if plan.timeout_answer == "auto":
        # A version, or a path below one.
        yield "    acl version path -m beg /openstack/"
        yield "    acl versions path -m str /openstack/"
        yield f"    use_backend {NOVA_CLOSES} if version !versions"
    yield f"    default_backend {NOVA_CLOSES if plan.timeout_answer == 'close' else NOVA}"


def _shares(plan: HaproxyPlan) -> Iterator[str]:
    """Yield the rules that refuse connections beyond the shares of their port and its VM.

    A source without an entry has no share. It is about to get one, or its guest is gone.
    """
    for number, (part, table) in enumerate(zip(COUNTED, (OF_PORT, OF_VM), strict=True)):
        counter, var = number * 2, f"var(sess.{part})"
        yield (
            f"    tcp-request connection track-sc{counter} {var} table {table}"
            f" if {{ {var} -m found }}"
        )
    yield f"    tcp-request connection reject if {{ sc0_conn_cur gt {plan.limits.per_port} }}"
    (_none, share), *crowded = plan.limits.shares(plan.maxconn)
    yield f"    tcp-request connection reject if {{ sc2_conn_cur gt {share} }}"
    many = f"{{ sc0_conn_cur gt {FEW} }}"
    yield (
        f"    tcp-request connection reject if {{ sc2_conn_cur gt {int(share * CROWDED)} }} {many}"
    )
    for begins, share in crowded:
        few = f"!{{ sc2_conn_cur le {share} }}"
        yield f"    tcp-request connection reject if {{ fe_conn gt {begins} }} {few}"


def _plain_acls(plan: HaproxyPlan) -> Iterator[str]:
    """Yield the lines of the frontend that define the names in :data:`_PLAIN`."""
    limits = plan.limits
    yield "    acl plain method GET HEAD"
    yield f"    acl plain_host req.fhdr(host) -m str {_quoted(plan.hosts)}"
    yield "    acl plain_version req.ver 1.0 1.1"
    # NUL, which haproxy 2.6 lets pass, and no pattern can have. A "%" is encoded as well.
    yield "    acl odd req.hdrs,url_enc -m sub %00"
    yield f"    acl odd req.hdrs -m len {limits.head.header // 2 + 1}:"
    if plan.refuse_forwarded:
        yield f"    acl odd req.hdrs,lower -m sub {_quoted(_FORWARDED)}"
    # More at a time wait for their turn in the daemon.
    yield f"    acl crowded sc0_conn_cur gt {limits.requests_per_port}"
    yield "    acl plain_target url -m beg /"
    yield f"    acl odd_target url -m sub {_quoted(_ODD_IN_TARGETS)}"
    # The list of versions is the same for each guest, so that it does not count as an answer that
    # shows that Nova knows the guest.
    yield "    acl odd_target url -m str /"
    yield f"    acl odd_target path -m beg {_quoted(_OWN_PATHS)}"
    yield f"    acl odd_target url -m len {limits.head.request_line // 2 + 1}:"
    yield f"    acl odd_names req.hdr_names -m sub {_quoted(_ODD_NAMES)}"
    yield "    acl odd_names req.hdr_names -m beg te"
    yield "    acl odd_names req.fhdr_cnt(accept) gt 1"
    yield f"    acl odd_names req.fhdr_cnt gt {limits.head.lines // 2}"


def _quoted(patterns: Iterable[str]) -> str:
    """Return patterns as arguments, none of which has a meaning in the configuration."""
    # In single quotes nothing has one, and the quote itself is written in double quotes.
    words = (f"'{text}'" if "'" not in text else f'"{text}"' for text in patterns)
    return " ".join(words)


def _nova(name: str, plan: HaproxyPlan, given: Descriptors) -> Iterator[str]:
    yield f"backend {name}"
    yield f"    errorfile {CHANGED} {_NOTHING}"
    for status in (502, 503, 504):
        yield f"    errorfile {status} {_NOTHING if name == NOVA_CLOSES else _path(given.away)}"
    if not plan.several:
        # The first that is up. One that has failed to answer is passed over at the next try.
        yield "    balance first"
    yield "    option redispatch 1"
    # Each of several hosts is tried once, and then the daemon if all of them are down.
    yield f"    retries {len(plan.servers) if plan.several else 3}"
    # Only another host may give another answer.
    others = " junk-response response-timeout" if plan.several else ""
    yield f"    retry-on conn-failure empty-response{others}"
    if plan.several:
        yield "    http-request set-var(txn.begun) date(0,ms)"
    if _have_hosts_names(plan.servers):
        # haproxy chooses the host later, and writes the server's name into this header then.
        yield "    http-send-name-header Host"
        hosts = []
    else:
        hosts = [f"Host: {server.authority}" for server in plan.servers[:1]]
    yield from _headers([*_FOR_NOVA, *hosts])
    # An answer leaves only while the address still stands for the same guest.
    yield f"    acl same src,map_ip({map_name(given)}),strcmp(sess.who) eq 0"
    yield "    acl doubt var(txn.doubt) -m found"
    yield "    http-response set-var(txn.doubt) bool(true) unless same"
    if given.waiting is not None:
        yield f"    http-response lua.{_SETTLE} if doubt"
    yield f"    http-response deny deny_status {CHANGED} if doubt !same"
    yield f"    http-response deny deny_status 503 if {{ res.body_size gt {BODY_MAX} }}"
    yield "    acl well status 200:399"
    yield "    http-response sc-inc-gpc0(1) if well"
    if not plan.debug:
        many = f"{{ sc1_http_err_rate gt {LINES} }}"
        yield f"    http-response set-log-level silent if well or {many}"
    yield "    http-response del-header server"
    if plan.several:
        yield from _in_order(plan)
    yield from _last()
    for header in _ONE_HOP:
        yield f"    http-response del-header {header}"
    yield "    http-response del-header proxy- -m beg"
    for called, server in zip(_names(plan.servers), plan.servers, strict=True):
        yield f"    server {called} {_address(server)} {_server(server, plan, given)}"
    # With one host, the daemon goes on after the first failure; with several, the next host does.
    backup = "backup " if plan.several else ""
    yield f"    server {DAEMON} unix@{_path(given.handover)} {backup}{_INTRODUCED}"


def _headers(lines: Sequence[str]) -> Iterator[str]:
    """Yield the rules by which Nova gets these lines and, of a guest's headers, only Accept.

    To haproxy, all lines are one header. Without that, and without the end of the rules for usual
    requests, it answers 5 % fewer requests of kept connections (``bench.proxy --only engine``).
    """
    name, _, value = "\\r\\n".join(lines).partition(": ")
    added = f'    http-request add-header {name} "{value}"'
    yield from _deletion(_COMMON)
    yield added
    # Most requests have no other header left now. There is at most one Accept.
    usual = f"{name.lower()} accept,{name.lower()}"
    yield f"    http-request allow if {{ req.hdr_names -m str {usual} }}"
    yield "    http-request set-var(txn.accept) req.fhdr(accept)"
    yield from _deletion(_RARE)
    yield "    http-request set-header Accept %[var(txn.accept)] if { var(txn.accept) -m found }"


def _in_order(plan: HaproxyPlan) -> Iterator[str]:
    """Yield the rules by which the first host is asked that neither is down nor rests.

    A host rests that has not answered within its share of the time: a check does not find it,
    because it accepts connections. If another server answers after that time, those before it have
    not. haproxy itself tries other servers in turn.
    """
    yield f"    acl late date(0,ms),sub(txn.begun) ge {_ms(plan.hold_timeout / 2)}"
    for number, called in enumerate(_names(plan.servers)):
        yield f"    acl rests{number} date,sub(proc.late{number}) lt {REST:g}"
        yield f"    use-server {called} unless rests{number}"
        later = f"if late {{ srv_id {number + 1} }}"
        yield from (f"    http-response set-var(proc.late{n}) date {later}" for n in range(number))


def _names(servers: Sequence[NovaServer]) -> list[str]:
    if not _have_hosts_names(servers):
        return [f"nova{number}" for number in range(len(servers))]
    names: list[str] = []
    for server in servers:
        # Each name may occur only once. A further address of a host has the host's name in another
        # case, which has no meaning (RFC 9110, 4.2.3).
        cases = (dict.fromkeys((letter, letter.swapcase())) for letter in server.authority)
        spellings = map("".join, itertools.product(*cases))
        names.append(next(spelling for spelling in spellings if spelling not in names))
    return names


def _have_hosts_names(servers: Sequence[NovaServer]) -> bool:
    """Return whether each server has the value of its Host header as its name.

    A name cannot have the brackets of an IPv6 address.
    """
    hosts = {server.authority for server in servers}
    return len(hosts) > 1 and all(set(host) <= _IN_SERVERS for host in hosts)


def _deletion(beginnings: Iterable[str]) -> Iterator[str]:
    """Yield the rules that delete all headers whose names begin in one of those ways."""
    for beginning in beginnings:
        yield f"    http-request del-header {_quoted([beginning])} -m beg"


def _server(server: NovaServer, plan: HaproxyPlan, given: Descriptors) -> str:
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


def _handover(plan: HaproxyPlan, given: Descriptors) -> Iterator[str]:
    waits = plan.hold_timeout + plan.limits.body_timeout + ANSWER_TIMEOUT
    yield f"backend {DAEMON}"
    yield f"    timeout server {_ms(waits)}"
    # Where the daemon's engine ends without an answer, so does haproxy.
    for status in (502, 503, 504):
        yield f"    errorfile {status} {_NOTHING}"
    # A connection is one guest's for as long as it lives.
    guests = f"src,map_ip({map_name(given)})"
    yield f"    {_BEGAN}"
    yield f"    acl same {guests},strcmp(sess.who) eq 0"
    yield f"    acl known {guests} -m found"
    yield f"    acl in_doubt {guests} -m str {IN_DOUBT}"
    yield "    http-request reject if began !same known !in_doubt"
    # haproxy would send another version as 1.1. No target is a "*", so that the daemon refuses it.
    yield "    http-request set-uri * unless { req.ver 1.0 1.1 }"
    yield from _last()
    yield "    http-request set-log-level silent"
    yield f"    server {DAEMON} unix@{_path(given.handover)} {_INTRODUCED}"


def _last() -> Iterator[str]:
    """End a guest's connection where the daemon's engine ends its own."""
    yield f"    http-response set-header Connection close if {{ res.fhdr({LAST}) -m found }}"
    yield f"    http-response del-header {LAST}"


def _tables() -> Iterator[str]:
    """Yield the stick-tables. They belong to no proxy: haproxy empties a proxy's while it ends."""
    yield f"peers {_TABLES}"
    yield "    disabled"
    stored = f"conn_cur,conn_cnt,conn_rate({_ms(FULL_CHECK_INTERVAL)})"
    yield _table(OF_PORT, f"len 48 size {PORTS}", stored)
    yield _table(OF_VM, f"len 16 size {PORTS}", "conn_cur")
    yield _table(OF_ADDRESS, f"len 64 size {4 * PORTS}", "conn_cur,gpc0,http_err_rate(10s)")


def _table(name: str, sizes: str, stored: str) -> str:
    short_name = name.removeprefix(f"{_TABLES}/")
    return f"    table {short_name} type string {sizes} expire {FORGET}s store {stored}"


def _address(server: NovaServer) -> str:
    if server.address.version == 6:
        return f"[{server.address}]:{server.port}"
    return f"{server.address}:{server.port}"


def _path(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def _ms(seconds: float) -> int:
    return max(round(seconds * 1000), 1)
