"""The os-ken application: three-line handlers between the switch and the parts that decide."""

from __future__ import annotations

import logging
from typing import Any

import eventlet
from os_ken.base.app_manager import OSKenApp
from os_ken.controller import ofp_event
from os_ken.controller.handler import (
    DEAD_DISPATCHER,
    MAIN_DISPATCHER,
    set_ev_cls,
    set_ev_handler,
)
from os_ken.controller.ofp_handler import OFPHandler
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.apps.controller import Controller
from dfmeta.apps.dial import Refusals
from dfmeta.apps.numbers import Numbers
from dfmeta.flows.pipeline import Purpose, purpose_of
from dfmeta.hub import Turns

LOG = logging.getLogger(__name__)


class Handshake(OFPHandler):
    """os-ken's own handshake and echo handling, without its listeners on 6653 and 6633.

    What it handles is done as it is read, where other applications' events wait for their turn:
    no request is answered between a port's new number and what follows from it.
    """

    def __init__(self, *args: Any, numbers: Numbers, refusals: Refusals, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._numbers = numbers
        self._refusals = refusals

    def start(self) -> None:
        """Start the event loop alone."""
        OSKenApp.start(self)

    def _hello_failed(self, datapath: Any, error_desc: str) -> None:
        """Refuse a connection without a version in common. os-ken's own logs each one."""
        self._refusals.note()
        error = datapath.ofproto_parser.OFPErrorMsg(
            datapath=datapath,
            type_=datapath.ofproto.OFPET_HELLO_FAILED,
            code=datapath.ofproto.OFPHFC_INCOMPATIBLE,
            data=error_desc,
        )
        datapath.send_msg(error, close_socket=True)

    @set_ev_handler(ofp_event.EventOFPPortDescStatsReply, MAIN_DISPATCHER)
    def ports_listed(self, event: Any) -> None:
        """A part of the list of ports."""
        message = event.msg
        more = bool(message.flags & ofp.OFPMPF_REPLY_MORE)
        self._numbers.listed(message.datapath, message.xid, message.body, more=more)

    @set_ev_handler(ofp_event.EventOFPPortStatus, MAIN_DISPATCHER)
    def port_status_handler(self, event: Any) -> None:
        """A port has come, changed or gone. In place of os-ken's, which keeps a list of its own."""
        message = event.msg
        self._numbers.changed(message.datapath, message.reason, message.desc)

    @set_ev_handler(
        [
            ofp_event.EventOFPFlowStatsReply,
            ofp_event.EventOFPMeterConfigStatsReply,
            ofp_event.EventOFPMeterStatsReply,
        ],
        MAIN_DISPATCHER,
    )
    def give_way(self, _event: Any) -> None:
        """Let others run between two parts of a dump: os-ken reads on for as long as it can."""
        eventlet.sleep(0)


class MetadataApp(OSKenApp):
    """Hands what the switch says to a :class:`~dfmeta.apps.controller.Controller`.

    Trust: any program of the host may dial a TCP listener and speak as a switch. A message counts
    only if it came over the connection that is in use; its transaction id proves nothing.
    """

    OFP_VERSIONS = [ofp.OFP_VERSION]  # noqa: RUF012  # os-ken's way to declare it

    def __init__(self, *args: Any, controller: Controller, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.controller = controller
        self._turns = Turns()

    @set_ev_cls(ofp_event.EventOFPStateChange, [MAIN_DISPATCHER, DEAD_DISPATCHER])
    def state_change(self, event: Any) -> None:
        """A connection is up, or gone."""
        if event.state == MAIN_DISPATCHER:
            self.controller.connected(event.datapath)
        else:
            self.controller.disconnected(event.datapath)

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def packet_in(self, event: Any) -> None:
        """A guest's first SYN, whose port in_port says, or the answer to a probe."""
        message = event.msg
        if not self._is_ours(message):
            return
        purpose = purpose_of(message.cookie)
        if purpose is Purpose.PROBE:
            self.controller.probe.packet_in(bytes(message.data))
        elif purpose is Purpose.SYN:
            self.controller.learner.packet_in(message.match["in_port"], bytes(message.data))
            # Of those that have piled up os-ken takes one after the other.
            self._turns.give_way()

    @set_ev_cls(ofp_event.EventOFPFlowRemoved, MAIN_DISPATCHER)
    def flow_removed(self, event: Any) -> None:
        """A flow of the classification table is gone, by our hand or another's."""
        if self._is_ours(event.msg):
            self.controller.flow_removed(event.msg)

    @set_ev_cls(ofp_event.EventOFPBarrierReply, MAIN_DISPATCHER)
    def barrier_reply(self, event: Any) -> None:
        """A batch is done."""
        if self._is_ours(event.msg):
            self.controller.channel.barrier_reply(event.msg.xid)

    @set_ev_cls(ofp_event.EventOFPErrorMsg, MAIN_DISPATCHER)
    def error(self, event: Any) -> None:
        """A message was refused."""
        message = event.msg
        code = message.code if message.type != ofp.OFPET_EXPERIMENTER else message.exp_type
        if self._is_ours(message):
            self.controller.channel.error(message.xid, message.type, code)

    @set_ev_cls(
        [
            ofp_event.EventOFPFlowStatsReply,
            ofp_event.EventOFPMeterConfigStatsReply,
            ofp_event.EventOFPMeterStatsReply,
        ],
        MAIN_DISPATCHER,
    )
    def multipart_reply(self, event: Any) -> None:
        """A part of a dump."""
        message = event.msg
        more = bool(message.flags & ofp.OFPMPF_REPLY_MORE)
        if self._is_ours(message):
            self.controller.channel.multipart_reply(message.xid, message.body, more=more)

    @set_ev_cls(ofp_event.EventOFPAggregateStatsReply, MAIN_DISPATCHER)
    def aggregate_reply(self, event: Any) -> None:
        """How many flows of ours there are."""
        if self._is_ours(event.msg):
            self.controller.channel.multipart_reply(event.msg.xid, [event.msg.body], more=False)

    def _is_ours(self, message: Any) -> bool:
        """Whether a message came over the connection that is in use."""
        return self.controller.channel.uses(message.datapath)
