"""The rules by which haproxy tells plain requests, which it answers itself, from others.

Plain are GET and HEAD of a path of ordinary characters, with no query, no body, and few and short
headers, from a source address in the map. All other requests go to the daemon. So a rule here may
be too strict, and never too lax: a request that two parsers could read in two ways is read by the
stricter one. The daemon also gets the requests that it answers itself.

No regular expressions: haproxy compiles them to machine code, which the unit's
MemoryDenyWriteExecute= forbids.

Source: HAProxy 2.6, configuration manual, section 7 (ACLs and samples). Trust: the parameters come
from the operator; haproxy compares them with what a guest has sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from dfmeta.proxy.application import ADMIN, ADMIN_TREES
from dfmeta.proxy.engines.haproxy.plan import Plan

MARGIN: Final = 512
"""Bytes by which a plain request is shorter than the daemon's engine allows: haproxy counts them a
little differently."""
PLAIN_LINES: Final = 24
"""Header lines of a plain request."""
_OWN_PATHS: Final = (
    *(f"/{name}" for name in sorted(ADMIN | ADMIN_TREES)),
    *("/api", "/latest/api", "/dfmeta"),
)
"""Beginnings of paths that the daemon itself answers, and of some others."""
_ODD_IN_TARGETS: Final = (*"!\"#$%&'()*+,:;<=>?@[\\]^`{|}", "//", "/.")
"""What no plain target has: a query, an escape, an absolute form (RFC 9112, 3.2.2), and what the
daemon reads as another path or refuses: doubled slashes, and segments of dots."""
_FORWARDED: Final = (
    *(f"x{one}forwarded{other}for" for one in "-_" for other in "-_"),
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

CONDITIONS: Final = (
    "same plain plain_version !crowded plain_host !odd plain_target !odd_target !odd_names"
)
"""Conditions of a plain request, which haproxy evaluates up to the first that does not hold. The
frontend defines ``same``: the guest is still the same."""


def acls(plan: Plan) -> Iterator[str]:
    """Yield the lines of the frontend that define the names in the conditions."""
    limits = plan.limits
    yield "    acl plain method GET HEAD"
    yield f"    acl plain_host req.fhdr(host) -m str {quoted(plan.hosts)}"
    yield "    acl plain_version req.ver 1.0 1.1"
    # NUL, which haproxy 2.6 lets pass, and no pattern can have. A "%" is encoded as well.
    yield "    acl odd req.hdrs,url_enc -m sub %00"
    yield f"    acl odd req.hdrs -m len {max(limits.head.header - MARGIN, 0) + 1}:"
    if plan.refuse_forwarded:
        yield f"    acl odd req.hdrs,lower -m sub {quoted(_FORWARDED)}"
    # More at a time wait for their turn in the daemon.
    yield f"    acl crowded sc0_conn_cur gt {limits.requests_per_port}"
    yield "    acl plain_target url -m beg /"
    yield f"    acl odd_target url -m sub {quoted(_ODD_IN_TARGETS)}"
    # The list of versions is the same for each guest, so that it does not count as an answer that
    # shows that Nova knows the guest.
    yield "    acl odd_target url -m str /"
    yield f"    acl odd_target path -m beg {quoted(_OWN_PATHS)}"
    yield f"    acl odd_target url -m len {max(limits.head.request_line - MARGIN, 0) + 1}:"
    yield f"    acl odd_names req.hdr_names -m sub {quoted(_ODD_NAMES)}"
    yield "    acl odd_names req.hdr_names -m beg te"
    yield "    acl odd_names req.fhdr_cnt(accept) gt 1"
    yield f"    acl odd_names req.fhdr_cnt gt {min(limits.head.lines, PLAIN_LINES)}"


def quoted(patterns: Iterable[str]) -> str:
    """Return patterns as arguments, none of which has a meaning in the configuration."""
    # In single quotes nothing has one, and the quote itself is written in double quotes.
    words = (f"'{one}'" if "'" not in one else f'"{one}"' for one in patterns)
    return " ".join(words)
