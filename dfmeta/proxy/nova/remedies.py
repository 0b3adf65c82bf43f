"""What went wrong on the way to a server, and what an operator can do about it, in words.

Nothing that the server sent is quoted: the words come from the system, from OpenSSL's own tables
and from here.
"""

from __future__ import annotations

import shlex
import socket
import ssl
from collections.abc import Mapping
from typing import Final

from dfmeta.proxy.recent import REASONS, Failure

AUTHORITY: Final = "Set auth_ca_cert to the authority that signed Nova's certificate"
CLIENT: Final = (
    "Set nova_client_cert and nova_client_priv_key to a certificate that Nova's server accepts"
)
CLOCK: Final = "Renew Nova's certificate, or set the clock of this host"
NAME: Final = "Set nova_metadata_host to a name that Nova's certificate is for"
LOG: Final = "Look into its log"
NO_TLS: Final = "Look whether TLS is spoken there, or set nova_metadata_protocol = http"

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


def explain(error: Exception) -> tuple[str, str]:
    """Cause and remedy of a connection that was not made, or ended."""
    if isinstance(error, ssl.SSLError):
        return _explain_tls(error)
    if isinstance(error, socket.gaierror | UnicodeError):
        remedy = "Set nova_metadata_host to an address, or to a name that this host can resolve"
        return "its name cannot be resolved", remedy
    if isinstance(error, TimeoutError):
        return "it cannot be connected to in time", reach("no firewall is between")
    if isinstance(error, ConnectionRefusedError):
        return "connection refused", reach("Nova's metadata API listens there")
    if isinstance(error, ConnectionError):
        return "it closed the connection", LOG
    said = error.strerror if isinstance(error, OSError) else None
    return said or type(error).__name__, reach("there is a route to it")


def reach(condition: str) -> str:
    """What to do about a server that cannot be reached."""
    return f"Look whether {condition}; nova_metadata_host and nova_metadata_port say where"


def _explain_tls(error: ssl.SSLError) -> tuple[str, str]:
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = _VERIFY.get(error.verify_code, "Mend Nova's certificate")
        return f"TLS: CERTIFICATE_VERIFY_FAILED: {error.verify_message}", remedy
    reason = error.reason or type(error).__name__
    return f"TLS: {reason}", _REASONS.get(reason, LOG)


# What a guest has met

NOVA: Final = "nova"
_BRIEF: Final[Mapping[str, str]] = {
    "absent": "no record",
    "defect": "an error in dfmeta",
    "forwarded": "a proxy has passed it on",
    "project": "its project is not known",
    "rate": "it asks too often",
    "timeout": "no answer within hold_timeout",
    "token": "no valid token",
}
_RELOAD: Final = "`systemctl reload dfmeta-agent`"
_FORBIDDEN: Final = 403


def brief(failure: Failure, backend: str) -> str:
    """Why a guest's request failed, in a few words.

    Trust: none of them is the guest's, and none a server's.
    """
    why = failure.why
    if why == "absent" and backend == NOVA:
        return "Nova has no such instance in its project"
    if why:
        return _BRIEF.get(why, REASONS[why])
    return failure.reason.partition(". ")[0] or "no reason is known"


def of_guest(failure: Failure, backend: str, *, port: str, instance: str) -> str:
    """What to do about a guest's failing requests: first a command where one helps.

    :param backend: who answers guests: ``nova`` or ``store``.
    :param port: the guest's.
    :param instance: id of its instance.
    """
    port, instance = shlex.quote(port), shlex.quote(instance)
    match failure.why:
        case "absent" if backend == NOVA:
            return (
                f"see whose it is: `openstack server show {instance} -c project_id`, and where "
                f"ours comes from: `dfmeta ports`"
            )
        case "absent":
            return (
                f"`dfmeta store put {instance} --hostname <name>` makes a record; `dfmeta store "
                "list` shows those that there are"
            )
        case "project":
            return (
                f"`ovs-vsctl set Interface {port} external_ids:project-id=<project's id>`, or "
                "add libvirt or neutron to [df_metadata] identity_sources"
            )
        case "token":
            own = f"`dfmeta store put {instance} --http-tokens optional`, or "
            return (
                f"{'' if backend == NOVA else own}[df_metadata] http_tokens = optional and "
                f"{_RELOAD}, where the guest's programs know no tokens"
            )
        case "rate":
            return f"raise the limits of [metadata_rate_limiting] and {_RELOAD}"
        case "forwarded":
            return (
                "take the proxy in the guest out of the way, or [df_metadata] refuse_forwarded = "
                f"false and {_RELOAD}"
            )
        case "defect":
            return "`journalctl -u dfmeta-agent` has the traceback: report it"
    if failure.own:
        return ""
    if failure.status == _FORBIDDEN and backend == NOVA:
        return (
            "give metadata_proxy_shared_secret the value that nova.conf has under [neutron], and "
            f"{_RELOAD}"
        )
    looked = "nova" if backend == NOVA else "store, lookup and disk"
    lines = "line" if backend == NOVA else "lines"
    return f"`journalctl -u dfmeta-agent` has the cause; then `dfmeta doctor`: its {lines} {looked}"
