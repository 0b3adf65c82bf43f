"""The kernel should answer dfmeta's own requests of routing netlink."""

import errno
import socket

import pytest
from pyroute2.netlink.exceptions import NetlinkError

from dfmeta.host.rtnetlink import Rtnetlink


def test_kernel_answers_requests() -> None:
    index = socket.if_nametoindex("lo")
    with Rtnetlink() as netlink:
        rules = netlink.rules(socket.AF_INET)
        assert {0, 32766} <= {rule.priority for rule in rules}
        local = netlink.route("list", oif=index, table=255, family=socket.AF_INET)
        assert "127.0.0.1" in {route.get_attr("RTA_DST") for route in local}
        with pytest.raises(NetlinkError) as caught:
            netlink.neigh("get", ifindex=index, dst="192.0.2.1", family=socket.AF_INET)
    assert caught.value.code == errno.ENOENT
