"""TLS towards a backend."""

from __future__ import annotations

from typing import Any

from eventlet.green import ssl

from dfmeta.proxy import trust


def client_context(
    ca_cert: str | None, *, cert: str | None, key: str | None, insecure: bool = False
) -> Any:
    """What a client trusts and shows: an ssl.SSLContext of eventlet's, for all its connections.

    TLS 1.2 or later, and no ALPN: HTTP/1.1 is all that is spoken; :func:`.trust.load` says what
    is checked. Files are read here and not again.

    :param ca_cert: PEM file of authorities; None: the system's.
    :param cert: PEM file of the client's certificate, with *key* its private key, unencrypted.
    :param insecure: take any certificate of any server.
    :raises StartError: when a file cannot be loaded.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.load(context, ca_cert, cert=cert, key=key, insecure=insecure)
    return context
