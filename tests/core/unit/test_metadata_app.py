"""Each message of the switch should come to the part that it concerns."""

import struct
from types import SimpleNamespace
from typing import Any

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as ofp_parser

from dfmeta.apps.metadata import MetadataApp
from dfmeta.errors import SwitchError
from dfmeta.flows.pipeline import Purpose, cookie_of
from dfmeta.model import Endpoint
from tests import flowsim
from tests.core.unit.support import Datapath, Rig, let_hub_run, parsed, removed_of, syn


def event(kind: int, body: bytes, xid: int = 1) -> Any:
    raw = struct.pack("!BBHI", ofp.OFP_VERSION, kind, 8 + len(body), xid) + body
    return SimpleNamespace(msg=parsed(raw))


def packet_in(frame: bytes, *, cookie: int, in_port: int = 13) -> Any:
    match = bytearray()
    ofp_parser.OFPMatch(in_port=in_port).serialize(match, 0)
    head = struct.pack("!IHBBQ", ofp.OFP_NO_BUFFER, len(frame), ofp.OFPR_ACTION, 200, cookie)
    return event(ofp.OFPT_PACKET_IN, head + bytes(match) + b"\0\0" + frame)


def over(rig: Rig, event: Any, *, datapath: Any = None) -> Any:
    """The same event over the connection that is in use, or over *datapath*."""
    event.msg.datapath = datapath or rig.switch
    return event


@pytest.fixture
def app(rig: Rig) -> MetadataApp:
    return MetadataApp(controller=rig.controller)


@pytest.mark.parametrize("cookie", [0, cookie_of(Purpose.ADDRESS), 0x1234])
def test_a_packet_of_another_flow_is_not_ours(app: MetadataApp, rig: Rig, cookie: int) -> None:
    app.packet_in(over(rig, packet_in(syn(), cookie=cookie)))
    assert rig.registry.slots(Endpoint(13)) == {}


def test_a_message_over_another_connection_does_not_count(app: MetadataApp, rig: Rig) -> None:
    other = Datapath()
    app.packet_in(over(rig, packet_in(syn(), cookie=cookie_of(Purpose.SYN)), datapath=other))
    let_hub_run()
    assert rig.registry.slots(Endpoint(13)) == {}
    rig.switch.silent = True
    pending = rig.channel.request(rig.channel.wire.dump_all(), "the dump")
    let_hub_run()
    xid = rig.switch.sent[-1].xid
    refusal = struct.pack("!HH", ofp.OFPET_BAD_REQUEST, ofp.OFPBRC_EPERM) + bytes(8)
    count = multipart(ofp.OFPMP_AGGREGATE, struct.pack("!QQI4x", 1, 2, 6), xid=xid)
    app.barrier_reply(over(rig, event(ofp.OFPT_BARRIER_REPLY, b"", xid=xid), datapath=other))
    app.error(over(rig, event(ofp.OFPT_ERROR, refusal, xid=xid), datapath=other))
    app.multipart_reply(over(rig, multipart(ofp.OFPMP_FLOW, b"", xid=xid), datapath=other))
    app.aggregate_reply(over(rig, count, datapath=other))
    removed = removed_of(rig.switch.dump()[0])
    app.flow_removed(over(rig, SimpleNamespace(msg=removed), datapath=other))
    assert not pending.finished
    assert rig.controller.bridge.ready


def test_error_reaches_the_pending_request(app: MetadataApp, rig: Rig) -> None:
    rig.switch.silent = True
    refused = struct.pack("!HH", ofp.OFPET_FLOW_MOD_FAILED, ofp.OFPFMFC_BAD_COMMAND)
    other = struct.pack("!HHI", ofp.OFPET_EXPERIMENTER, 2308, 0x4F4E4600)
    for body, text in ((refused, "OFPFMFC_BAD_COMMAND"), (other, "experimenter error 2308")):
        pending = rig.channel.request(rig.channel.wire.dump_all(), "the dump")
        let_hub_run()
        app.error(over(rig, event(ofp.OFPT_ERROR, body + bytes(8), xid=rig.switch.sent[-1].xid)))
        with pytest.raises(SwitchError, match=text):
            pending.wait(1.0)


def multipart(kind: int, body: bytes, *, xid: int, more: bool = False) -> Any:
    return event(ofp.OFPT_MULTIPART_REPLY, struct.pack("!HH4x", kind, int(more)) + body, xid)


def test_a_dump_comes_in_parts(app: MetadataApp, rig: Rig) -> None:
    rig.switch.silent = True
    pending = rig.channel.request(rig.channel.wire.dump_all(), "the dump")
    let_hub_run()
    xid = rig.switch.sent[-1].xid
    entry = flowsim.stats(rig.switch.flows[0])
    app.multipart_reply(over(rig, multipart(ofp.OFPMP_FLOW, entry, xid=xid, more=True)))
    assert not pending.finished
    app.multipart_reply(over(rig, multipart(ofp.OFPMP_FLOW, entry * 2, xid=xid)))
    assert len(pending.wait(1.0)) == 3
