"""Requests that a web page of somebody else has an operator's browser make.

A listener that asks for no authentication belongs where the host alone reaches it; a browser there,
or behind ``ssh -L``, does. A page may send a request without asking anybody first (Fetch, "simple"
requests), and may have a name of its own resolved to loopback, and then read the answer too (DNS
rebinding). What a browser says of itself no page can take away or change: Host, Origin and
Sec-Fetch-Site are forbidden request-headers (Fetch, 2.2.2).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

OTHERS: Final = frozenset({"cross-site", "same-site"})
"""Values of Sec-Fetch-Site (W3C, Fetch Metadata Request Headers, 2.4) that a page elsewhere has."""
HOW: Final = "use an address of this host, localhost, this host's name, or the name in admin_listen"
HOSTS: Final = Path("/etc/hosts")
_HOST: Final = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^\[\]:@/\s]+)(?::\d{1,5})?")


def own_names(listen: str, *, hosts: Path = HOSTS) -> frozenset[str]:
    """Say which names are ours, beside addresses: localhost, the host's own, and the listener's.

    No name server is asked: a name that one gives may be the attacker's, and one without a dot is
    asked for with the search domain of the network. The fully qualified name is the one that stands
    beside the host's name in hosts(5).

    :param listen: admin_listen, HOST:PORT.
    :returns: in lower case, without a dot at the end.
    """
    host = _plain(socket.gethostname())
    names = {"localhost", host, _plain(listen.rpartition(":")[0].strip("[]"))}
    for line in _lines(hosts):
        _address, *beside = map(_plain, line.partition("#")[0].split() or [""])
        if host in beside:
            names.update(beside)
    return frozenset(names - {""})


def own_name(host: str, names: frozenset[str]) -> bool:
    """Whether Host is one that no page of another site can have: an address, or a name of ours.

    :param host: the header's value; empty: there is none, so that it is no browser's.
    :param names: see :func:`own_names`.
    """
    if not host:
        return True
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = _plain(found["name"])
    return name in names or _is_address(name.strip("[]"))


def shown(host: str) -> str:
    """A Host as a message may repeat it."""
    return "".join(char if char.isascii() and char.isprintable() else "?" for char in host[:64])


def stranger(environ: Mapping[str, Any], names: frozenset[str]) -> str:
    """Say why a request counts as another site's; empty where it does not.

    :param environ: of PEP 3333.
    :param names: see :func:`own_names`.
    """
    host = environ.get("HTTP_HOST", "")
    if not own_name(host, names):
        return f"nothing is served under the name {shown(host)}: {HOW}"
    origin = environ.get("HTTP_ORIGIN", "")
    if origin and origin.lower() != f"http://{host}".lower():
        return "a web page of another site may not ask"
    if environ.get("HTTP_SEC_FETCH_SITE", "") in OTHERS:
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
