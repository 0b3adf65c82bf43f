"""Answers neighbour solicitations that a flow cannot answer: those without their sender's MAC.

A flow turns the option with that MAC into the option with the target's. A solicitation without it
is rare (RFC 4861, 7.2.2, allows it for unicast solicitations). They count as first packets: a guest
that sends too many floods.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from dfmeta import metrics
from dfmeta.apps.channel import Channel
from dfmeta.errors import DfmetaError, PacketError
from dfmeta.flows.flow import Output
from dfmeta.flows.pipeline import PORT_IN_PORT
from dfmeta.flows.service import Tap
from dfmeta.identity.registry import Registry
from dfmeta.model import Endpoint
from dfmeta.packets import parse_solicitation, write_advertisement

LOG = logging.getLogger(__name__)


class Advertiser:
    """Answers for the addresses of the service, and for no others.

    :param tap: returns the port of the proxy; None while it is not known.
    :param admit: counts a first packet of an endpoint; returns False when the guest floods.
    """

    def __init__(
        self,
        channel: Channel,
        registry: Registry,
        tap: Callable[[], Tap | None],
        *,
        admit: Callable[[Endpoint], bool] = lambda _endpoint: True,
    ) -> None:
        self._admit = admit
        self._channel = channel
        self._registry = registry
        self._tap = tap

    def packet_in(self, ofport: int, frame: bytes) -> None:
        """Answer a solicitation that came in at *ofport*, on that port. Never waits.

        Trust: a guest wrote the frame. The answer contains its own addresses and tap-metadata's.
        """
        try:
            solicitation = parse_solicitation(frame)
        except PacketError as error:
            LOG.debug("A frame from ofport %d is not a solicitation: %s", ofport, error)
            metrics.PACKET_INS.labels("malformed").inc()
            return
        tap, endpoint = self._tap(), Endpoint(ofport, solicitation.vid)
        if not self._admit(endpoint):
            return
        if self._registry.port_at(endpoint) is None:
            metrics.PACKET_INS.labels("unknown_port").inc()
        elif tap is not None and str(solicitation.target) in tap.guest_ip6:
            metrics.PACKET_INS.labels("solicitation").inc()
            answer = write_advertisement(solicitation, tap.mac)
            wire = self._channel.wire
            try:
                self._channel.post([wire.packet_out(ofport, (Output(PORT_IN_PORT),), answer)])
            except DfmetaError as error:
                LOG.info("A solicitation at ofport %d was not answered: %s", ofport, error)
