"""The audit of attachments: one log line for each change, and for each refused request.

Trust: container ids and names of devices have been checked for their form. A line has no token and
no label. A VM can send any number of requests that are refused: the lines of one port are limited.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from dfmeta.attach.model import Attachment
from dfmeta.model import Port
from dfmeta.runtime import clock
from dfmeta.runtime.throttle import ALL_GUESTS, Complaints

LOG = logging.getLogger(__name__)


class AttachmentAudit:
    """Writes the lines of the audit.

    :param clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = clock.now) -> None:
        self._refusals = Complaints(LOG, clock=clock)

    def changed(self, verb: str, port: Port, attachment: Attachment) -> None:
        """Note that an attachment was made, or that a VM has deleted it."""
        LOG.info(
            "Attachments: %s (%s): %s %s of container %s, network %s, VLAN %d, %s",
            port.name,
            port.instance_id,
            verb,
            attachment.ifname,
            attachment.container,
            attachment.network,
            attachment.vid,
            attachment.ip,
        )

    def collected(self, port: Port, network: str, removed: int) -> None:
        """Note that a runtime's garbage collection has removed attachments."""
        LOG.info(
            "Attachments: %s (%s): %d of network %s removed by garbage collection",
            port.name,
            port.instance_id,
            removed,
            network,
        )

    def refused(self, port: Port, what: str, status: int, error: str) -> None:
        """Note a refused request.

        :param what: method and kind of the request, none of the guest's own text.
        :param error: its word, see :func:`dfmeta.attach.documents.refusal`.
        """
        self._refusals.about(
            port.endpoint or ALL_GUESTS,
            what,
            "Attachments: %s (%s): %s refused with %d, %s",
            port.name,
            port.instance_id,
            what,
            status,
            error,
        )
