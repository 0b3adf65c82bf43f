"""The records of containers, made of their attachments. Nothing is stored.

An attachment is an instance of its own, with the id of the attachment. As long as the store has no
metadata for that id, its container gets the record of this module: it exists from the first state
of an attachment until the attachment leaves, whatever ends it.

Trust: the id is a random one of the engine, so that a VM cannot name another guest's record. The
name and the labels come from the VM's runtime, and are shown to that VM's container alone; the host
name is made valid. Network and address come from the operator and the engine.
"""

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from dfmeta.attach.model import Attachment, Network, to_attachment
from dfmeta.store.db.attachments import AttachmentTables
from dfmeta.store.db.record import Record, dump_document
from dfmeta.store.guest.documents import hostname_of

POD: Final = "K8S_POD_NAME"
"""Label with the name of a container's pod, from the CNI plugin's arguments."""


class ContainerRecords:
    """Returns the records of containers.

    :param networks: the operator's networks, by name; may change meanwhile.
    :param key: secret of this host, of which the seeds of the records are made.
    """

    def __init__(
        self, attachments: AttachmentTables, networks: Mapping[str, Network], key: bytes
    ) -> None:
        self._attachments, self._networks, self._key = attachments, networks, key

    def get(self, instance_id: str) -> Record | None:
        """Return the record of an attachment's instance; None for any other instance.

        :raises StoreError: the database failed.
        """
        stored = self._attachments.of_instance(instance_id.lower())
        if stored is None:
            return None
        row, project_id = stored
        attachment = to_attachment(row)
        seed = hmac.digest(self._key, attachment.id.encode(), hashlib.sha256)
        return record(
            attachment, self._networks.get(attachment.network), project_id=project_id, seed=seed
        )


def record(
    attachment: Attachment, network: Network | None, *, project_id: str, seed: bytes
) -> Record:
    """Return the record of a container.

    :param network: None: the operator has removed it.
    :param project_id: project of the VM; empty: not known.
    """
    created = datetime.fromtimestamp(attachment.created, UTC)
    return Record(
        id=attachment.instance_id,
        seed=seed,
        created_at=created,
        updated_at=created,
        project_id=project_id or None,
        metadata=dump_document(_document(attachment, network)),
        derived=True,
    )


def _document(attachment: Attachment, network: Network | None) -> dict[str, Any]:
    name = attachment.labels.get(POD) or attachment.container
    # One label: a dot in a pod's name does not make the rest of it a domain.
    host = hostname_of(name.replace(".", "-"))
    gateway = network.gateway if network is not None else None
    length = network.subnet.prefixlen if network is not None else attachment.ip.max_prefixlen
    address = {
        "address": str(attachment.ip),
        "address_family": attachment.ip.version,
        "cidr": length,
    }
    if gateway is not None:
        address["gateway"] = str(gateway)
    return {
        "name": name,
        **({"hostname": host} if host else {}),
        "meta": dict(attachment.labels),
        "instance_tags": dict(attachment.labels),
        "network": {
            "interfaces": [{"name": attachment.ifname, "mac": attachment.mac}],
            "addresses": [{**address, "public": False}],
        },
    }
