"""TLS settings of a client of Nova: trusted authorities and the client's certificate."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

from dfmeta.exceptions import StartError
from dfmeta.trust import client_context


def nova_context(
    ca_cert: str | None,
    *,
    cert: str | None,
    key: str | None,
    insecure: bool = False,
    create: Callable[..., Any] | None = None,
) -> ssl.SSLContext:
    """Return the context of :func:`dfmeta.trust.client_context` with the client's certificate.

    There is no ALPN, since only HTTP/1.1 is used. Files are read here and not again.

    :param ca_cert: PEM file of authorities; None: the system's.
    :param cert: PEM file of the client's certificate; *key*: its private key, unencrypted.
    :param insecure: accept any certificate of any server.
    :param create: see :func:`dfmeta.trust.client_context`.
    :raises StartError: when a file cannot be loaded.
    """
    try:
        context = client_context(ca_cert, create=create)
        if cert:
            # Without it, OpenSSL would ask for a passphrase on the terminal.
            context.load_cert_chain(cert, key, password=lambda: b"")
    except (OSError, ValueError) as error:
        raise StartError(
            cause=f"certificates for Nova cannot be loaded: {error.args[-1]}",
            remedy="See auth_ca_cert, nova_client_cert and nova_client_priv_key",
        ) from error
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
