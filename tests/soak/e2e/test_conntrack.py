"""A table of conntrack that is full, as doctor reads and judges it."""

import socket

from dfmeta.host.conntrack import read_conntrack
from dfmeta.inspect import checks_limits
from dfmeta.inspect.finding import Status
from tests.harness.netns import Namespace
from tests.harness.ovs import UNPACKED

TRACKED = (
    "add table ip t; add chain ip t o { type filter hook output priority 0; }; "
    "add rule ip t o ct state new accept; "
    "add chain ip t i { type filter hook input priority 0; policy drop; }"
)
"""A packet filter that has the kernel track what leaves, and lets nothing of it in."""


FURTHER = 1000
"""Connections above the room of the table."""


def test_a_full_table_is_told_from_one_that_is_used() -> None:
    with Namespace("tracked") as host:
        host.run([str(UNPACKED / "usr/sbin/nft"), TRACKED])
        with host.inside():
            before = read_conntrack("127.0.1.1", 9)
            assert (before.count, before.guests, before.evicted) == (0, 0, 0)
            assert before.room, "this machine sets no limit: it has no table to fill"
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                for sent in range(before.room + FURTHER):
                    net, port = divmod(sent, 65_535)
                    sender.sendto(b"", (f"127.0.{net >> 8}.{net & 255}", port + 1))
                    if sent == FURTHER:
                        used = read_conntrack("127.0.0.0", 9)
            full = read_conntrack("127.0.0.0", 9)
        assert (used.count, used.guests, used.evicted, used.dropped) == (FURTHER + 1, 0, 0, 0)
        assert checks_limits.conntrack(used, rate=1000).status is Status.OK
        assert full.evicted > 0
        finding = checks_limits.conntrack(full, rate=1000)
        assert finding.status is Status.WRONG
        assert f"{full.count} of {full.room} entries of conntrack are taken" in finding.text
        assert f"{full.evicted} unanswered connections were evicted" in finding.text
