"""What a client of Nova's trusts and shows in TLS, on whatever context it is given."""

from __future__ import annotations

import ssl
from typing import Any

from dfmeta.exceptions import StartError


def load(
    context: Any, ca_cert: str | None, *, cert: str | None, key: str | None, insecure: bool
) -> None:
    """Load what a client trusts and shows into *context*, an ``ssl.SSLContext`` or eventlet's.

    A server's certificate is checked against its host (RFC 9110, 4.3.4). Files are read here.

    :param ca_cert: PEM file of authorities; None: the system's.
    :param cert: PEM file of the client's certificate, with *key* its private key, unencrypted.
    :param insecure: take any certificate of any server.
    :raises StartError: when a file cannot be loaded.
    """
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        if ca_cert:
            context.load_verify_locations(ca_cert)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if cert:
            # A passphrase would be asked for on the terminal.
            context.load_cert_chain(cert, key, password=lambda: b"")
    except (OSError, ValueError) as error:
        raise StartError(
            cause=f"certificates for Nova cannot be loaded: {error.args[-1]}",
            remedy="See auth_ca_cert, nova_client_cert and nova_client_priv_key",
        ) from error
