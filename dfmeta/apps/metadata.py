"""The os-ken application: short handlers that pass the switch's events to the controller."""

from typing import Any

from os_ken.base.app_manager import AppManager, OSKenApp
from os_ken.controller import ofp_event
from os_ken.controller.handler import DEAD_DISPATCHER, MAIN_DISPATCHER, set_ev_cls, set_ev_handler
from os_ken.controller.ofp_handler import OFPHandler
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.apps.controller import Controller, ManagedBridge
from dfmeta.apps.dial import Refusals, accept, dial, listen
from dfmeta.apps.numbers import Numbers
from dfmeta.flows.pipeline import Purpose, purpose_of
from dfmeta.ovsdb.vswitchd import management_socket
from dfmeta.runtime import hub, threads
from dfmeta.runtime.hub import Turns


class Handshake(OFPHandler):
    """os-ken's own handshake and echo handling, without its listeners on 6653 and 6633.

    Its handlers run as soon as a message is read, while events of other applications are queued.
    So no guest's request is answered between the change of a port's number and its effects.
    """

    def __init__(self, *args: Any, numbers: Numbers, refusals: Refusals, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._numbers = numbers
        self._refusals = refusals

    def start(self) -> None:
        """Start the event loop, without os-ken's listeners."""
        OSKenApp.start(self)

    def _hello_failed(self, datapath: Any, error_desc: str) -> None:
        """Refuse a connection without a common version. os-ken's own method logs each one."""
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
        """Take one part of the list of ports."""
        message = event.msg
        more = bool(message.flags & ofp.OFPMPF_REPLY_MORE)
        self._numbers.listed(message.datapath, message.xid, message.body, more=more)

    @set_ev_handler(ofp_event.EventOFPPortStatus, MAIN_DISPATCHER)
    def port_status_handler(self, event: Any) -> None:
        """Take a port's addition, change or removal. os-ken's own handler keeps a second list."""
        message = event.msg
        self._numbers.changed(message.datapath, message.reason, message.desc)

    @set_ev_handler(ofp_event.EventOFPFlowStatsReply, MAIN_DISPATCHER)
    def give_way(self, _event: Any) -> None:
        """Yield to other threads between two parts of a dump: os-ken reads on without a pause."""
        threads.sleep(0)


class MetadataApp(OSKenApp):
    """Passes the switch's messages to a :class:`~dfmeta.apps.controller.Controller`.

    Trust: any program of the host may connect to a TCP listener and pose as a switch. A message is
    accepted only over the connection that is in use; its transaction id proves nothing.
    """

    OFP_VERSIONS = [ofp.OFP_VERSION]  # noqa: RUF012  # os-ken's way to declare it

    def __init__(self, *args: Any, controller: Controller, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.controller = controller
        self._turns = Turns()

    @set_ev_cls(ofp_event.EventOFPStateChange, [MAIN_DISPATCHER, DEAD_DISPATCHER])
    def state_change(self, event: Any) -> None:
        """Note that a connection is up, or has ended."""
        if event.state == MAIN_DISPATCHER:
            bridges = (bridge for bridge in self.controller.bridges if bridge.is_of(event.datapath))
            next(bridges, self.controller.bridge).connected(event.datapath)
        else:
            for bridge in self.controller.bridges:
                bridge.disconnected(event.datapath)

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def packet_in(self, event: Any) -> None:
        """Take a guest's first SYN, with its port in in_port, or the answer to a probe."""
        message = event.msg
        if not self.controller.bridge.channel.uses(message.datapath):
            return
        purpose, frame = purpose_of(message.cookie), bytes(message.data)
        learner = self.controller.learner
        if purpose is Purpose.PROBE:
            for probe in self.controller.probes:
                probe.packet_in(frame)
        elif purpose is Purpose.GUEST_ND_BARE:
            learner.answer_solicitation(message.match["in_port"], frame)
        elif purpose in (Purpose.SYN, Purpose.SUBPORT_SYN):
            learner.packet_in(message.match["in_port"], frame)
            # os-ken handles all queued packet-ins one after the other, without a pause.
            self._turns.give_way()

    @set_ev_cls(ofp_event.EventOFPFlowRemoved, MAIN_DISPATCHER)
    def flow_removed(self, event: Any) -> None:
        """Take the removal of a flow of the classification table, by dfmeta or another program."""
        for bridge in self._bridges_of(event.msg):
            bridge.flow_removed(event.msg)

    @set_ev_cls(ofp_event.EventOFPBarrierReply, MAIN_DISPATCHER)
    def barrier_reply(self, event: Any) -> None:
        """Take the confirmation of a batch."""
        for bridge in self._bridges_of(event.msg):
            bridge.channel.barrier_reply(event.msg.xid)

    @set_ev_cls(ofp_event.EventOFPErrorMsg, MAIN_DISPATCHER)
    def error(self, event: Any) -> None:
        """Take the refusal of a message."""
        message = event.msg
        code = message.code if message.type != ofp.OFPET_EXPERIMENTER else message.exp_type
        for bridge in self._bridges_of(message):
            bridge.channel.error(message.xid, message.type, code)

    @set_ev_cls(ofp_event.EventOFPFlowStatsReply, MAIN_DISPATCHER)
    def multipart_reply(self, event: Any) -> None:
        """Take one part of a dump."""
        message = event.msg
        more = bool(message.flags & ofp.OFPMPF_REPLY_MORE)
        for bridge in self._bridges_of(message):
            bridge.channel.multipart_reply(message.xid, message.body, more=more)

    @set_ev_cls(ofp_event.EventOFPAggregateStatsReply, MAIN_DISPATCHER)
    def aggregate_reply(self, event: Any) -> None:
        """Take the number of dfmeta's flows on the switch."""
        for bridge in self._bridges_of(event.msg):
            bridge.channel.multipart_reply(event.msg.xid, [event.msg.body], more=False)

    def _bridges_of(self, message: Any) -> list[ManagedBridge]:
        """Return the bridge whose connection in use the message came over; empty: none."""
        bridges = self.controller.bridges
        return [bridge for bridge in bridges if bridge.channel.uses(message.datapath)]


def connect(controller: Controller, connection: str, ovsdb_connection: str) -> None:
    """Connect *controller* to its bridges from now on.

    :param connection: the option openflow_connection; a second bridge is always connected to at its
        management socket.
    :param ovsdb_connection: the option ovsdb_connection.
    :raises StartError: when the daemon cannot listen on the address.
    """
    bridge = controller.bridge.channel.bridge
    manager, refusals = AppManager.get_instance(), Refusals(bridge)
    for app in (
        manager.instantiate(Handshake, numbers=controller.numbers, refusals=refusals),
        manager.instantiate(MetadataApp, controller=controller),
    ):
        app.start()
        for thread in app.threads:
            hub.VITAL.watch_greenthread(f"os-ken's {app.name}", thread)
    kind, _, where = connection.partition(":")
    if kind == "listen":
        host, _, port = where.rpartition(":")
        listener = listen(host.strip("[]"), int(port))
        hub.VITAL.spawn("OpenFlow listener", accept, listener, refusals)
    else:
        path = management_socket(connection, ovsdb_connection, bridge)
        hub.VITAL.spawn("OpenFlow connection", dial, path, refusals)
    hub.VITAL.spawn("watch over the flows", controller.watch)
    if controller.meta is not None:
        bridge = controller.meta.channel.bridge
        path = management_socket("auto", ovsdb_connection, bridge)
        hub.VITAL.spawn(f"OpenFlow connection to {bridge}", dial, path, refusals)
        hub.VITAL.spawn(f"watch over the flows of {bridge}", controller.meta.watch)
