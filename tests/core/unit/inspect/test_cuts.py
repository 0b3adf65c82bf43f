"""Bits of a port, as Open vSwitch 3.1 tells of them: which ones cut it off, and what ends that."""

from __future__ import annotations

from dataclasses import replace

import pytest
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


@pytest.mark.parametrize(
    ("bits", "cause", "remedy"),
    [
        (PortBits(PORT_DOWN, LINK_DOWN, MAC), DOWN, f"`{MODIFY} up`, or `ip link set tap1 up`"),
        (PortBits(0, LINK_DOWN, MAC), NO_LINK, "start the guest"),
        (PortBits(NO_RECV, ofp.OFPPS_LIVE, MAC), IN, f"`{MODIFY} receive`"),
        (PortBits(NO_FWD, ofp.OFPPS_LIVE, MAC), OUT, f"`{MODIFY} forward`"),
        (
            PortBits(NO_FWD | NO_RECV, 0, MAC),
            f"{IN}, and {OUT}",
            f"`{MODIFY} receive`, and `{MODIFY} forward`",
        ),
        # A vhost-user port has no MAC; its link is down while no guest has it open.
        (PortBits(0, LINK_DOWN, HIDDEN), NO_LINK, "start the guest"),
        (PortBits(PORT_DOWN | NO_RECV, LINK_DOWN, HIDDEN), IN, f"`{MODIFY} receive`"),
    ],
)
def test_what_cuts_a_port_off(bits: PortBits, cause: str, remedy: str) -> None:
    found = cut_of(bits, "tap1", bridge="br-int")
    assert found is not None
    assert found.cause == cause
    assert found.remedy.startswith(remedy)
    assert str(found) == f"{found.cause}: {found.remedy}"


@pytest.mark.parametrize(
    "bits",
    [
        None,
        PortBits(0, ofp.OFPPS_LIVE, MAC),
        PortBits(ofp.OFPPC_NO_PACKET_IN, ofp.OFPPS_LIVE, MAC),
        # In another network namespace.
        PortBits(PORT_DOWN, LINK_DOWN, HIDDEN),
    ],
)
def test_what_cuts_no_port_off(bits: PortBits | None) -> None:
    assert cut_of(bits, "tap1", bridge="br-int") is None


def test_the_switchs_own_bits_are_told_apart_from_the_devices() -> None:
    bits = PortBits(PORT_DOWN | NO_FWD, LINK_DOWN, MAC)
    assert bits.of_switch() == PortBits(NO_FWD, 0, MAC)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (PortState.SERVED, PortState.CUT_OFF),
        (PortState.NO_CONNECTION, PortState.CUT_OFF),
        (PortState.NO_INSTANCE, PortState.NO_INSTANCE),
        (PortState.DEAD, PortState.DEAD),
    ],
)
def test_a_known_port_is_given_what_the_switch_says(before: PortState, after: PortState) -> None:
    port = replace(PORT, state=before)
    (found,) = with_cuts([port], {1: PortBits(NO_RECV, 0, MAC)}, "br-int")
    assert found.state is after
    assert found.cut is not None
    assert found.fault == (str(found.cut) if after is PortState.CUT_OFF else "")
    assert with_cuts([port], {2: PortBits(NO_RECV, 0, MAC)}, "br-int") == (port,)
