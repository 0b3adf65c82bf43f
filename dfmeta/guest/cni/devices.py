"""Devices of the VM and of its containers: rtnetlink(7), and Open vSwitch (RFC 7047)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
import sys
import time

from dfmeta.guest.cni import CniError, Code, Document

MAX_DATABASE = 16 << 20
"""Bytes that are read of OVSDB's answer at most."""
_REQUEST, _ACK, _EXCL, _CREATE, _DUMP = 0x1, 0x4, 0x200, 0x400, 0x300
_NEWLINK, _DELLINK, _GETLINK, _SETLINK = 16, 17, 18, 19
_NEWADDR, _GETADDR, _NEWROUTE, _GETROUTE = 20, 22, 24, 26
_ERROR, _DONE, _UP, _MAIN, _UNICAST, _CLONE_NEWNET = 2, 3, 1, 254, 1, 0x40000000


def attribute(kind: int, data: bytes) -> bytes:
    """Return an attribute of a message, padded to 4 bytes."""
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def header(index: int = 0, *, up: bool = False) -> bytes:
    """Return a struct ifinfomsg."""
    return struct.pack("=BxHiII", 0, 0, index, _UP if up else 0, _UP if up else 0)


def _u32(number: int) -> bytes:
    return number.to_bytes(4, sys.byteorder)


def _number(data: bytes, *, signed: bool = False) -> int:
    return int.from_bytes(data, sys.byteorder, signed=signed)


def _name(name: str) -> bytes:
    return attribute(3, name.encode() + b"\0")


def description(name: str, mac: str, mtu: int, netns: int = -1) -> bytes:
    """Return the attributes of a device: its name, MAC, MTU, and the namespace's descriptor."""
    address = attribute(1, bytes.fromhex(mac.replace(":", ""))) if mac else b""
    namespace = attribute(28, _u32(netns)) if netns >= 0 else b""
    return _name(name) + address + attribute(4, _u32(mtu)) + namespace


def link_info(kind: str, data: bytes) -> bytes:
    """Return IFLA_LINKINFO with a kind of device and its data."""
    return attribute(18, attribute(1, kind.encode() + b"\0") + attribute(2, data))


def vlan(name: str, mac: str, mtu: int, *, netns: int, parent: int, vid: int) -> bytes:
    """Return the message that makes a VLAN device of *parent*, at once in the namespace."""
    info = link_info("vlan", attribute(1, vid.to_bytes(2, sys.byteorder)))
    return header() + description(name, mac, mtu, netns) + attribute(5, _u32(parent)) + info


def veth(name: str, mac: str, mtu: int, *, netns: int, outer: str) -> bytes:
    """Return the message that makes *outer* here, and its peer in the namespace."""
    peer = attribute(1, header() + description(name, mac, mtu, netns))
    return header() + description(outer, "", mtu) + link_info("veth", peer)


class NetworkDevice:
    """A network device, as the kernel describes it."""

    def __init__(self, payload: bytes) -> None:
        self.index = _number(payload[4:8])
        self.up = bool(_number(payload[8:12]) & _UP)
        attributes = _attributes(payload[16:])
        info = _attributes(attributes.get(18, b""))
        self.name = attributes.get(3, b"").rstrip(b"\0").decode(errors="replace")
        self.mac = attributes.get(1, b"").hex(":")
        self.mtu = _number(attributes.get(4, b""))
        self.kind = info.get(1, b"").rstrip(b"\0").decode(errors="replace")
        data = _attributes(info.get(2, b"")) if self.kind == "vlan" else {}
        self.vid = _number(data.get(1, b"")[:2])


def _attributes(data: bytes) -> dict[int, bytes]:
    attributes: dict[int, bytes] = {}
    while len(data) >= 4:
        size = max(_number(data[:2]), 4)
        attributes[_number(data[2:4]) & 0x3FFF] = data[4:size]
        data = data[(size + 3) & ~3 :]
    return attributes


class Netlink:
    """A socket of rtnetlink.

    :param netns: descriptor of its network namespace; -1: this process' own.
    """

    def __init__(self, netns: int = -1) -> None:
        current = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        if netns >= 0:
            _setns(netns)
        try:
            kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
            self._socket = socket.socket(socket.AF_NETLINK, kind, 0)
        finally:
            if netns >= 0:
                _setns(current)
            os.close(current)
        self._socket.settimeout(10)

    def send(self, kind: int, payload: bytes, flags: int = _ACK) -> list[bytes]:
        """Send a message, and return the payloads of the answer."""
        size = 16 + len(payload)
        self._socket.send(struct.pack("=IHHII", size, kind, _REQUEST | flags, 1, 0) + payload)
        payloads: list[bytes] = []
        while True:
            data = self._socket.recv(1 << 18)
            while len(data) >= 16:
                size, answer = struct.unpack_from("=IH", data)
                content, data = data[16:size], data[(size + 3) & ~3 :]
                if answer in (_ERROR, _DONE):
                    number = -_number(content[:4], signed=True)
                    if number:
                        raise OSError(number, os.strerror(number))
                    return payloads
                payloads.append(content)

    def device(self, name: str) -> NetworkDevice | None:
        """Return a device by its name; None if there is none."""
        try:
            return NetworkDevice(self.send(_GETLINK, header() + _name(name))[0])
        except OSError as error:
            if error.errno == errno.ENODEV:
                return None
            raise

    def devices(self) -> list[NetworkDevice]:
        """Return all devices."""
        return [NetworkDevice(payload) for payload in self.send(_GETLINK, header(), _DUMP)]

    def make(self, message: bytes) -> None:
        """Make a device. The error is EEXIST if its name or VLAN id is taken."""
        self.send(_NEWLINK, message, _ACK | _CREATE | _EXCL)

    def remove(self, device: NetworkDevice | None) -> None:
        """Remove a device; one that is gone too."""
        try:
            if device is not None:
                self.send(_DELLINK, header(device.index))
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise

    def rename(self, device: NetworkDevice, name: str) -> None:
        """Give a device another name."""
        self.send(_SETLINK, header(device.index) + _name(name))

    def set_up(self, device: NetworkDevice, *, bare: bool = False) -> None:
        """Set a device up.

        :param bare: it gets no IPv6 address of its own (IN6_ADDR_GEN_MODE_NONE).
        """
        if bare:
            mode = attribute(26, attribute(10, attribute(8, b"\1")))
            with contextlib.suppress(OSError):  # A kernel without IPv6.
                self.send(_SETLINK, header(device.index) + mode)
        self.send(_SETLINK, header(device.index, up=True))

    def add_address(self, device: NetworkDevice, address: bytes, length: int) -> None:
        """Add an address; an IPv6 address is usable at once (IFA_F_NODAD)."""
        family, flags = (2, 0) if len(address) == 4 else (10, 2)
        head = struct.pack("=BBBBI", family, length, flags, 0, device.index)
        body = attribute(2, address) + attribute(1, address)
        self.send(_NEWADDR, head + body, _ACK | _CREATE | _EXCL)

    def addresses(self, device: NetworkDevice) -> set[tuple[bytes, int]]:
        """Return the addresses of a device, with the lengths of their prefixes."""
        addresses = set()
        for payload in self.send(_GETADDR, bytes(8), _DUMP):
            if _number(payload[4:8]) == device.index:
                values = _attributes(payload[8:])
                addresses.add((values.get(2) or values.get(1, b""), payload[1]))
        return addresses

    def add_route(self, device: NetworkDevice, dst: tuple[bytes, int], gateway: bytes) -> None:
        """Add a route by a device; without a gateway its destination is on the link."""
        family = 2 if len(dst[0]) == 4 else 10
        scope = 0 if gateway or family == 10 else 253
        head = struct.pack("=BBBBBBBBI", family, dst[1], 0, 0, _MAIN, 4, scope, _UNICAST, 0)
        body = attribute(1, dst[0]) if dst[1] else b""
        body += attribute(5, gateway) if gateway else b""
        body += attribute(4, _u32(device.index))
        self.send(_NEWROUTE, head + body, _ACK | _CREATE | _EXCL)

    def routes(self) -> set[tuple[tuple[bytes, int], bytes]]:
        """Return destination and gateway of each route of the main table; an empty one: none."""
        routes = set()
        for payload in self.send(_GETROUTE, bytes(12), _DUMP):
            values = _attributes(payload[12:])
            table = _number(values.get(15, payload[4:5]))
            dst = values.get(1, bytes(4 if payload[0] == 2 else 16))
            if table == _MAIN and payload[7] == _UNICAST:
                routes.add(((dst, payload[1]), values.get(5, b"")))
        return routes


def _setns(descriptor: int) -> None:
    if hasattr(os, "setns"):
        os.setns(descriptor, _CLONE_NEWNET)
        return
    import ctypes

    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def open_netns(path: str) -> int:
    """Return a descriptor of a namespace; -1 if the path names none."""
    try:
        # Otherwise the open of a FIFO waits for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return -1
    # All namespaces are files of one file system (namespaces(7)).
    if os.fstat(descriptor).st_dev == os.stat("/proc/self/ns/net").st_dev:
        return descriptor
    os.close(descriptor)
    return -1


class VmDatabase:
    """A connection to OVSDB in the VM.

    :param method: ``unix:PATH``.
    :param end: time (``time.monotonic``) until which it has to answer.
    """

    def __init__(self, method: str, end: float) -> None:
        self._end = end
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(10)
            self._socket.connect(method[len("unix:") :])
        except OSError as error:
            cause = f"Open vSwitch's database at {method} does not answer: {error.strerror}"
            raise CniError(Code.IO, cause, "Start Open vSwitch, or correct the key db") from error

    def transact(self, *operations: Document) -> list[Document]:
        """Do operations, all or none, and return their results."""
        request = {"method": "transact", "params": ["Open_vSwitch", *operations], "id": 1}
        try:
            self._socket.settimeout(max(self._end - time.monotonic(), 1))
            self._socket.sendall(json.dumps(request).encode())
            reply = self._reply()
        except (OSError, ValueError) as error:
            cause = f"Open vSwitch's database failed: {error}"
            raise CniError(Code.IO, cause, "See its log") from error
        results = reply.get("result") or [{"error": str(reply.get("error"))}]
        for result in results:
            if result and result.get("error"):
                cause = f"Open vSwitch refuses a change: {result['error']}"
                raise CniError(Code.IO, cause, "See its log")
        return [result or {} for result in results]

    def _reply(self) -> Document:
        text, decoder = b"", json.JSONDecoder()
        while len(text) < MAX_DATABASE:
            try:
                message, end = decoder.raw_decode(text.decode())
            except ValueError:
                part = self._socket.recv(1 << 20)
                if not part:
                    raise ConnectionResetError("it was closed") from None
                text += part
                continue
            if message.get("method") != "echo":
                return dict(message)
            text = text.decode()[end:].encode()
        raise ValueError("its answer is too large")

    def select(self, table: str, columns: list[str], *where: list[object]) -> list[Document]:
        """Return columns of the rows for which a condition holds."""
        return list(self.transact(_select(table, columns, *where))[0]["rows"])

    def ports(self, column: str, function: str, value: object) -> list[Document]:
        """Return the ports for which a condition holds, with name, _uuid, tag, external_ids."""
        columns = ["_uuid", "name", "tag", "external_ids"]
        return self.select("Port", columns, [column, function, value])

    def ports_of(self, bridge: str) -> set[str] | None:
        """Return the UUIDs of a bridge's ports; None if there is no such bridge."""
        rows = self.select("Bridge", ["ports"], ["name", "==", bridge])
        if not rows:
            return None
        kind, content = rows[0]["ports"]
        return {uuid for _kind, uuid in content} if kind == "set" else {content}

    def add(self, bridge: str, name: str, vid: int, ids: dict[str, str]) -> None:
        """Add an access port, and wait until Open vSwitch uses it."""
        keys = ["map", sorted([key, value] for key, value in ids.items())]
        port = {"name": name, "interfaces": ["named-uuid", "i"], "tag": vid, "external_ids": keys}
        port["vlan_mode"] = "access"
        self._apply(
            {"op": "insert", "table": "Interface", "row": {"name": name}, "uuid-name": "i"},
            {"op": "insert", "table": "Port", "row": port, "uuid-name": "p"},
            _mutate("Bridge", ["ports", "insert", ["named-uuid", "p"]], ["name", "==", bridge]),
        )
        rows = self.select("Interface", ["ofport", "error"], ["name", "==", name])
        if not rows or type(rows[0]["ofport"]) is not int or rows[0]["ofport"] < 1:
            cause = rows[0]["error"] if rows and isinstance(rows[0]["error"], str) else "no reason"
            cause = f"Open vSwitch cannot use the port {name}: {cause}"
            raise CniError(Code.IO, cause, "See its log")

    def remove(self, rows: list[Document]) -> None:
        """Remove ports from their bridges."""
        uuids = [row["_uuid"] for row in rows]
        changes = [
            _mutate("Bridge", ["ports", "delete", uuid], ["ports", "includes", uuid])
            for uuid in uuids
        ]
        if changes:
            self._apply(*changes)

    def _apply(self, *changes: Document) -> None:
        """Wait until ovs-vswitchd has applied changes (ovs-vswitchd.conf.db(5), next_cfg)."""
        table = "Open_vSwitch"
        count = [_mutate(table, ["next_cfg", "+=", 1]), _select(table, ["next_cfg"])]
        wanted = self.transact(*changes, *count)[-1]["rows"][0]["next_cfg"]
        while self.select(table, ["cur_cfg"])[0]["cur_cfg"] < wanted:
            if time.monotonic() > self._end:
                raise CniError(Code.LATER, "Open vSwitch in this VM is busy", "Check ovs-vswitchd")
            time.sleep(0.01)


def _select(table: str, columns: list[str], *where: list[object]) -> Document:
    return {"op": "select", "table": table, "where": list(where), "columns": columns}


def _mutate(table: str, mutation: list[object], *where: list[object]) -> Document:
    return {"op": "mutate", "table": table, "where": list(where), "mutations": [mutation]}
