"""Requests should be those of pyroute2's own sockets, and each answer of the kernel's is read."""

import errno
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pyroute2 import IPBatch
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from dfmeta.host import rtnetlink
from dfmeta.host.rtnetlink import Rtnetlink

V4, V6 = socket.AF_INET, socket.AF_INET6
ROUTE = {"oif": 5, "table": 2, "family": V4}
PAIR: dict[str, Any] = {"family": V4, "dst": "128.0.0.0", "ifindex": 5}
ADDRESS: dict[str, Any] = {"index": 5, "address": "169.254.169.254", "prefixlen": 32}
ADDRESS6: dict[str, Any] = {"index": 5, "address": "fd00::1", "prefixlen": 128, "family": V6}
FROM: dict[str, Any] = {"priority": 9, "src": "169.254.169.254", "src_len": 32, "family": V4}
OIF = {"priority": 8, "oifname": "tap-metadata", "table": 2, "family": V6}
NEW = {"gateway": "128.0.0.0", "flags": 4}
MAC = "fa:16:3e:00:00:01"
LIST = (26, 0x301)
"""RTM_GETROUTE as a list, in pyroute2's form."""


class Kernel:
    """The kernel's end of a routing socket: a request without an answer is acknowledged."""

    def __init__(self, *answers: bytes) -> None:
        self.sent: list[bytes] = []
        self.closed = False
        self.strict = True
        self._answers = list(answers)

    def bind(self, _address: object) -> None:
        pass

    def setsockopt(self, *_option: int) -> None:
        if not self.strict:
            raise OSError(errno.ENOPROTOOPT, "no such option")

    def send(self, request: bytes) -> None:
        self.sent.append(bytes(request))

    def recv(self, _size: int) -> bytes:
        return self._answers.pop(0) if self._answers else answer(2, 0, code=0, of=len(self.sent))

    def close(self) -> None:
        self.closed = True


def answer(kind: int, flags: int, *, code: int | None = None, body: bytes = b"", of: int) -> bytes:
    content = body if code is None else struct.pack("=i", -code) + body
    return struct.pack("=IHHII", 16 + len(content), kind, flags, of, 7) + content


def route(number: int, flags: int = 2, *, of: int) -> bytes:
    message = rtmsg()
    message["family"], message["table"] = V4, number
    message.encode()
    return answer(24, flags, body=bytes(message.data)[16:], of=of)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Kernel]:
    def begin(*answers: bytes, strict: bool = True) -> Kernel:
        made = Kernel(*answers)
        made.strict = strict
        monkeypatch.setattr(rtnetlink, "_open", lambda: made)
        return made

    return begin


def without_numbers(request: bytes) -> bytes:
    return request[:8] + bytes(8) + request[16:]


def send(ipr: Any, command: str, values: dict[str, Any]) -> None:
    kinds = {"address": "addr", "ifindex": "neigh", "oif": "route", "priority": "rule"}
    (kind,) = (kind for key, kind in kinds.items() if key in values)
    getattr(ipr, kind)(command, **values)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda ipr: ipr.link("up", index=5), lambda ipr: ipr.link("set", index=5, state="up")),
        (lambda ipr: ipr.link("down", index=5), lambda ipr: ipr.link("set", index=5, state="down")),
        *(
            (partial(send, command=command, values=values),) * 2
            for command, values in (
                ("add", ADDRESS),
                ("delete", ADDRESS),
                ("add", {**ADDRESS6, "flags": 0x202}),
                ("delete", ADDRESS6),
                ("get", PAIR),
                ("replace", {**PAIR, "lladdr": MAC}),
                ("delete", PAIR),
                ("replace", {**ROUTE, **NEW}),
                ("replace", {**ROUTE, "family": V6, "gateway": "fd00::1", "flags": 4}),
                ("add", {"dst": "240.0.0.0/4", **ROUTE, **NEW, "table": 254}),
                ("del", ROUTE),
                ("del", {"dst": "fd00::/64", **ROUTE, "family": V6}),
                ("add", {**FROM, "table": 2}),
                ("add", OIF),
                ("del", OIF),
            )
        ),
        (lambda ipr: ipr.route("list", **ROUTE), lambda ipr: ipr.route(LIST, **ROUTE)),
    ],
)
def test_requests_are_those_of_pyroute2(
    kernel: Callable[..., Kernel],
    ours: Callable[[Rtnetlink], object],
    theirs: Callable[[IPBatch], object],
) -> None:
    asked = kernel()
    with Rtnetlink() as rtnetlink:
        ours(rtnetlink)
    with IPBatch() as other:
        theirs(other)
        assert list(map(without_numbers, asked.sent)) == [without_numbers(bytes(other.batch))]
    assert asked.closed


@pytest.mark.parametrize("number", [255, 256, 4_000_000_000])
def test_a_table_of_any_number_is_meant(kernel: Callable[..., Kernel], number: int) -> None:
    recorded = kernel()
    with Rtnetlink() as ipr:
        ipr.route("replace", **{**ROUTE, **NEW, "table": number})
        ipr.rule("add", **FROM, table=number)
    for request, attribute in zip(recorded.sent, (15, 15), strict=True):
        assert struct.pack("=HHI", 8, attribute, number) in request
        assert request[20] == (255 if number == 255 else 252)


def test_an_error_is_the_kernels(kernel: Callable[..., Kernel]) -> None:
    kernel(answer(2, 0, code=errno.EEXIST, of=1), answer(2, 0, code=0, of=2))
    with Rtnetlink() as ipr:
        with pytest.raises(NetlinkError) as caught:
            ipr.rule("add", **OIF)
        assert caught.value.code == errno.EEXIST
        ipr.rule("add", **OIF)


def test_a_list_is_all_messages_up_to_its_end(kernel: Callable[..., Kernel]) -> None:
    end = answer(3, 2, code=0, of=1)
    kernel(route(1, of=1) + route(2, of=1), route(3, of=1), end)
    with Rtnetlink() as ipr:
        assert [route["table"] for route in ipr.route("list", **ROUTE)] == [1, 2, 3]


def test_rest_of_a_former_answer_is_not_the_next(kernel: Callable[..., Kernel]) -> None:
    failed = answer(2, 0, code=errno.ENOMEM, of=1)
    kernel(
        failed,
        route(1, of=1) + answer(3, 2, code=0, of=1),
        route(2, of=2),
        answer(3, 2, code=0, of=2),
    )
    with Rtnetlink() as ipr:
        with pytest.raises(NetlinkError):
            ipr.route("list", **ROUTE)
        assert [route["table"] for route in ipr.route("list", **ROUTE)] == [2]


def test_a_list_that_changed_meanwhile_is_read_again(kernel: Callable[..., Kernel]) -> None:
    broken = [route(1, 0x12, of=1), answer(3, 0x12, code=0, of=1)]
    recorded = kernel(*broken, route(2, of=2), answer(3, 2, code=0, of=2))
    with Rtnetlink() as ipr:
        assert [route["table"] for route in ipr.route("list", **ROUTE)] == [2]
    assert len(recorded.sent) == 2
    kernel(*(answer(3, 0x12, code=0, of=number) for number in range(1, 6)))
    with Rtnetlink() as ipr, pytest.raises(InterruptedError):
        ipr.rules(V6)
