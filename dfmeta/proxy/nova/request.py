"""What Nova is asked with: who we say is asking, and the signature that proves it.

Knows no hub: ``dfmeta doctor`` asks as the daemon does, in threads of its own.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dfmeta.exceptions import BackendError
from dfmeta.model import HttpHost

BACKEND = "nova"
PRINTABLE = re.compile(r"[\x20-\x7e]+")


@dataclass(frozen=True, slots=True)
class NovaSettings:
    """How Nova is reached."""

    hosts: Sequence[HttpHost]
    secret: bytes
    protocol: str = "http"
    insecure: bool = False
    ca_cert: str | None = None
    client_cert: str | None = None
    client_key: str | None = None


def signed(secret: bytes, instance_id: str, project_id: str) -> str:
    """Header lines that say who asks, for Nova (``nova/api/metadata/handler.py``).

    :param instance_id, project_id: the operator's word or a source's; checked to be header values.
    :raises BackendError: when one of them cannot stand in a header.
    """
    if not PRINTABLE.fullmatch(instance_id) or not PRINTABLE.fullmatch(project_id):
        raise BackendError(
            backend=BACKEND,
            cause="the id of an instance or of its project cannot stand in a header",
            remedy="See where it comes from with: dfmeta ports",
        )
    signature = hmac.new(secret, instance_id.encode(), hashlib.sha256).hexdigest()
    return (
        f"X-Instance-ID: {instance_id}\r\nX-Tenant-ID: {project_id}\r\n"
        f"X-Instance-ID-Signature: {signature}\r\n"
        # What is packed would pass, but few guests unpack.
        "Accept-Encoding: identity\r\nUser-Agent: dfmeta\r\n"
    )


def host_header(host: HttpHost) -> bytes:
    """Value of a request's Host header (RFC 9112, 3.2)."""
    # A zone means something on this host alone (RFC 6874, 1).
    authority = HttpHost(host.host.partition("%")[0], host.port).authority
    try:
        return authority.encode("idna")
    except UnicodeError:
        return authority.encode("ascii", "replace")  # nobody will be found under it
