"""Causes of failed requests to Nova, and remedies for the operator.

Nothing that the server sent is quoted: the texts come from the system, from OpenSSL's own tables
and from this module.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import Final

from dfmeta.errors import UpstreamAnswerError, UpstreamAwayError, UpstreamError
from dfmeta.http.client import is_cut

AUTHORITY: Final = "Set auth_ca_cert to the authority that signed Nova's certificate"
CLIENT: Final = (
    "Set nova_client_cert and nova_client_priv_key to a certificate that Nova's server accepts"
)
CLOCK: Final = "Renew Nova's certificate, or set the clock of this host"
NAME: Final = "Set nova_metadata_host to a name that Nova's certificate is for"
LOG: Final = "Read its log"
LISTENS: Final = "Check that Nova's metadata API listens there"
TLS_THERE: Final = "Set nova_metadata_protocol = https"
NO_TLS: Final = "Check that the server speaks TLS, or set nova_metadata_protocol = http"
_VERIFY: Final[Mapping[int, str]] = {
    2: AUTHORITY,  # X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT
    7: AUTHORITY,  # X509_V_ERR_CERT_SIGNATURE_FAILURE
    9: CLOCK,  # X509_V_ERR_CERT_NOT_YET_VALID
    10: CLOCK,  # X509_V_ERR_CERT_HAS_EXPIRED
    18: AUTHORITY,  # X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT
    19: AUTHORITY,  # X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN
    20: AUTHORITY,  # X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY
    21: AUTHORITY,  # X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE
    62: NAME,  # X509_V_ERR_HOSTNAME_MISMATCH
    64: NAME,  # X509_V_ERR_IP_ADDRESS_MISMATCH
}
"""OpenSSL's x509_vfy.h."""
_REASONS: Final[Mapping[str, str]] = {
    "WRONG_VERSION_NUMBER": NO_TLS,
    "HTTP_REQUEST": NO_TLS,
    "PACKET_LENGTH_TOO_LONG": NO_TLS,
    "RECORD_LAYER_FAILURE": NO_TLS,
    "UNEXPECTED_EOF_WHILE_READING": NO_TLS,
    "SSLV3_ALERT_HANDSHAKE_FAILURE": CLIENT,
    "SSLV3_ALERT_BAD_CERTIFICATE": CLIENT,
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": CLIENT,
    "SSLV3_ALERT_CERTIFICATE_REVOKED": CLIENT,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": CLIENT,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": CLIENT,
    "TLSV1_ALERT_UNKNOWN_CA": CLIENT,
    "TLSV1_ALERT_ACCESS_DENIED": CLIENT,
    "TLSV1_ALERT_DECRYPT_ERROR": CLIENT,
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": CLIENT,
    "TLSV1_UNRECOGNIZED_NAME": NAME,
    "TLSV1_ALERT_PROTOCOL_VERSION": "Let Nova's server speak TLS 1.2 or later",
}


def explain_upstream(error: UpstreamError) -> tuple[str, str]:
    """Return cause and remedy of a request that failed."""
    origin = error.__cause__
    if isinstance(error, UpstreamAwayError) and isinstance(origin, Exception):
        return explain(origin)
    if isinstance(origin, ssl.SSLError) and not is_cut(origin):
        return _explain_tls(origin)
    cause = str(error.fields["cause"])
    if isinstance(error, UpstreamAnswerError):
        return cause, TLS_THERE if error.fields.get("tls") else LISTENS
    return cause, LOG


def explain(error: Exception) -> tuple[str, str]:
    """Return cause and remedy of a connection that failed or ended."""
    if isinstance(error, ssl.SSLError):
        return _explain_tls(error)
    if isinstance(error, socket.gaierror | UnicodeError):
        remedy = "Set nova_metadata_host to an address, or to a name that this host can resolve"
        return "its name cannot be resolved", remedy
    if isinstance(error, TimeoutError):
        return "the connection timed out", reach("no firewall blocks it")
    if isinstance(error, ConnectionRefusedError):
        return "connection refused", reach("Nova's metadata API listens there")
    if isinstance(error, ConnectionError):
        return "it closed the connection", LOG
    reason = error.strerror if isinstance(error, OSError) else None
    return reason or type(error).__name__, reach("there is a route to it")


def reach(condition: str) -> str:
    """Return the remedy for a server that cannot be reached."""
    return f"Check that {condition}; nova_metadata_host and nova_metadata_port set the address"


def _explain_tls(error: ssl.SSLError) -> tuple[str, str]:
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = _VERIFY.get(error.verify_code, "Fix Nova's certificate")
        return f"TLS: CERTIFICATE_VERIFY_FAILED: {error.verify_message}", remedy
    reason = error.reason or type(error).__name__
    return f"TLS: {reason}", _REASONS.get(reason, LOG)
