"""Requests that a web page of somebody else has an operator's browser make. Pure functions.

A listener that asks for no authentication belongs where the host alone reaches it; a browser there,
or behind ``ssh -L``, does. A page may send a request without asking anybody first (Fetch, "simple"
requests), and may have a name of its own resolved to loopback, and then read the answer too (DNS
rebinding). What a browser says of itself no page can take away or change: Host, Origin and
Sec-Fetch-Site are forbidden request-headers (Fetch, 2.2.2).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, Final

OTHERS: Final = frozenset({"cross-site", "same-site"})
"""Values of Sec-Fetch-Site (W3C, Fetch Metadata Request Headers, 2.4) that a page elsewhere has."""
HOW: Final = "use an address of this host, localhost, or the name in admin_listen"
_LABEL: Final = re.compile(r"[a-z0-9_-]+")
_HOST: Final = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^\[\]:@/\s]+)(?::\d{1,5})?")


def own_name(host: str, listen: str) -> bool:
    """Whether Host is a name that no other page can have: an address, ours, or one without a dot
    (localhost, a name of /etc/hosts), which nobody gets in the public DNS.

    :param host: the header's value; empty: there is none, so that it is no browser's.
    :param listen: admin_listen, HOST:PORT.
    """
    if not host:
        return True
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = found["name"].lower().rstrip(".")
    ours = listen.rpartition(":")[0].strip("[]").lower()
    return name == ours or bool(_LABEL.fullmatch(name)) or _is_address(name.strip("[]"))


def shown(host: str) -> str:
    """A Host as a message may repeat it."""
    return "".join(char if char.isascii() and char.isprintable() else "?" for char in host[:64])


def stranger(environ: Mapping[str, Any], listen: str) -> str:
    """Say why a request counts as another site's; empty where it does not.

    :param environ: of PEP 3333.
    :param listen: as :func:`own_name` takes it.
    """
    host = environ.get("HTTP_HOST", "")
    if not own_name(host, listen):
        return f"nothing is served under the name {shown(host)}: {HOW}"
    origin = environ.get("HTTP_ORIGIN", "")
    if origin and origin.lower() != f"http://{host}".lower():
        return "a web page of another site may not ask"
    if environ.get("HTTP_SEC_FETCH_SITE", "") in OTHERS:
        return "a web page of another site may not ask"
    return ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
