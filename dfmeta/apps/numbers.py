"""Which port has which number, from the switch itself.

Flows match numbers, and OVSDB tells of a number's new owner later than the switch has it: a claim
of the registry that the switch contradicts is not served.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta import metrics
from dfmeta.apps.channel import Channel
from dfmeta.exceptions import DfmetaError
from dfmeta.registry import Registry

LOG = logging.getLogger(__name__)


class Numbers:
    """Tells the registry what the switch says of its ports."""

    def __init__(self, channel: Channel, registry: Registry) -> None:
        self._channel = channel
        self._registry = registry
        self._parts: dict[int, bytes] = {}

    def ask(self) -> bool:
        """Have the switch list its ports, before flows are compared; False when it did not."""
        self._parts = {}
        try:
            request = self._channel.wire.list_ports()
            self._channel.request(request, "the list of ports").wait()
        except DfmetaError as error:
            LOG.warning("Which port has which number is not known: %s", error)
            metrics.RECONCILES.labels("failed").inc()
            return False
        for port, name in self._registry.misnamed():
            LOG.info(
                "Port %s is not served: on the switch its number %s is that of %s",
                port.name,
                port.ofport,
                name.decode(errors="replace"),
            )
        return True

    def listed(self, datapath: Any, xid: int, ports: Iterable[Any], *, more: bool) -> None:
        """Take a part of the list. The switch sends all of it before it tells of a change."""
        if not self._channel.uses(datapath):
            return
        self._parts.update((port.port_no, port.name) for port in ports)
        if not more:
            parts, self._parts = self._parts, {}
            self._registry.set_names(parts)
        self._channel.multipart_reply(xid, (), more=more)

    def changed(self, datapath: Any, reason: int, port: Any) -> None:
        """Take in that a port has come, changed or gone."""
        if self._channel.uses(datapath):
            self._registry.set_name(port.port_no, None if reason == ofp.OFPPR_DELETE else port.name)
