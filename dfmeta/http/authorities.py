"""Certificate authorities that dfmeta trusts; the same for all its clients."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any


def client_context(
    authorities: str | None = None, *, create: Callable[..., Any] | None = None
) -> ssl.SSLContext:
    """Return a TLS context that verifies servers' certificates and names (RFC 9110, 4.3.4).

    The system's authorities are those that OpenSSL finds, including ``SSL_CERT_FILE`` and
    ``SSL_CERT_DIR`` of the environment (SSL_CTX_set_default_verify_paths(3)). Libraries with their
    own list, such as httplib2 and requests with certifi's, get this context instead, so that an
    operator has to add an authority only to the system. This function reads the files. The minimum
    version is TLS 1.2. A connection that ends without the closing alert is an error
    (:func:`is_cut`), if the caller's socket does not suppress it.

    :param authorities: PEM file of the only trusted authorities; None or empty: the system's.
    :param create: ``ssl.create_default_context``, or eventlet's; None: the one of this process.
    :raises OSError: the file cannot be read, or contains no certificate (ssl.SSLError).
    """
    # Looked up here, because eventlet may replace it after the import of this module.
    make = create or ssl.create_default_context
    context: ssl.SSLContext = make(cafile=authorities or None)
    # Debian 12's Python ignores by default that a connection was cut (python/cpython#95494).
    context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    return context


def is_cut(error: ssl.SSLError) -> bool:
    """Return whether the connection ended without the closing alert (RFC 8446, 6.1).

    An attacker can end it so. Python has an exception of its own for it since 3.11.4.
    """
    return isinstance(error, ssl.SSLEOFError) or error.reason == "UNEXPECTED_EOF_WHILE_READING"
