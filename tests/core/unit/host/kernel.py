"""A model of the kernel's routing: its objects, and the messages of rtnetlink(7)."""

import errno
import struct
from ipaddress import IPv4Address
from typing import Any

import pytest
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.fibmsg import fibmsg
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from dfmeta.host import rtnetlink

TAP, OTHER = 5, 6
"""Indices of tap-metadata and of another device."""
MAC = "02:64:66:6d:65:01"
CLASSES = {16: ifinfmsg, 20: ifaddrmsg, 24: rtmsg, 28: ndmsg, 32: fibmsg}
NAMES = {20: "address", 24: "route", 28: "neighbour", 32: "rule"}
KEYS = {
    20: ("family", "index", "prefixlen", "IFA_ADDRESS"),
    24: ("family", "RTA_TABLE", "RTA_DST", "dst_len"),
    28: ("family", "ifindex", "NDA_DST"),
    32: ("family", "FRA_PRIORITY", "FRA_SRC", "src_len", "FRA_OIFNAME", "FRA_TABLE"),
}
VALUES = {
    20: ("IFA_FLAGS",),
    24: ("RTA_OIF", "RTA_GATEWAY", "flags", "MTU"),
    28: ("NDA_LLADDR", "state"),
    32: (),
}
MISSING = {20: errno.EADDRNOTAVAIL, 24: errno.ESRCH, 28: errno.ENOENT, 32: errno.ENOENT}
Object = tuple[Any, ...]


class Kernel:
    """The kernel's end of the routing socket: its objects are in the order of ``KEYS``."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[Object, Object]] = {name: {} for name in NAMES.values()}
        self.up = {"tap-metadata": False}
        self.addresses4 = {IPv4Address("192.0.2.1")}
        self.refused: dict[str, int] = {}
        """Name and command of a request → error."""
        self.changes: list[str] = []
        self.requests: list[str] = []
        """Requests of changes, refused ones as well."""
        self.links = {1: ("lo", 0x10049), TAP: ("tap-metadata", 0x11043), OTHER: ("eth0", 0x11043)}
        """Index → name and flags."""
        self.ways: dict[str, int] = {}
        """Destination → index of the device of its route."""
        self._answer = b""

    def send(self, request: bytes) -> None:
        _length, number, flags, sequence, _port = struct.unpack_from("=IHHII", request)
        kind, command = number & ~3, number & 3
        message = CLASSES[kind](request)
        message.decode()
        try:
            messages = self._do(kind, command, flags, message)
            parts = [framed(kind, bytes(part.data)[16:], sequence) for part in messages]
            self._answer = b"".join(parts) + framed(2, struct.pack("=i", 0), sequence)
        except NetlinkError as error:
            self._answer = framed(2, struct.pack("=i", -error.code), sequence)

    def recv(self, _size: int) -> bytes:
        return self._answer

    def bind(self, _address: object) -> None:
        pass

    def setsockopt(self, *_option: int) -> None:
        pass

    def close(self) -> None:
        pass

    def add(self, name: str, *key: Any, value: Object = ()) -> None:
        """Have an object of another program."""
        self.objects[name][key] = value

    def state(self) -> dict[str, dict[Object, Object]]:
        return {name: dict(objects) for name, objects in self.objects.items()}

    def _do(self, kind: int, command: int, flags: int, message: Any) -> list[Any]:
        if kind == 16 and command == 2:
            return [link(index, *of) for index, of in self.links.items()]
        if kind == 16:
            self._refuse("link", "")
            assert (message["index"], message["change"]) == (TAP, 1)
            self.up["tap-metadata"] = message["flags"] == 1
            return []
        name, objects = NAMES[kind], self.objects[NAMES[kind]]
        key, value = fields(message, KEYS[kind]), fields(message, VALUES[kind])
        if command == 2:
            return self._read(kind, message, key)
        self.requests.append(f"{('add', 'del')[command]} {name}")
        self._refuse(name, ("add", "del")[command])
        old = objects.get(key)
        if command == 1:
            gateway = kind == 24 and old is not None and old[0] != message.get_attr("RTA_OIF")
            if old is None or gateway:
                raise NetlinkError(MISSING[kind])
            del objects[key]
        elif old is not None and flags & 0x200:
            raise NetlinkError(errno.EEXIST)
        else:
            assert flags & 0x400
            objects[key] = value
        self.changes.append(f"{('add', 'del')[command]} {name}")
        return []

    def _read(self, kind: int, message: Any, key: Object) -> list[Any]:
        objects = self.objects[NAMES[kind]]
        self._refuse(NAMES[kind], "get")
        if kind == 28:
            if key not in objects:
                raise NetlinkError(errno.ENOENT)
            return [encoded(kind, key, objects[key])]
        if kind == 24 and message["src_len"]:
            destination = message.get_attr("RTA_DST")
            if destination not in self.ways:
                raise NetlinkError(errno.ENETUNREACH)
            way = (message["family"], 254, destination, message["dst_len"])
            return [encoded(24, way, (self.ways[destination], None, 0, 0))]
        items = [entry for entry in objects.items() if entry[0][0] == message["family"]]
        if kind == 20 and message["index"]:
            items = [entry for entry in items if entry[0][1] == message["index"]]
        if kind == 32:
            items.sort(key=lambda entry: entry[0][1])
        if kind == 24:
            items = [entry for entry in items if entry[0][1] == message.get_attr("RTA_TABLE")]
            if not items:
                raise NetlinkError(errno.ENOENT)
            items = [entry for entry in items if entry[1][0] == message.get_attr("RTA_OIF")]
        return [encoded(kind, *entry) for entry in items]

    def _refuse(self, name: str, command: str) -> None:
        code = self.refused.get(f"{command} {name}".strip())
        if code is not None:
            raise NetlinkError(code)


def framed(kind: int, body: bytes, number: int) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 2, number, 7) + body


def fields(message: Any, names: tuple[str, ...]) -> Object:
    return tuple(
        mtu_of(message)
        if name == "MTU"
        else message.get_attr(name)
        if name.isupper()
        else message[name]
        for name in names
    )


def mtu_of(message: Any) -> int:
    metrics = message.get_attr("RTA_METRICS")
    return 0 if metrics is None else int(metrics.get_attr("RTAX_MTU"))


def encoded(kind: int, key: Object, value: Object) -> Any:
    message = CLASSES[kind]()
    attributes = []
    for name, part in zip((*KEYS[kind], *VALUES[kind]), (*key, *value), strict=True):
        if name == "MTU":
            if part:
                attributes.append(("RTA_METRICS", {"attrs": [("RTAX_MTU", part)]}))
        elif not name.isupper():
            message[name] = part
        elif part is not None:
            attributes.append((name, part))
    if kind == 32:
        message["action"] = 1
    message["attrs"] = attributes
    message.encode()
    return message


def link(index: int, name: str, flags: int) -> Any:
    message = ifinfmsg()
    message["index"], message["flags"] = index, flags
    message["attrs"] = [("IFLA_IFNAME", name)]
    message.encode()
    return message


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Have the model for the kernel, with objects of other programs that look like dfmeta's."""
    made = Kernel()
    for family, address in ((2, "10.0.0.1"), (10, "fd01::1")):
        made.add("rule", family, 32766, None, 0, None, 254)
        made.add("rule", family, 32765, None, 0, "eth0", 7)
        made.add("rule", family, 32764, address, 32 if family == 2 else 128, None, 7)
        made.add("route", family, 254, None, 0, value=(OTHER, address, 0, 0))
        made.add("address", family, OTHER, 24, address, value=(None,))
        made.add("neighbour", family, OTHER, address, value=(MAC, 2))
    monkeypatch.setattr(rtnetlink, "_open", lambda: made)
    return made
