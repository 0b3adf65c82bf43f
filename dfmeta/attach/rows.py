"""Attachments and parents as rows of the database, and back. Pure."""

from __future__ import annotations

import json
from ipaddress import IPv4Address
from typing import Any, Final

from dfmeta.attach.model import Attachment, Parent, State
from dfmeta.store.db.attachments import Row

_OF_PARENT: Final = ("port_name", "instance_id", "project_id", "mac")
"""Values that a parent and the row of its trunk have under one name."""


def to_attachment(row: Row) -> Attachment:
    """Return the attachment of a row."""
    values = dict(row)
    values.pop("rest")
    return Attachment(
        parent=values.pop("trunk"),
        ip=IPv4Address(values.pop("ip")),
        state=State(values.pop("state")),
        labels=json.loads(values.pop("labels")),
        **values,
    )


def to_report(attachment: Attachment, trunk: Row) -> dict[str, Any]:
    """Return an attachment and its VM's port as JSON has them, for operators.

    :param trunk: the row of its trunk.
    """
    values = {name: getattr(attachment, name) for name in Attachment.__slots__}
    return {
        **values,
        "labels": dict(attachment.labels),
        "ip": str(attachment.ip),
        "state": attachment.state.value,
        "port": trunk["port_name"],
        "instance": trunk["instance_id"],
        "project": trunk["project_id"],
    }


def to_parent(row: Row) -> Parent:
    """Return the parent of a row of a trunk, as it was when it was seen last."""
    return Parent(port_id=row["parent"], **{name: row[name] for name in _OF_PARENT})


def to_trunk(parent: Parent, host: str) -> dict[str, Any]:
    """Return the row of a parent's trunk, without its last VLAN id and its absence."""
    values = {name: getattr(parent, name) for name in _OF_PARENT}
    return {"parent": parent.port_id, "host": host, **values}
