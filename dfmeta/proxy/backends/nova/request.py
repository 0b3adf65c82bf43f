"""Requests to Nova: the headers that name the instance, their signature, and the TLS settings.

This module does not use eventlet's hub: ``dfmeta doctor`` sends the same requests as the daemon, in
threads of its own.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dfmeta.errors import BackendError, StartError
from dfmeta.http.client import client_context
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
    """Whether any certificate of any server is accepted."""
    ca_cert: str | None = None
    """PEM file of authorities; None: the system's."""
    client_cert: str | None = None
    """PEM file of the client's certificate."""
    client_key: str | None = None
    """PEM file of its private key, unencrypted."""


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


def nova_context(
    settings: NovaSettings, *, create: Callable[..., Any] | None = None
) -> ssl.SSLContext | None:
    """Return the context of :func:`dfmeta.http.client.client_context` with the client's
    certificate.

    There is no ALPN, since only HTTP/1.1 is used. Files are read here and not again.

    :param create: see :func:`dfmeta.http.client.client_context`.
    :returns: None without TLS.
    :raises StartError: when a file cannot be loaded.
    """
    if settings.protocol != "https":
        return None
    try:
        context = client_context(settings.ca_cert, create=create)
        if settings.client_cert:
            # Without it, OpenSSL would ask for a passphrase on the terminal.
            context.load_cert_chain(settings.client_cert, settings.client_key, password=lambda: b"")
    except (OSError, ValueError) as error:
        raise StartError(
            cause=f"certificates for Nova cannot be loaded: {error.args[-1]}",
            remedy="See auth_ca_cert, nova_client_cert and nova_client_priv_key",
        ) from error
    if settings.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
