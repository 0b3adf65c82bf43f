"""Requests to Nova: the headers that name the instance, and the signature that proves them.

This module does not use eventlet's hub: ``dfmeta doctor`` sends the same requests as the daemon, in
threads of its own.
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
    """Settings of the connection to Nova."""

    hosts: Sequence[HttpHost]
    secret: bytes
    protocol: str = "http"
    insecure: bool = False
    ca_cert: str | None = None
    client_cert: str | None = None
    client_key: str | None = None


def signed(secret: bytes, instance_id: str, project_id: str) -> str:
    """Return the header lines that identify the instance (``nova/api/metadata/handler.py``).

    :param instance_id, project_id: from the operator or an identity source; they are checked to be
        valid header values.
    :raises BackendError: when one of them is not a valid header value.
    """
    if not PRINTABLE.fullmatch(instance_id) or not PRINTABLE.fullmatch(project_id):
        raise BackendError(
            backend=BACKEND,
            cause="the id of the instance or of its project is not a valid header value",
            remedy="See its source with: dfmeta ports",
        )
    signature = hmac.new(secret, instance_id.encode(), hashlib.sha256).hexdigest()
    return (
        f"X-Instance-ID: {instance_id}\r\nX-Tenant-ID: {project_id}\r\n"
        f"X-Instance-ID-Signature: {signature}\r\n"
        # A compressed answer would be forwarded as it is, but few guests can decompress it.
        "Accept-Encoding: identity\r\nUser-Agent: dfmeta\r\n"
    )


def host_header(host: HttpHost) -> bytes:
    """Return the value of a request's Host header (RFC 9112, 3.2)."""
    # A zone is valid on this host only (RFC 6874, 1).
    authority = HttpHost(host.host.partition("%")[0], host.port).authority
    try:
        return authority.encode("idna")
    except UnicodeError:
        return authority.encode("ascii", "replace")  # it cannot be resolved
