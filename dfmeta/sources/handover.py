"""Hands ports on to the registry, each apart from the others.

A port that the registry does not take, because of a defect in dfmeta, is removed from it: its guest
must not be served with the values of an earlier one. It is handed on again after :data:`RETRY`
seconds. Other ports do not notice. Everything runs on the hub.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from dfmeta import metrics
from dfmeta.model import Port, PortId
from dfmeta.runtime import threads

LOG = logging.getLogger(__name__)

RETRY: Final = 4.0
"""Seconds after which a port is handed on again."""


class Handover:
    """The last stage before the registry.

    :param deliver: called with each port.
    :param drop: called with the id of each removed port. An error of it is not caught.
    """

    def __init__(self, deliver: Callable[[Port], None], drop: Callable[[PortId], None]) -> None:
        self._deliver, self._drop = deliver, drop
        self._refused: dict[PortId, Port] = {}

    def put(self, port: Port) -> None:
        """Hand on a port that is new or has changed."""
        self._refused.pop(port.id, None)
        try:
            self._deliver(port)
        except Exception:  # a defect, of any kind
            metrics.PORT_DEFECTS.inc()
            LOG.exception("Port %s cannot be served; retrying", port.name)
            self._drop(port.id)
            self._refused[port.id] = port
            threads.spawn_after(RETRY, self._again, port)

    def forget(self, port_id: PortId) -> None:
        """Drop that port."""
        self._refused.pop(port_id, None)
        self._drop(port_id)

    def _again(self, port: Port) -> None:
        if self._refused.get(port.id) is port:
            self.put(port)
