"""What went wrong should be named, with what to do, and nothing that a peer sent."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest

from dfmeta.proxy.nova import remedies
from dfmeta.proxy.nova.remedies import explain


def tls(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, "as OpenSSL says it")
    error.reason = reason
    return error


def unverified(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "as OpenSSL says it")
    error.verify_code, error.verify_message = code, "why"
    return error


@pytest.mark.parametrize(
    ("error", "cause", "remedy"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), "connection refused", "listens there"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "No route to host", "a route to it"),
        (TimeoutError(errno.ETIMEDOUT, "x"), "connection timed out", "firewall"),
        (ConnectionResetError(errno.ECONNRESET, "x"), "closed the connection", "its log"),
        (socket.gaierror(socket.EAI_NONAME, "x"), "cannot be resolved", "nova_metadata_host"),
        (tls("TLSV13_ALERT_CERTIFICATE_REQUIRED"), "CERTIFICATE_REQUIRED", remedies.CLIENT),
        (tls("WRONG_VERSION_NUMBER"), "WRONG_VERSION_NUMBER", remedies.NO_TLS),
        (tls("SOMETHING_NEW"), "SOMETHING_NEW", remedies.LOG),
        (unverified(20), "CERTIFICATE_VERIFY_FAILED: why", remedies.AUTHORITY),
        (unverified(10), "CERTIFICATE_VERIFY_FAILED: why", remedies.CLOCK),
        (unverified(62), "CERTIFICATE_VERIFY_FAILED: why", remedies.NAME),
        (unverified(999), "CERTIFICATE_VERIFY_FAILED: why", "Fix Nova's certificate"),
    ],
    ids=str,
)
def test_failure_has_its_cause_and_a_remedy(error: Exception, cause: str, remedy: str) -> None:
    said, what = explain(error)
    assert cause in said
    assert remedy in what
    assert "as OpenSSL says it" not in said
