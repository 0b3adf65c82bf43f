"""Protection against requests that a foreign web page makes through an operator's browser.

A listener without authentication should be reachable only from its own host. A browser on that
host, or behind ``ssh -L``, reaches it. A web page may send a request without permission (Fetch,
"simple" requests). It may also resolve a name of its own to loopback, and then read the answer too
(DNS rebinding). But no page can remove or change these headers of the browser: Host, Origin and
Sec-Fetch-Site are forbidden request-headers (Fetch, 2.2.2).
"""

import re
import socket
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final

OTHERS: Final = frozenset({"cross-site", "same-site"})
"""Values of Sec-Fetch-Site for pages of other sites (W3C, Fetch Metadata Request Headers, 2.4)."""
HOW: Final = "use an address of this host, localhost, this host's name, or the name in admin_listen"
HOSTS: Final = Path("/etc/hosts")
_HOST: Final = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^\[\]:@/\s]+)(?::\d{1,5})?")


def own_names(listen: str, *, hosts: Path = HOSTS) -> frozenset[str]:
    """Return the accepted host names: localhost, the host's names, and the listener's name.

    No name server is queried. Its answer may be the attacker's, and a name without a dot is
    queried with the search domain of the network. The fully qualified name is the one next to the
    host's name in hosts(5).

    :param listen: admin_listen, HOST:PORT.
    :returns: names in lower case, without a dot at the end.
    """
    host = _plain(socket.gethostname())
    names = {"localhost", host, _plain(listen.rpartition(":")[0].strip("[]"))}
    for line in _lines(hosts):
        _address, *beside = map(_plain, line.partition("#")[0].split() or [""])
        if host in beside:
            names.update(beside)
    return frozenset(names - {""})


def own_name(host: str, names: frozenset[str]) -> bool:
    """Return whether no page of another site can have this Host: it is an address or an own name.

    :param host: the header's value; empty if there is none, so the client is not a browser.
    :param names: see :func:`own_names`.
    """
    if not host:
        return True
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = _plain(match["name"])
    return name in names or _is_address(name.strip("[]"))


def shown(host: str) -> str:
    """Return a Host in a form that is safe to repeat in a message."""
    return "".join(char if char.isascii() and char.isprintable() else "?" for char in host[:64])


def cross_origin_reason(headers: Mapping[str, str], names: frozenset[str]) -> str:
    """Return the reason to refuse a request as another site's; empty to accept it.

    :param headers: of the request, by names in any case.
    :param names: see :func:`own_names`.
    """
    host = headers.get("Host", "")
    if not own_name(host, names):
        return f"nothing is served under the name {shown(host)}: {HOW}"
    origin = headers.get("Origin", "")
    if origin and origin.lower() != f"http://{host}".lower():
        return "a web page of another site may not ask"
    if headers.get("Sec-Fetch-Site", "") in OTHERS:
        return "a web page of another site may not ask"
    return ""


def _plain(name: str) -> str:
    return name.lower().rstrip(".")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
