"""Which authorities a client trusts: the same for every client of dfmeta's."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any


def client_context(
    authorities: str | None = None, *, create: Callable[..., Any] | None = None
) -> ssl.SSLContext:
    """Return what a client checks servers' certificates against, and their names (RFC 9110, 4.3.4).

    The system's authorities are those that OpenSSL finds, ``SSL_CERT_FILE`` and ``SSL_CERT_DIR``
    of the environment included (SSL_CTX_set_default_verify_paths(3)). Libraries that have a list
    of their own, as httplib2 and requests have certifi's, are given this instead: an operator adds
    an authority to the system once. Files are read here; TLS 1.2 is the least.

    :param authorities: PEM file of those that alone are trusted; None or empty: the system's.
    :param create: ``ssl.create_default_context``, or eventlet's; None: the one of this process.
    :raises OSError: the file cannot be read, or there is no certificate in it (ssl.SSLError).
    """
    # Looked up now: eventlet, which may have put its own there, comes after this module.
    make = create or ssl.create_default_context
    context: ssl.SSLContext = make(cafile=authorities or None)
    return context
