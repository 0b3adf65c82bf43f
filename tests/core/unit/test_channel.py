"""A batch should be confirmed or refused as a whole, and never hang on a lost connection."""

import contextlib
import socket
from collections.abc import Iterator

import eventlet
import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.apps.channel import Channel, error_text
from dfmeta.errors import NotConnectedError, SwitchError, SwitchTimeoutError
from dfmeta.flows.integration_bridge import fixed_flows
from dfmeta.flows.pipeline import Layout
from tests.core.unit.support import TAP, Bundle, Datapath, let_hub_run

FLOWS = fixed_flows(TAP)
REFUSED = (ofp.OFPET_FLOW_MOD_FAILED, ofp.OFPFMFC_TABLE_FULL)
SOON = 0.01
"""Seconds that a test waits for what is not to come."""


@pytest.fixture
def channel() -> Channel:
    return Channel("br-int", Layout())


@pytest.fixture
def datapath(channel: Channel) -> Iterator[Datapath]:
    datapath = Datapath()
    channel.attach(datapath)
    yield datapath
    channel.detach(datapath)
    let_hub_run()


def mods(channel: Channel) -> list[object]:
    return [channel.wire.add(flow) for flow in FLOWS]


def test_without_a_connection_every_use_says_so(channel: Channel) -> None:
    assert not channel.connected
    with pytest.raises(NotConnectedError, match="not connected to br-int"):
        _ = channel.wire
    with pytest.raises(NotConnectedError):
        channel.post([])
    with pytest.raises(NotConnectedError):
        channel.commit([], "nothing")


def test_messages_are_unread_until_they_are_read(channel: Channel, datapath: Datapath) -> None:
    ours, theirs = socket.socketpair()
    with contextlib.closing(theirs):
        datapath.socket = ours
        assert not channel.unread
        theirs.send(b"a message")
        assert channel.unread
        ours.recv(64)
        assert not channel.unread
        theirs.send(b"a message")
        ours.close()
        assert not channel.unread
        channel.detach(datapath)
        assert not channel.unread


def test_a_batch_is_a_bundle_with_a_barrier_behind_it(channel: Channel, datapath: Datapath) -> None:
    experimenter = [ofp.OFPT_EXPERIMENTER] * (len(FLOWS) + 2)
    for batch, bundle, kinds in (
        (mods(channel), True, experimenter),
        ([], True, []),
        (mods(channel), False, [ofp.OFPT_FLOW_MOD] * len(FLOWS)),
    ):
        datapath.sent, datapath.writes = [], 0
        pending = channel.commit(batch, "a batch", bundle=bundle)
        let_hub_run()
        assert datapath.kinds() == [*kinds, ofp.OFPT_BARRIER_REQUEST]
        assert datapath.writes == 1
        channel.barrier_reply(datapath.sent[-1].xid)
        assert pending.wait(SOON) == []


def test_xids_and_bundle_numbers_are_unique(channel: Channel, datapath: Datapath) -> None:
    for _ in range(2):
        channel.commit(mods(channel), "the fixed flows")
    channel.request(channel.wire.dump_all(), "a dump")
    channel.post([channel.wire.set_async()])
    let_hub_run()
    xids = [message.xid for message in datapath.sent]
    assert len(xids) == len(set(xids))
    numbers = [message.body.number for message in datapath.sent if isinstance(message.body, Bundle)]
    assert sorted(set(numbers)) == [1, 2]


def test_xids_start_again_after_the_highest(channel: Channel, datapath: Datapath) -> None:
    channel._xid = ofp.MAX_XID - 1
    channel.post([channel.wire.barrier(), channel.wire.barrier()])
    let_hub_run()
    assert [message.xid for message in datapath.sent] == [ofp.MAX_XID, 1]


def test_own_barrier_alone_confirms_a_batch(channel: Channel, datapath: Datapath) -> None:
    first = channel.commit(mods(channel), "the first")
    let_hub_run()
    barrier = datapath.sent[-1].xid
    second = channel.commit(mods(channel), "the second")
    let_hub_run()
    channel.barrier_reply(datapath.sent[0].xid)
    assert not first.finished
    channel.barrier_reply(barrier)
    assert first.wait(SOON) == []
    assert not second.finished


def test_refusal_of_any_part_is_the_batchs_error(channel: Channel, datapath: Datapath) -> None:
    pending = channel.commit(mods(channel), "the fixed flows")
    let_hub_run()
    assert channel.error(datapath.sent[2].xid, *REFUSED)
    assert channel.error(datapath.sent[4].xid, ofp.OFPET_EXPERIMENTER, 2308)
    assert not pending.finished
    channel.barrier_reply(datapath.sent[-1].xid)
    with pytest.raises(SwitchError, match=r"refused the fixed flows: .*TABLE_FULL") as caught:
        pending.wait(SOON)
    assert caught.value.fields["what"] == "the fixed flows"


def test_a_refused_request_fails_at_once(channel: Channel, datapath: Datapath) -> None:
    pending = channel.request(channel.wire.dump_all(), "the dump of flows")
    let_hub_run()
    assert channel.error(datapath.sent[-1].xid, ofp.OFPET_BAD_REQUEST, ofp.OFPBRC_EPERM)
    with pytest.raises(SwitchError, match="the dump of flows"):
        pending.wait(SOON)


def test_an_error_with_an_unknown_xid_is_not_taken(channel: Channel, datapath: Datapath) -> None:
    pending = channel.commit(mods(channel), "the fixed flows")
    let_hub_run()
    assert not channel.error(0xDEAD, *REFUSED)
    channel.barrier_reply(datapath.sent[-1].xid)
    assert not channel.error(datapath.sent[0].xid, *REFUSED)
    assert pending.wait(SOON) == []


def test_a_dump_in_parts_is_one_answer(channel: Channel, datapath: Datapath) -> None:
    pending = channel.request(channel.wire.dump_all(), "the dump of flows")
    let_hub_run()
    xid = datapath.sent[-1].xid
    channel.multipart_reply(xid, ["a", "b"], more=True)
    channel.multipart_reply(xid + 1, ["not ours"], more=False)
    assert not pending.finished
    channel.multipart_reply(xid, ["c"], more=False)
    assert pending.wait(SOON) == ["a", "b", "c"]


def test_silent_switch_is_a_timeout_of_the_batch(channel: Channel, datapath: Datapath) -> None:
    pending = channel.commit(mods(channel), "the fixed flows")
    with pytest.raises(SwitchTimeoutError, match=r"did not confirm the fixed flows within 0\.01 s"):
        pending.wait(SOON)
    let_hub_run()
    channel.barrier_reply(datapath.sent[-1].xid)
    assert pending.wait(SOON) == []


def test_open_requests_fail_with_their_connection(channel: Channel, datapath: Datapath) -> None:
    batch = channel.commit(mods(channel), "the fixed flows")
    request = channel.request(channel.wire.dump_all(), "the dump of flows")
    waiting = eventlet.spawn(pytest.raises, NotConnectedError, batch.wait, 5)
    let_hub_run()
    assert channel.detach(datapath)
    assert not channel.connected
    waiting.wait()
    with pytest.raises(NotConnectedError):
        request.wait(SOON)


def test_lost_connection_does_not_hide_a_refusal(channel: Channel, datapath: Datapath) -> None:
    batch = channel.commit(mods(channel), "the fixed flows")
    let_hub_run()
    channel.error(datapath.sent[1].xid, *REFUSED)
    channel.detach(datapath)
    with pytest.raises(SwitchError):
        batch.wait(SOON)


def test_late_end_of_a_connection_spares_the_next(channel: Channel, datapath: Datapath) -> None:
    batch = channel.commit(mods(channel), "the fixed flows")
    new = Datapath()
    channel.attach(new)
    with pytest.raises(NotConnectedError):
        batch.wait(SOON)
    assert not channel.detach(datapath)
    assert not channel.detach(None)
    assert channel.connected
    channel.post([channel.wire.barrier()])
    let_hub_run()
    assert new.kinds() == [ofp.OFPT_BARRIER_REQUEST]
    assert channel.detach(new)


def test_a_connection_that_takes_no_more_ends_its_sender(channel: Channel) -> None:
    class Full(Datapath):
        def send(self, data: bytes) -> bool:
            super().send(data)
            return False

    full = Full()
    channel.attach(full)
    for _ in range(2):
        channel.post([channel.wire.barrier()])
        let_hub_run()
    assert full.writes == 1
    channel.detach(full)


def test_an_error_is_named() -> None:
    for kind, code, text in (
        (ofp.OFPET_FLOW_MOD_FAILED, ofp.OFPFMFC_TABLE_FULL, "OFPFMFC_TABLE_FULL"),
        (ofp.OFPET_METER_MOD_FAILED, ofp.OFPMMFC_METER_EXISTS, "OFPMMFC_METER_EXISTS"),
        (ofp.OFPET_EXPERIMENTER, 2305, "experimenter error 2305"),
        (12345, 6789, "12345"),
    ):
        assert text in error_text(kind, code)
