"""TLS towards a backend."""

from __future__ import annotations

from typing import Any

from eventlet.green import ssl

from dfmeta.proxy.nova.trust import nova_context


def client_context(
    ca_cert: str | None, *, cert: str | None, key: str | None, insecure: bool = False
) -> Any:
    """Return eventlet's ssl.SSLContext for all connections of a client.

    See :func:`dfmeta.proxy.nova.trust.nova_context`.

    :raises StartError: when a file cannot be loaded.
    """
    return nova_context(
        ca_cert, cert=cert, key=key, insecure=insecure, create=ssl.create_default_context
    )
