"""Causes of failed connections to a server, and remedies for the operator.

Nothing that the server sent is quoted: the texts come from the system, from OpenSSL's own tables
and from this module.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final

from dfmeta.proxy.recent import REASONS, Failure

# Failures of guests' requests

NOVA: Final = "nova"
_BRIEF: Final[Mapping[str, str]] = {
    "absent": "no record",
    "defect": "an error in dfmeta",
    "document": "no such document",
    "forwarded": "a proxy forwarded it",
    "project": "its project is not known",
    "rate": "too many requests",
    "timeout": "no answer within hold_timeout",
    "token": "no valid token",
}
_RELOAD: Final = "`systemctl reload dfmeta-agent`"
_FORBIDDEN: Final = 403


def brief(failure: Failure, backend: str) -> str:
    """Return the reason why a guest's request failed, in a few words.

    Trust: no part of the text comes from the guest or from a server.
    """
    why = failure.why
    if why == "absent" and backend == NOVA:
        return "Nova has no such instance in its project"
    if why:
        return _BRIEF.get(why, REASONS[why])
    return failure.reason.partition(". ")[0] or "the reason is unknown"


def of_guest(failure: Failure, backend: str, *, port: str, instance: str) -> str:
    """Return the remedy for a guest's failing requests, with a command if one helps.

    :param backend: the backend that answers guests: ``nova`` or ``store``.
    :param port: name of the guest's port.
    :param instance: id of the guest's instance.
    """
    port, instance = shlex.quote(port), shlex.quote(instance)
    match failure.why:
        case "absent" if backend == NOVA:
            return (
                f"compare the project in Nova, `openstack server show {instance} -c project_id`, "
                "with the project and its source in `dfmeta ports`"
            )
        case "absent":
            return (
                f"`dfmeta store put {instance} --hostname <name>` adds a record; `dfmeta store "
                "list` shows the existing records"
            )
        case "document" if backend == NOVA:
            return f"`openstack server show {instance}` shows whether Nova has the instance"
        case "document":
            return (
                f"`dfmeta store get {instance}` shows its record, without the document that the "
                "guest asks for"
            )
        case "project":
            return (
                f"`ovs-vsctl set Interface {port} external_ids:project-id=<project's id>`, or "
                "add libvirt or neutron to [df_metadata] identity_sources"
            )
        case "token":
            own = f"`dfmeta store put {instance} --http-tokens optional`, or "
            return (
                f"{'' if backend == NOVA else own}set [store] http_tokens = optional and "
                f"{_RELOAD}, if the guest's programs do not support tokens"
            )
        case "rate":
            return f"raise the limits of [metadata_rate_limiting] and {_RELOAD}"
        case "forwarded":
            return (
                "remove the proxy in the guest, or set [df_metadata] refuse_forwarded = false "
                f"and {_RELOAD}"
            )
        case "defect":
            return "`journalctl -u dfmeta-agent` shows the traceback: report it"
    if failure.own:
        return ""
    if failure.status == _FORBIDDEN and backend == NOVA:
        return (
            "set metadata_proxy_shared_secret to its value in nova.conf, group [neutron], and "
            f"{_RELOAD}"
        )
    looked = "nova" if backend == NOVA else "store, lookup and disk"
    lines = "line" if backend == NOVA else "lines"
    return (
        "`journalctl -u dfmeta-agent` shows the cause; then see the "
        f"{lines} {looked} of `dfmeta doctor`"
    )
