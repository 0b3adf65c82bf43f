"""Bits of a port, as Open vSwitch 3.1 tells of them: which ones cut it off, and what ends that."""

from __future__ import annotations

from dataclasses import replace

from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.cli.gather import with_cuts
from dfmeta.inspect import cuts
from dfmeta.inspect.cuts import LINK_DOWN, NO_FWD, NO_RECV, PORT_DOWN, PortBits, cut_of
from dfmeta.model import PortState
from tests.core.unit.inspect.values import PORT
from tests.core.unit.support import port_desc

MAC = "fa:16:3e:00:00:01"
HIDDEN = "00:00:00:00:00:00"
DOWN = "its device is down"
NO_LINK = "its device has no link: the guest is off, or its own interface is down"
OUT = "the switch sends no frames to it (no-forward)"
IN = "the switch accepts no frames from it (no-receive)"
MODIFY = "ovs-ofctl -O OpenFlow13 mod-port br-int tap1"


def test_the_bits_are_openflows() -> None:
    assert (cuts.PORT_DOWN, cuts.NO_RECV, cuts.NO_FWD, cuts.LINK_DOWN) == (
        ofp.OFPPC_PORT_DOWN,
        ofp.OFPPC_NO_RECV,
        ofp.OFPPC_NO_FWD,
        ofp.OFPPS_LINK_DOWN,
    )
    found = PortBits.of(port_desc(13, b"tap1", config=NO_FWD, state=LINK_DOWN))
    assert found == PortBits(NO_FWD, LINK_DOWN, HIDDEN)


def test_bits_that_cut_a_port_off_have_a_cause_and_a_remedy() -> None:
    for bits, cause, remedy in (
        (PortBits(PORT_DOWN, LINK_DOWN, MAC), DOWN, f"`{MODIFY} up`, or `ip link set tap1 up`"),
        (PortBits(0, LINK_DOWN, MAC), NO_LINK, "start the guest"),
        (PortBits(NO_RECV, ofp.OFPPS_LIVE, MAC), IN, f"`{MODIFY} receive`"),
        (PortBits(NO_FWD, ofp.OFPPS_LIVE, MAC), OUT, f"`{MODIFY} forward`"),
        (
            *(PortBits(NO_FWD | NO_RECV, 0, MAC), f"{IN}, and {OUT}"),
            f"`{MODIFY} receive`, and `{MODIFY} forward`",
        ),
        # A vhost-user port has no MAC; its link is down while no guest has it open.
        (PortBits(0, LINK_DOWN, HIDDEN), NO_LINK, "start the guest"),
        (PortBits(PORT_DOWN | NO_RECV, LINK_DOWN, HIDDEN), IN, f"`{MODIFY} receive`"),
    ):
        found = cut_of(bits, "tap1", bridge="br-int")
        assert found is not None, bits
        assert found.cause == cause, bits
        assert found.remedy.startswith(remedy), bits
        assert str(found) == f"{found.cause}: {found.remedy}"
    for fine in (
        None,
        PortBits(0, ofp.OFPPS_LIVE, MAC),
        PortBits(ofp.OFPPC_NO_PACKET_IN, ofp.OFPPS_LIVE, MAC),
        # In another network namespace.
        PortBits(PORT_DOWN, LINK_DOWN, HIDDEN),
    ):
        assert cut_of(fine, "tap1", bridge="br-int") is None, fine
    both = PortBits(PORT_DOWN | NO_FWD, LINK_DOWN, MAC)
    assert both.of_switch() == PortBits(NO_FWD, 0, MAC), "the others are the device's"


def test_port_that_would_be_served_is_cut_off_by_the_switch() -> None:
    off = PortBits(NO_RECV, 0, MAC)
    for before, after in (
        (PortState.SERVED, PortState.CUT_OFF),
        (PortState.NO_CONNECTION, PortState.CUT_OFF),
        (PortState.NO_INSTANCE, PortState.NO_INSTANCE),
        (PortState.DEAD, PortState.DEAD),
    ):
        port = replace(PORT, state=before)
        (found,) = with_cuts([port], {1: off}, "br-int")
        assert found.state is after
        assert found.cut is not None
        assert found.fault == (str(found.cut) if after is PortState.CUT_OFF else "")
        assert with_cuts([port], {2: off}, "br-int") == (port,)
