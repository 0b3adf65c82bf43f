"""What tests of this tier make up for frames of both versions of IP."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from tests.ovs.switch import ELSEWHERE, GUESTS, LOCAL, TAP_PORT

TAP_MAC = "02:00:00:00:00:09"
MACS = ["fa:16:3e:00:00:05", "fa:16:3e:00:00:06", TAP_MAC, "ff:ff:ff:ff:ff:ff"]
TCP_PORTS = [80, 9775, 443, 40000, 0]
IN_PORTS = [*GUESTS, ELSEWHERE, TAP_PORT, LOCAL]


macs = st.sampled_from(MACS) | st.binary(min_size=6, max_size=6).map(lambda raw: raw.hex(":"))
tcp_ports = st.sampled_from(TCP_PORTS) | st.integers(0, 0xFFFF)
tags: st.SearchStrategy[list[int]] = st.lists(st.integers(0, 0xFFFF), max_size=3) | st.just([])
flag_sets = st.integers(0, 0xFFF)
quick = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # A failure names its frame; to look for a shorter list of frames would take minutes.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
