#!/usr/bin/python3 -IS
"""``dfmeta-cni``, inside a guest: the CNI plugin that gives containers ports of their own.

A runtime calls it for each container (CNI specification 1.1.0; netavark, plugin-API.md, 1.0.0). It
asks the host for an attachment, over the metadata address, and makes the container's device: a VLAN
device of the VM's interface, or a veth whose other end is an access port of an Open vSwitch bridge
in the VM.

Trust: the runtime's environment and configuration come from root of this VM, and are checked for
form. The host's answers are bounded and checked. No token is printed or stored.

This is a single file that runs on Python 3.8 and later, with the standard library only: a guest may
have only this file. Modules are imported where they are used, because a runtime asks VERSION and
STATUS often, and a start takes most of the time of a call.
"""

from __future__ import annotations

import errno
import json
import os
import re
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    import socketserver
    from typing import Any

    Answer = tuple[int, dict[bytes, bytes], bytes]

VERSIONS = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
SINCE = {"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}
"""Verbs that older versions of the specification do not have."""
ENDPOINT = "169.254.169.254:80"
METADATA = "169.254.169.254/32"
DATABASE = "unix:/var/run/openvswitch/db.sock"
DOCKER, STATE = "/run/docker/plugins/dfmeta.sock", "/var/lib/dfmeta-cni"
RELEASE, NETAVARK = "0.1.0", "1.0.0"
"""Versions of this program and of netavark's API for plugins."""
GC_KEYS = ("cni.dev/valid-attachments", "cni.dev/attachments")
BOOT_ID = "/proc/sys/kernel/random/boot_id"

VERSION, FIELD, UNKNOWN, ENVIRONMENT, IO, DECODE, CONFIGURATION = range(1, 8)
LATER, UNAVAILABLE, SHORT = 11, 50, 51
MTU, REFUSED, CONFLICT, EXHAUSTED, DIFFERENT = range(100, 105)
"""Codes of errors: those of the specification, and from 100 on this program's own."""

MAX_INPUT, MAX_HEAD, MAX_ANSWER, MAX_DATABASE = 4 << 20, 16 << 10, 1 << 20, 16 << 20
"""Bytes that are read at most: of stdin, of an answer's head and body, and of OVSDB's answer."""
MAX_LABELS, MAX_LABEL, MAX_LABEL_BYTES, MAX_ADDRESSES, MAX_ROUTES = 16, 256, 1024, 16, 64
PATIENCE = 20
"""Seconds for the requests of a call, unless ``timeout`` says otherwise."""
STATUS_PATIENCE = 4
"""Seconds for STATUS at most: runtimes ask it every 5 seconds."""
UNDO_PATIENCE = 3
"""Seconds to give back an attachment after a failure, beyond ``timeout``."""
RETRIES_AVOID = 2

_CONTAINER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
_IFNAME = re.compile(r"[!-$&-.0-9;-~]{1,15}", re.ASCII)
_NETWORK = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}", re.ASCII)
_MAC = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}", re.ASCII)
_TOKEN = re.compile(rb"[!-~]{1,4096}")
_STATUS = re.compile(rb"HTTP/1\.[01] ([2-5][0-9][0-9])(?: [ -~]{0,200})?")
_NUMBER = re.compile(rb"[0-9]{1,7}")
_PORT = re.compile(
    r"\[([0-9A-Fa-f:.]{2,45}(?:%[!-~]{1,15})?)\]:([0-9]{1,5})|([0-9.]{7,15}):([0-9]{1,5})"
)


class CniError(Exception):
    """An error for the runtime; ``details`` has the remedy."""

    def __init__(self, code: int, msg: str, details: str = "") -> None:
        self.code, self.msg, self.details = code, msg, details
        super().__init__(msg)


class VidTakenError(Exception):
    """This VM has a device with the VLAN id of the attachment."""


# The call


class Call:
    """A call of a runtime: its environment and its configuration, checked."""

    def __init__(self, verb: str, config: dict[str, Any], environ: dict[str, str]) -> None:
        """
        :raises CniError: a value is missing or has not its form.
        """
        self.verb, self.config, self.environ = verb, config, environ
        self.bare = False
        """Whether the runtime moves the device, and sets addresses and routes itself."""
        self.container = self.ifname = self.netns = ""
        if verb in ("ADD", "DEL", "CHECK"):
            self.container = self._variable("CNI_CONTAINERID", _CONTAINER)
            self.ifname = self._variable("CNI_IFNAME", _IFNAME)
            self.netns = environ.get("CNI_NETNS", "")
            if self.ifname in (".", ".."):
                raise CniError(ENVIRONMENT, "CNI_IFNAME is not the name of a device")
            if not self.netns and verb != "DEL":
                raise CniError(ENVIRONMENT, "CNI_NETNS is missing", "The runtime has to set it")
        self.network = self._text("network", required=True)
        if not _NETWORK.fullmatch(self.network):
            raise _wrong("network", "the name of a network of the host: small letters, digits, _.-")
        self.link = self._text("link", "vlan")
        if self.link not in ("vlan", "ovs"):
            raise _wrong("link", "vlan or ovs")
        self.bridge = self._text("bridge", required=self.link == "ovs")
        self.database = self._text("db", DATABASE)
        if not self.database.startswith("unix:/"):
            raise _wrong("db", "unix:PATH, the socket of ovsdb-server in this VM")
        self.parent = self._text("parent")
        self.owner = self._text("owner", self._text("name"))
        if len(self.owner) > 128 or not self.owner.isprintable():
            raise _wrong("owner", "printable text of at most 128 characters")
        self.default_route = self._switch("defaultRoute")
        self.metadata_route = self._switch("metadataRoute")
        self.mtu = config.get("mtu", 0)
        if type(self.mtu) is not int or not (self.mtu == 0 or 68 <= self.mtu <= 65535):
            raise _wrong("mtu", "a number of bytes from 68 to 65535")
        timeout = config.get("timeout", PATIENCE)
        if type(timeout) not in (int, float) or not 1 <= timeout <= 300:
            raise _wrong("timeout", "seconds from 1 to 300")
        if verb == "STATUS":
            timeout = min(timeout, STATUS_PATIENCE)
        self.api = Api(self._text("endpoint", ENDPOINT), time.monotonic() + timeout)
        self.path = f"/attachments/{_quoted(self.container)}/{_quoted(self.ifname)}"

    @property
    def version(self) -> str:
        """The version of the specification that the runtime uses."""
        return str(self.config["cniVersion"])

    def wanted(self) -> dict[str, Any]:
        """Return the body of the request for an attachment.

        :raises CniError: a capability has not its form.
        """
        body = {"network": self.network, "owner": self.owner}  # type: dict[str, Any]
        boot_id = _content(BOOT_ID)
        if boot_id:
            body["boot_id"] = boot_id
        runtime = self.config.get("runtimeConfig") or {}
        if not isinstance(runtime, dict):
            raise _wrong("runtimeConfig", "an object")
        mac, ips = runtime.get("mac"), runtime.get("ips") or []
        if mac:
            if not isinstance(mac, str) or not _MAC.fullmatch(mac.lower()):
                raise _wrong("runtimeConfig.mac", "a MAC address with colons")
            body["mac"] = mac.lower()
        if ips:
            one = str(ips[0]).partition("/")[0] if isinstance(ips, list) and len(ips) == 1 else ""
            if len(_packed(one)) != 4:
                raise _wrong("runtimeConfig.ips", "a list of one IPv4 address")
            body["ip"] = one
        pairs = [one.partition("=") for one in self.environ.get("CNI_ARGS", "").split(";")]
        found = {name: value[:MAX_LABEL] for name, equals, value in pairs if equals}
        own = [name for name in found if name.startswith("K8S_") and len(name) <= 63]
        labels = {name: found[name] for name in own if (name + found[name]).isprintable()}
        kept, left = {}, MAX_LABEL_BYTES  # type: dict[str, str], int
        for name, text in list(labels.items())[:MAX_LABELS]:
            size = len((name + text).encode())
            if size <= left:
                kept[name], left = text, left - size
        return {**body, "labels": kept} if kept else body

    def previous(self) -> dict[str, Any]:
        """Return ``prevResult``; empty without one.

        :raises CniError: it is not an object with lists.
        """
        result = self.config.get("prevResult") or {}
        lists = ("interfaces", "ips", "routes")
        parts = [result.get(name) or [] for name in lists] if isinstance(result, dict) else [None]
        if not all(
            isinstance(one, list) and all(type(row) is dict for row in one) for one in parts
        ):
            raise _wrong("prevResult", "the result of ADD")
        return result

    def previous_mac(self) -> str:
        """Return the MAC of the container's device in ``prevResult``; empty without one."""
        for one in self.previous().get("interfaces") or []:
            if one.get("name") == self.ifname and one.get("sandbox"):
                return str(one.get("mac", "")).lower()
        return ""

    def _variable(self, name: str, form: re.Pattern[str]) -> str:
        value = self.environ.get(name, "")
        if not form.fullmatch(value):
            state = "has not the form of the CNI specification" if value else "is missing"
            raise CniError(ENVIRONMENT, f"{name} {state}", "The runtime has to set it")
        return value

    def _text(self, name: str, otherwise: str = "", *, required: bool = False) -> str:
        value = self.config.get(name, otherwise)
        if not isinstance(value, str) or (required and not value):
            raise _wrong(name, "text" if value else "in the configuration: it is missing")
        return value

    def _switch(self, name: str) -> bool:
        value = self.config.get(name, True)
        if not isinstance(value, bool):
            raise _wrong(name, "true or false")
        return value


def _wrong(name: str, form: str) -> CniError:
    return CniError(CONFIGURATION, f"{name} has to be {form}", "Correct the network configuration")


def _quoted(text: str) -> str:
    kept = "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    return "".join(one if one in kept else f"%{ord(one):02X}" for one in text)


def _content(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read(100).strip()
    except (OSError, ValueError):
        return ""


def _packed(address: str) -> bytes:
    import socket

    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    except (OSError, ValueError):
        return b""


def _prefix(text: object) -> tuple[bytes, int]:
    """Return address and length of a prefix; an empty address if it is invalid."""
    address, _slash, length = text.partition("/") if isinstance(text, str) else ("", "", "")
    packed = _packed(address)
    bits = length if length.isascii() and length.isdigit() and len(length) < 4 else "999"
    return (packed, int(bits)) if int(bits) <= 8 * len(packed) else (b"", 0)


# The API of the host


class Api:
    """The host's API: a token and the requests of a call on one connection.

    :param endpoint: ``ADDRESS:PORT``; an IPv6 address has brackets, and its zone inside.
    :param end: time (``time.monotonic``) at which no more attempts are made.
    """

    def __init__(self, endpoint: str, end: float) -> None:
        match = _PORT.fullmatch(endpoint)
        host, port = (match[1] or match[3], match[2] or match[4]) if match else ("", "0")
        self.host = host.partition("%")[0]  # type: str
        self.zone = host.partition("%")[2]  # type: str
        self.port = int(port)
        if not 0 < self.port < 65536 or not _packed(self.host):
            raise _wrong("endpoint", f"ADDRESS:PORT, such as {ENDPOINT}")
        self.end = end
        self.token = b""
        self._socket = None  # type: socket.socket | None
        self._rest = b""

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request until it is answered; return the status and the document.

        A request may be sent twice: the API's are the same again. 503 and a rate that was exceeded
        are repeated.

        :raises CniError: no answer in time, or none that can be read.
        """
        pause, renewed = 0.1, False
        cause, last = "it does not answer", (0, None)  # type: tuple[str, tuple[int, Any]]
        while True:
            try:
                status, headers, raw = self._request(method, path, body)
            except OSError as error:
                self.close()
                cause, last, wait = error.strerror or str(error) or cause, (0, None), pause
                pause = min(2 * pause, 2)
            else:
                document = _document(raw)
                again = status == 503 or (status == 429 and _member(document, "error") == "rate")
                if status == 401 and not renewed:
                    renewed = True
                    self.close()
                    continue
                if not again:
                    return status, document
                after = headers.get(b"retry-after", b"")
                wait = int(after) if _NUMBER.fullmatch(after) else pause
                wait, last = max(wait, 0.1), (status, document)
            if wait >= self.end - time.monotonic():
                if last[0]:
                    return last
                cause = f"the host's API at {self.host}:{self.port} is away: {cause}"
                remedy = "Check that dfmeta-agent runs on the host, that this VM reaches the "
                remedy += "address, and that the plugin runs as root in the VM's own network"
                raise CniError(LATER, cause, f"{remedy} namespace")
            time.sleep(wait)

    def ask(self, method: str, path: str, body: object = None, *, missing: bool = False) -> Any:
        """Send a request as :meth:`call` does; return the document, or None for *missing* and 404.

        :raises CniError: the host refuses it.
        """
        status, document = self.call(method, path, body)
        if status == 404 and missing:
            return None
        if status not in (200, 201, 204):
            raise _refusal(status, document)
        return document

    def close(self) -> None:
        """Close the connection; its token goes with it."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self.token, self._rest = None, b"", b""

    def _request(self, method: str, path: str, body: object) -> Answer:
        if not self.token:
            ttl = b"X-dfmeta-token-ttl-seconds: 300\r\n"
            status, headers, raw = self._exchange("PUT", "/token", ttl, b"")
            if status != 200:
                return status, headers, raw
            if not _TOKEN.fullmatch(raw):
                raise CniError(DECODE, "the host's token is not a token")
            self.token = raw
        data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        kind = b"Content-Type: application/json\r\n" if data else b""
        line = b"X-dfmeta-token: " + self.token + b"\r\n" + kind
        return self._exchange(method, path, line, data)

    def _exchange(self, method: str, path: str, lines: bytes, data: bytes) -> Answer:
        peer = self._connected()
        name = f"[{self.host}]" if ":" in self.host else self.host
        head = f"{method} /dfmeta/v1{path} HTTP/1.1\r\nHost: {name}\r\n".encode()
        size = b"Content-Length: %d\r\n" % len(data) if method in ("PUT", "POST") else b""
        peer.settimeout(self._left())
        peer.sendall(head + lines + size + b"\r\n" + data)
        head = self._until(peer, b"\r\n\r\n", MAX_HEAD)
        first, *rest = head.split(b"\r\n")
        match = _STATUS.fullmatch(first)
        if not match:
            raise CniError(DECODE, "the host's answer is not HTTP", "Check the key endpoint")
        headers = {}
        for line in rest:
            field, _colon, value = line.partition(b":")
            headers[field.lower()] = value.strip()
        status = int(match[1])
        length = headers.get(b"content-length", b"0" if status in (204, 304) else b"")
        if not _NUMBER.fullmatch(length) or int(length) > MAX_ANSWER:
            raise CniError(DECODE, f"the host's answer has no length up to {MAX_ANSWER} bytes")
        while len(self._rest) < int(length):
            self._receive(peer)
        raw, self._rest = self._rest[: int(length)], self._rest[int(length) :]
        if headers.get(b"connection", b"").lower() == b"close":
            peer.close()
            self._socket, self._rest = None, b""
        return status, headers, raw

    def _until(self, peer: socket.socket, mark: bytes, limit: int) -> bytes:
        while mark not in self._rest:
            if len(self._rest) > limit:
                raise CniError(DECODE, f"the head of the host's answer has more than {limit} bytes")
            self._receive(peer)
        head, _mark, self._rest = self._rest.partition(mark)
        return head

    def _receive(self, peer: socket.socket) -> None:
        peer.settimeout(self._left())
        part = peer.recv(65536)
        if not part:
            raise ConnectionResetError("it closes connections")
        self._rest += part

    def _left(self) -> float:
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError("it does not answer in time")
        return left

    def _connected(self) -> socket.socket:
        """Return a connection from a privileged port: the host accepts no other (ip(7))."""
        import socket

        if self._socket is not None:
            return self._socket
        six = ":" in self.host
        peer = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM)
        try:
            # A port in TIME_WAIT is not free for minutes, and privileged ports are few.
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _bind_privileged(peer)
            peer.settimeout(min(self._left(), 5))
            zone = socket.if_nametoindex(self.zone) if self.zone else 0
            peer.connect((self.host, self.port, 0, zone) if six else (self.host, self.port))
        except BaseException:
            peer.close()
            raise
        self._socket = peer
        return peer


def _bind_privileged(peer: socket.socket) -> None:
    first = os.getpid()
    for step in range(424):
        try:
            peer.bind(("", 600 + (first + step) % 424))
        except OSError as error:
            if error.errno == errno.EACCES:
                cause = "a source port below 1024 is refused"
                raise CniError(IO, cause, "Run the plugin as root") from error
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return
    raise OSError("no source port below 1024 is free")


def _document(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode(), parse_int=lambda digits: int(digits[:20])) if raw else None
    except (ValueError, RecursionError):
        return None


def _member(document: object, name: str) -> object:
    return document.get(name) if isinstance(document, dict) else None


def _refusal(status: int, document: object) -> CniError:
    """Return the error for an answer that is not the one hoped for."""
    said = _member(document, "message")
    text = said if isinstance(said, str) and said.isprintable() else ""
    code, cause, remedy = {
        400: (CONFIGURATION, "a wrong request", "Correct the configuration"),
        401: (REFUSED, "a request without a valid token", "Update the plugin"),
        403: (REFUSED, "a request that may come from a container", "Run the plugin as root"),
        404: (REFUSED, "attachments for this VM", "Allow this VM on the host: [attachments] allow"),
        409: (CONFLICT, "the attachment", "Delete the container first: it is on another network"),
        413: (CONFIGURATION, "a request of this size", "Use shorter values"),
        422: (CONFIGURATION, "this network", "Name one that the host has in the key network"),
        429: (LATER, "more attachments or requests", "Try again, or raise [attachments] quota"),
        503: (LATER, "requests at the moment", "Try again; `dfmeta doctor` on the host says more"),
        507: (EXHAUSTED, "an attachment: VLAN ids or addresses are used up", "Enlarge the subnet"),
    }.get(status, (LATER, "the request", "See the log of dfmeta-agent on the host"))
    return CniError(code, f"the host refuses {cause} ({status})", f"{text[:400]} {remedy}".strip())


class Attachment:
    """An attachment of the host's answer, checked."""

    def __init__(self, document: object) -> None:
        """
        :raises CniError: a member is missing or has not its form.
        """
        members = document if isinstance(document, dict) else {}  # type: dict[str, Any]
        get = members.get
        self.vid = get("vid")  # type: Any
        self.mac = get("mac")  # type: Any
        self.mtu = get("mtu", 1500)  # type: Any
        self.parent_mac = get("parent_mac") or ""  # type: Any
        self.active = get("state", "active") == "active"
        ips, routes, dns = get("ips"), get("routes") or [], get("dns") or {}
        if (
            type(self.vid) is not int
            or not 1 <= self.vid <= 4094
            or not _is_mac(self.mac)
            or type(self.mtu) is not int
            or not 68 <= self.mtu <= 65535
            or not (self.parent_mac == "" or _is_mac(self.parent_mac))
            or not isinstance(ips, list)
            or not 1 <= len(ips) <= MAX_ADDRESSES
            or not isinstance(routes, list)
            or len(routes) > MAX_ROUTES
            or not isinstance(dns, dict)
        ):
            raise CniError(DECODE, "the host's answer is not an attachment", "Update dfmeta")
        self.ips, self.routes, self.dns = [], [], dns  # type: list[Any], list[Any], dict[str, Any]
        for one in ips:
            address, gateway = _member(one, "address"), _member(one, "gateway") or ""
            if not _prefix(address)[0] or (gateway and not _packed(str(gateway))):
                raise CniError(DECODE, "the host's answer has an invalid address", "Update dfmeta")
            self.ips.append((address, gateway))
            if gateway:
                self._route("::/0" if ":" in str(gateway) else "0.0.0.0/0", gateway)
        for one in routes:
            dst, gateway = _member(one, "dst"), _member(one, "gw") or ""
            if not _prefix(dst)[0] or (gateway and not _packed(str(gateway))):
                raise CniError(DECODE, "the host's answer has an invalid route", "Update dfmeta")
            self._route(dst, gateway)

    def _route(self, dst: object, gateway: object) -> None:
        if (dst, gateway) not in self.routes:
            self.routes.append((dst, gateway))


def _is_mac(value: object) -> bool:
    return isinstance(value, str) and _MAC.fullmatch(value) is not None


# rtnetlink(7)

_REQUEST, _ACK, _EXCL, _CREATE, _DUMP = 0x1, 0x4, 0x200, 0x400, 0x300
_NEWLINK, _DELLINK, _GETLINK, _SETLINK = 16, 17, 18, 19
_NEWADDR, _GETADDR, _NEWROUTE, _GETROUTE = 20, 22, 24, 26
_LISTS = (_GETLINK, _GETADDR, _GETROUTE)
_UP, _MAIN, _UNICAST = 0x1, 254, 1
_ERROR, _DONE, _UP, _CLONE_NEWNET = 2, 3, 1, 0x40000000
_DERIVED = ("bridge", "openvswitch", "tun", "vlan", "macvlan", "macvtap", "ipvlan")
"""Kinds of devices that may have the MAC of the VM's interface, but are not the interface."""


def attribute(kind: int, data: bytes) -> bytes:
    """Return an attribute of a message, padded to 4 bytes."""
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def device(index: int = 0, *, up: bool = False) -> bytes:
    """Return a struct ifinfomsg."""
    return struct.pack("=BxHiII", 0, 0, index, _UP if up else 0, _UP if up else 0)


def _u32(number: int) -> bytes:
    return number.to_bytes(4, sys.byteorder)


def described(name: str, mac: str, mtu: int, netns: int = -1) -> bytes:
    """Return the attributes of a device: its name, MAC, MTU, and the namespace's descriptor."""
    text = attribute(3, name.encode() + b"\0")
    text += attribute(1, bytes.fromhex(mac.replace(":", ""))) if mac else b""
    text += attribute(4, _u32(mtu))
    return text + (attribute(28, _u32(netns)) if netns >= 0 else b"")


def kind_of(kind: str, data: bytes) -> bytes:
    """Return IFLA_LINKINFO with a kind of device and its data."""
    return attribute(18, attribute(1, kind.encode() + b"\0") + attribute(2, data))


def vlan(name: str, mac: str, mtu: int, *, netns: int, parent: int, vid: int) -> bytes:
    """Return the message that makes a VLAN device of *parent*, at once in the namespace."""
    data = kind_of("vlan", attribute(1, vid.to_bytes(2, sys.byteorder)))
    return device() + described(name, mac, mtu, netns) + attribute(5, _u32(parent)) + data


def veth(name: str, mac: str, mtu: int, *, netns: int, outer: str) -> bytes:
    """Return the message that makes *outer* here, and its peer in the namespace."""
    peer = attribute(1, device() + described(name, mac, mtu, netns))
    return device() + described(outer, "", mtu) + kind_of("veth", peer)


class Link:
    """A network device, as the kernel describes it."""

    def __init__(self, payload: bytes) -> None:
        self.index = int.from_bytes(payload[4:8], sys.byteorder)
        self.up = bool(int.from_bytes(payload[8:12], sys.byteorder) & _UP)
        found = _attributes(payload[16:])
        info = _attributes(found.get(18, b""))
        self.name = found.get(3, b"").rstrip(b"\0").decode(errors="replace")
        self.mac = found.get(1, b"").hex(":")
        self.mtu = int.from_bytes(found.get(4, b""), sys.byteorder)
        self.kind = info.get(1, b"").rstrip(b"\0").decode(errors="replace")
        data = _attributes(info.get(2, b"")) if self.kind == "vlan" else {}
        self.vid = int.from_bytes(data.get(1, b"")[:2], sys.byteorder)


def _attributes(data: bytes) -> dict[int, bytes]:
    found = {}  # type: dict[int, bytes]
    while len(data) >= 4:
        size = max(int.from_bytes(data[:2], sys.byteorder), 4)
        found[int.from_bytes(data[2:4], sys.byteorder) & 0x3FFF] = data[4:size]
        data = data[(size + 3) & ~3 :]
    return found


class Netlink:
    """A socket of rtnetlink.

    :param netns: descriptor of its network namespace; -1: this process' own.
    """

    def __init__(self, netns: int = -1) -> None:
        import socket

        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        if netns >= 0:
            _setns(netns)
        try:
            self._socket = socket.socket(socket.AF_NETLINK, kind, 0)
        finally:
            if netns >= 0:
                _setns(here)
            os.close(here)
        self._socket.settimeout(10)

    def send(self, kind: int, payload: bytes, flags: int = 0) -> list[bytes]:
        """Send a message, and return the payloads of the answer.

        :raises OSError: the kernel refuses it.
        """
        size = 16 + len(payload)
        flags |= _REQUEST | (0 if flags & _DUMP == _DUMP and kind in _LISTS else _ACK)
        self._socket.send(struct.pack("=IHHII", size, kind, flags, 1, 0) + payload)
        found = []  # type: list[bytes]
        while True:
            data = self._socket.recv(1 << 18)
            while len(data) >= 16:
                size, answer = struct.unpack_from("=IH", data)
                content, data = data[16:size], data[(size + 3) & ~3 :]
                if answer in (_ERROR, _DONE):
                    number = -int.from_bytes(content[:4], sys.byteorder, signed=True)
                    if number:
                        raise OSError(number, os.strerror(number))
                    return found
                found.append(content)

    def link(self, name: str) -> Link | None:
        """Return a device by its name; None if there is none."""
        try:
            answer = self.send(_GETLINK, device() + attribute(3, name.encode() + b"\0"))
        except OSError as error:
            if error.errno == errno.ENODEV:
                return None
            raise
        return Link(answer[0])

    def links(self) -> list[Link]:
        """Return all devices."""
        return [Link(one) for one in self.send(_GETLINK, device(), _DUMP)]

    def make(self, message: bytes) -> None:
        """Make a device.

        :raises OSError: the kernel refuses it; EEXIST if its name or VLAN id is taken.
        """
        self.send(_NEWLINK, message, _CREATE | _EXCL)

    def remove(self, link: Link) -> None:
        """Remove a device; one that is gone too."""
        try:
            self.send(_DELLINK, device(link.index))
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise

    def up(self, link: Link, *, bare: bool = False) -> None:
        """Set a device up.

        :param bare: it gets no IPv6 address of its own (IN6_ADDR_GEN_MODE_NONE).
        """
        if bare:
            import contextlib

            mode = attribute(26, attribute(10, attribute(8, b"\1")))
            with contextlib.suppress(OSError):  # A kernel without IPv6.
                self.send(_SETLINK, device(link.index) + mode)
        self.send(_SETLINK, device(link.index, up=True))

    def address(self, link: Link, address: bytes, length: int) -> None:
        """Add an address; an IPv6 address is usable at once (IFA_F_NODAD)."""
        family, flags = (2, 0) if len(address) == 4 else (10, 2)
        head = struct.pack("=BBBBI", family, length, flags, 0, link.index)
        body = attribute(2, address) + attribute(1, address)
        self.send(_NEWADDR, head + body, _CREATE | _EXCL)

    def addresses(self, link: Link) -> set[tuple[bytes, int]]:
        """Return the addresses of a device, with the lengths of their prefixes."""
        found = set()
        for one in self.send(_GETADDR, bytes(8), _DUMP):
            if int.from_bytes(one[4:8], sys.byteorder) == link.index:
                values = _attributes(one[8:])
                found.add((values.get(2) or values.get(1, b""), one[1]))
        return found

    def routes(self) -> set[tuple[tuple[bytes, int], bytes]]:
        """Return destination and gateway of each route of the main table; an empty one: none."""
        found = set()
        for one in self.send(_GETROUTE, bytes(12), _DUMP):
            values = _attributes(one[12:])
            table = int.from_bytes(values.get(15, one[4:5]), sys.byteorder)
            dst = values.get(1, bytes(4 if one[0] == 2 else 16))
            if table == _MAIN and one[7] == _UNICAST:
                found.add(((dst, one[1]), values.get(5, b"")))
        return found

    def route(self, link: Link, dst: tuple[bytes, int], gateway: bytes) -> None:
        """Add a route by a device; without a gateway its destination is on the link."""
        family = 2 if len(dst[0]) == 4 else 10
        scope = 0 if gateway or family == 10 else 253
        head = struct.pack("=BBBBBBBBI", family, dst[1], 0, 0, 254, 4, scope, 1, 0)
        body = attribute(1, dst[0]) if dst[1] else b""
        body += attribute(5, gateway) if gateway else b""
        self.send(_NEWROUTE, head + body + attribute(4, _u32(link.index)), _CREATE | _EXCL)


def _setns(descriptor: int) -> None:
    if hasattr(os, "setns"):
        os.setns(descriptor, _CLONE_NEWNET)
        return
    import ctypes

    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


# Open vSwitch in the VM (RFC 7047)


class Database:
    """A connection to OVSDB in the VM.

    :param method: ``unix:PATH``.
    :param end: time (``time.monotonic``) until which it has to answer.
    :raises CniError: nothing listens there.
    """

    def __init__(self, method: str, end: float) -> None:
        import socket

        self._end, self._rest = end, ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(10)
            self._socket.connect(method[len("unix:") :])
        except OSError as error:
            cause = f"Open vSwitch's database at {method} does not answer: {error.strerror}"
            raise CniError(IO, cause, "Start Open vSwitch, or correct the key db") from error

    def transact(self, *operations: dict[str, Any]) -> list[dict[str, Any]]:
        """Do operations, all or none, and return their results.

        :raises CniError: it does not answer, or refuses one.
        """
        request = {"method": "transact", "params": ["Open_vSwitch", *operations], "id": 1}
        try:
            self._socket.settimeout(max(self._end - time.monotonic(), 1))
            self._socket.sendall(json.dumps(request).encode())
            answer = self._answer()
        except (OSError, ValueError) as error:
            raise CniError(IO, f"Open vSwitch's database failed: {error}", "See its log") from error
        results = answer.get("result") or [{"error": str(answer.get("error"))}]
        for one in results:
            if one and one.get("error"):
                raise CniError(IO, f"Open vSwitch refuses a change: {one['error']}", "See its log")
        return [one or {} for one in results]

    def _answer(self) -> dict[str, Any]:
        text, decoder = b"", json.JSONDecoder()
        while len(text) < MAX_DATABASE:
            part = self._socket.recv(1 << 20)
            if not part:
                raise ConnectionResetError("it was closed")
            text += part
            try:
                found, end = decoder.raw_decode(text.decode())
            except ValueError:
                continue
            if found.get("method") == "echo":
                text = text.decode()[end:].encode()
                continue
            return dict(found)
        raise ValueError("its answer is too large")

    def ports(self, column: str, function: str, value: object) -> list[dict[str, Any]]:
        """Return the ports for which a condition holds, with name, _uuid, tag, external_ids."""
        columns = ["_uuid", "name", "tag", "external_ids"]
        return list(self.transact(_select("Port", columns, [column, function, value]))[0]["rows"])

    def add(self, bridge: str, name: str, vid: int, ids: dict[str, str]) -> None:
        """Add an access port, and wait until Open vSwitch uses it.

        :raises CniError: there is no such bridge, or Open vSwitch cannot use the device.
        """
        keys = ["map", sorted([key, value] for key, value in ids.items())]
        port = {"name": name, "interfaces": ["named-uuid", "i"], "tag": vid, "external_ids": keys}
        port["vlan_mode"] = "access"
        cut = self.transact(
            {"op": "insert", "table": "Interface", "row": {"name": name}, "uuid-name": "i"},
            {"op": "insert", "table": "Port", "row": port, "uuid-name": "p"},
            _mutate("Bridge", ["ports", "insert", ["named-uuid", "p"]], ["name", "==", bridge]),
            *_next(),
        )
        self._wait(cut)
        select = _select("Interface", ["ofport", "error"], ["name", "==", name])
        row = self.transact(select)[0]["rows"]
        if not row or type(row[0]["ofport"]) is not int or row[0]["ofport"] < 1:
            cause = row[0]["error"] if row and isinstance(row[0]["error"], str) else "no reason"
            raise CniError(IO, f"Open vSwitch cannot use the port {name}: {cause}", "See its log")

    def remove(self, rows: list[dict[str, Any]]) -> None:
        """Remove ports from their bridges."""
        changes = [
            _mutate("Bridge", ["ports", "delete", one], ["ports", "includes", one])
            for one in (row["_uuid"] for row in rows)
        ]
        if changes:
            self._wait(self.transact(*changes, *_next()))

    def ports_of(self, bridge: str) -> set[str] | None:
        """Return the UUIDs of a bridge's ports; None if there is no such bridge."""
        rows = self.transact(_select("Bridge", ["ports"], ["name", "==", bridge]))[0]["rows"]
        if not rows:
            return None
        kind, content = rows[0]["ports"]
        return {one for _uuid, one in content} if kind == "set" else {content}

    def _wait(self, results: list[dict[str, Any]]) -> None:
        """Wait until ovs-vswitchd has applied a transaction (ovs-vswitchd.conf.db(5), next_cfg)."""
        wanted = results[-1]["rows"][0]["next_cfg"]
        select = _select("Open_vSwitch", ["cur_cfg"])
        while self.transact(select)[0]["rows"][0]["cur_cfg"] < wanted:
            if time.monotonic() > self._end:
                raise CniError(LATER, "Open vSwitch in this VM is busy", "Check ovs-vswitchd")
            time.sleep(0.01)


def _next() -> list[dict[str, Any]]:
    table = "Open_vSwitch"
    return [_mutate(table, ["next_cfg", "+=", 1]), _select(table, ["next_cfg"])]


def _select(table: str, columns: list[str], *where: list[Any]) -> dict[str, Any]:
    return {"op": "select", "table": table, "where": list(where), "columns": columns}


def _mutate(table: str, mutation: list[Any], *where: list[Any]) -> dict[str, Any]:
    return {"op": "mutate", "table": table, "where": list(where), "mutations": [mutation]}


def outer_name(container: str, ifname: str) -> str:
    """Return the name of the VM's end of a container's veth: the same for the same key."""
    import hashlib

    return "dfc" + hashlib.sha256(f"{container}/{ifname}".encode()).hexdigest()[:12]


def short_lived(call: Call) -> str:
    """Return a device's first name. The kernel refuses one that this VM's own devices have."""
    return "dfv" + outer_name(call.container, call.ifname)[3:]


# Devices


def open_netns(path: str) -> int:
    """Return a descriptor of a namespace; -1 if the path names none."""
    try:
        # Otherwise the open of a FIFO waits for a writer.
        found = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return -1
    # All namespaces are files of one file system (namespaces(7)).
    if os.fstat(found).st_dev == os.stat("/proc/self/ns/net").st_dev:
        return found
    os.close(found)
    return -1


def find_parent(here: Netlink, call: Call, one: Attachment) -> Link | None:
    """Return the VM's interface; None if it is not needed and cannot be told.

    :raises CniError: it is needed and cannot be told.
    """
    if call.parent:
        link = here.link(call.parent)
        if link is None:
            raise _wrong("parent", f"a device of this VM: there is no {call.parent[:15]}")
        return link
    same = [link for link in here.links() if link.mac == one.parent_mac and one.parent_mac]
    real = [link for link in same if link.kind not in _DERIVED]
    if len(real) == 1:
        return real[0]
    if call.link == "ovs":
        return None
    raise _wrong("parent", f"given: {len(real)} devices have the port's MAC {one.parent_mac}")


def make_device(call: Call, here: Netlink, there: Netlink, netns: int, one: Attachment) -> None:
    """Make the container's device, with its addresses and routes.

    :raises VidTakenError: this VM has another device with the VLAN id.
    :raises CniError: the configuration does not fit this VM.
    :raises OSError: the kernel refuses it.
    """
    parent = find_parent(here, call, one)
    mtu = call.mtu or one.mtu
    if call.mtu > one.mtu:
        raise _wrong("mtu", f"at most {one.mtu}, the MTU of the network")
    if parent is not None and parent.mtu < mtu:
        cause = f"{parent.name} has an MTU of {parent.mtu} bytes, and the network has {mtu}"
        remedy = f"Set the MTU of {parent.name} to {mtu} or more, or set the key mtu"
        raise CniError(MTU, cause, remedy)
    if parent is None or call.link == "ovs":
        _make_port(call, here, netns, one, mtu)
    else:
        name = short_lived(call)
        try:
            here.make(vlan(name, one.mac, mtu, netns=netns, parent=parent.index, vid=one.vid))
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                cause = "this kernel has no VLAN devices"
                raise CniError(IO, cause, "Load 8021q, or use link: ovs") from error
            if error.errno != errno.EEXIST:
                raise
            raise VidTakenError from error
        made = there.link(name)
        if made is not None:
            there.send(_SETLINK, device(made.index) + attribute(3, call.ifname.encode() + b"\0"))
    link = there.link(call.ifname)
    if link is None:
        raise CniError(IO, f"{call.ifname} vanished while it was made")
    if call.bare:
        return
    for address, _gateway in one.ips:
        there.address(link, *_prefix(address))
    there.up(link)
    for dst, gateway in routes_of(call, one):
        try:
            there.route(link, _prefix(dst), _packed(gateway) if gateway else b"")
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise
            cause = f"the container has a route to {dst} by another device"
            remedy = "Set defaultRoute or metadataRoute to false for all networks of it but one"
            raise CniError(CONFIGURATION, cause, remedy) from error


def routes_of(call: Call, one: Attachment) -> list[tuple[str, str]]:
    """Return the routes of a container: destination and gateway, which is empty on the link."""
    found = [pair for pair in one.routes if call.default_route or _prefix(pair[0])[1]]
    if call.metadata_route:
        found = [(METADATA, ""), *(pair for pair in found if pair[0] != METADATA)]
    return found


def _make_port(call: Call, here: Netlink, netns: int, one: Attachment, mtu: int) -> None:
    database = Database(call.database, call.api.end)
    ports = database.ports_of(call.bridge)
    if ports is None:
        raise _wrong("bridge", f"a bridge of this VM: there is no {call.bridge[:64]}")
    outer = outer_name(call.container, call.ifname)
    stale = []
    for row in database.ports("tag", "==", one.vid):
        if row["_uuid"][1] not in ports:
            continue
        own = "dfmeta-cni" in dict(row["external_ids"][1])
        if row["name"] != outer and not (own and here.link(row["name"]) is None):
            raise VidTakenError
        stale.append(row)
    # The rest of an ADD that was killed, or of a container from before a reboot.
    named = [row for row in database.ports("name", "==", outer) if row not in stale]
    database.remove([*stale, *named])
    left = here.link(outer)
    if left is not None:
        here.remove(left)
    here.make(veth(call.ifname, one.mac, mtu, netns=netns, outer=outer))
    made = here.link(outer)
    if made is None:
        raise CniError(IO, f"{outer} vanished while it was made")
    here.up(made, bare=True)
    ids = {"dfmeta-cni": f"{call.container}/{call.ifname}"}
    ids.update({"dfmeta-cni-network": call.network, "dfmeta-cni-owner": call.owner})
    database.add(call.bridge, outer, one.vid, ids)


def remove_port(call: Call, here: Netlink) -> None:
    """Remove the VM's side of a container's device with ``link: ovs``. Idempotent."""
    outer = outer_name(call.container, call.ifname)
    database = Database(call.database, call.api.end)
    database.remove(database.ports("name", "==", outer))
    link = here.link(outer)
    if link is not None:
        here.remove(link)


def remove_vlan(call: Call, netns: int, vid: int, mac: str) -> None:
    """Remove a container's VLAN device: the one with that MAC and VLAN id, also if it was renamed.

    :param vid: 0: the host does not know it; then MAC and name decide.
    """
    there = Netlink(-1 if call.bare else netns)
    for link in there.links():
        same = link.vid == vid if vid else link.name in (call.ifname, short_lived(call))
        if link.kind == "vlan" and link.mac == mac and same:
            there.remove(link)


# Verbs


def add(call: Call) -> dict[str, Any]:
    """Attach a container; return the result.

    :raises CniError: nothing has changed, unless the host did not answer: DEL follows then.
    """
    previous = call.previous()
    return result(call, attach(call), previous)


def attach(call: Call) -> Attachment:
    """Get an attachment of the host, and make its device.

    :raises CniError: as :func:`add`.
    """
    netns = open_netns(call.netns)
    if netns < 0:
        raise CniError(
            ENVIRONMENT, "CNI_NETNS names no namespace", "The runtime has to make it first"
        )
    here = Netlink()
    there = here if call.bare else Netlink(netns)
    if there.link(call.ifname) is not None:
        cause = f"the container has a device {call.ifname}"
        raise CniError(ENVIRONMENT, cause, "Give another CNI_IFNAME, or delete the device first")
    wanted, avoid = call.wanted(), []  # type: dict[str, Any], list[int]
    while True:
        document = call.api.ask("PUT", call.path, wanted)
        mac = _member(document, "mac")
        try:
            one = Attachment(document)
            make_device(call, here, there, netns, one)
        except VidTakenError:
            if len(avoid) < RETRIES_AVOID:
                avoid.append(one.vid)
                wanted["avoid"] = avoid
                continue
            _undo(call, here, there, mac)
            cause = f"this VM has devices with the VLAN ids of the host, the last one {one.vid}"
            remedy = "Delete VLAN devices and ports of containers that are gone"
            raise CniError(LATER, cause, remedy) from None
        except BaseException:
            _undo(call, here, there, mac)
            raise
        return one


def _undo(call: Call, here: Netlink, there: Netlink, mac: object) -> None:
    """Remove what a failed ADD has made, on both sides. DEL follows, so errors do not matter."""
    import contextlib

    call.api.end = time.monotonic() + UNDO_PATIENCE
    gone = ""
    with contextlib.suppress(CniError, OSError):
        if call.link == "ovs":
            remove_port(call, here)
        for link in map(there.link, (call.ifname, short_lived(call))):
            if link is not None and link.mac == mac:
                there.remove(link)
        gone = "?link=gone"
    with contextlib.suppress(CniError):
        call.api.call("DELETE", call.path + gone)


def result(call: Call, one: Attachment, previous: dict[str, Any]) -> dict[str, Any]:
    """Return the result of ADD in the version asked with, added to that of plugins before."""
    interfaces = list(previous.get("interfaces") or [])
    own = {"name": call.ifname, "mac": one.mac, "sandbox": call.netns}  # type: dict[str, Any]
    outer = {"name": outer_name(call.container, call.ifname)} if call.link == "ovs" else {}
    if call.version == "1.1.0":
        own["mtu"] = call.mtu or one.mtu
    number = len(interfaces)
    interfaces += [own, outer] if outer else [own]
    ips = list(previous.get("ips") or [])
    for address, gateway in one.ips:
        entry = {"address": address, "interface": number}  # type: dict[str, Any]
        if call.version < "1":
            entry["version"] = "6" if ":" in address else "4"
        if gateway:
            entry["gateway"] = gateway
        ips.append(entry)
    routes = list(previous.get("routes") or [])
    for dst, gateway in routes_of(call, one):
        routes.append({"dst": dst, "gw": gateway} if gateway else {"dst": dst})
    dns = previous.get("dns") or one.dns
    found = {"cniVersion": call.version, "interfaces": interfaces, "ips": ips, "routes": routes}
    return {**found, "dns": dns}


def delete(call: Call) -> None:
    """Detach a container. It succeeds when there is nothing.

    :raises CniError: the host is away, or a device cannot be removed.
    """
    gone = call.link == "ovs"
    if gone:
        remove_port(call, Netlink())
    elif call.netns:
        netns = open_netns(call.netns)
        document = call.api.ask("GET", call.path, missing=True)
        if netns >= 0:
            known = Attachment(document) if document is not None else None
            mac = known.mac if known else call.previous_mac()
            remove_vlan(call, netns, known.vid if known else 0, mac)
            gone = True
    # 404: this VM gets no attachments any more, so that it has none.
    call.api.ask("DELETE", call.path + ("?link=gone" if gone else ""), missing=True)


def check(call: Call) -> None:
    """Compare a container's device with the result of ADD and with the host.

    :raises CniError: they differ.
    """
    previous = call.previous()
    if not previous:
        raise CniError(CONFIGURATION, "prevResult is missing", "CHECK needs the result of ADD")
    document = call.api.ask("GET", call.path, missing=True)
    if document is None:
        raise CniError(UNKNOWN, "the host does not know this container", "Make it again")
    one = Attachment(document)
    if not one.active:
        raise CniError(LATER, "the host makes the port of this container", "Try again")
    netns = open_netns(call.netns)
    if netns < 0:
        raise CniError(ENVIRONMENT, "CNI_NETNS names no namespace", "Make the container again")
    there = Netlink(netns)
    _check_device(call, there, one)
    _check_interfaces(there, previous)
    _check_addresses(there, previous, one)
    _check_routes(there, previous)


def _check_device(call: Call, there: Netlink, one: Attachment) -> None:
    """Compare the device that ADD has made with the host's attachment."""
    link = there.link(call.ifname)
    if link is None:
        raise _different(f"there is no device {call.ifname}")
    if link.mac != one.mac or call.previous_mac() != one.mac:
        raise _different(f"the MAC of {call.ifname} is {link.mac}, and the host has {one.mac}")
    if call.link == "vlan" and link.vid != one.vid:
        raise _different(f"the VLAN id of {call.ifname} is {link.vid}, and the host has {one.vid}")
    if call.link == "ovs":
        outer = outer_name(call.container, call.ifname)
        rows = Database(call.database, call.api.end).ports("name", "==", outer)
        if [row["tag"] for row in rows] != [one.vid]:
            raise _different(f"the port in Open vSwitch is not in VLAN {one.vid}")
        near = Netlink().link(outer)
        if near is None or not near.up:
            raise _different(f"the VM's end {outer} of {call.ifname} is gone or down")


def _check_interfaces(there: Netlink, previous: dict[str, Any]) -> None:
    """Compare the devices of a result that are in the container, of all plugins."""
    for entry in previous.get("interfaces") or []:
        if not entry.get("sandbox"):
            continue
        name, mac = str(entry.get("name")), entry.get("mac")
        link = there.link(name) if _IFNAME.fullmatch(name) else None
        if link is None:
            raise _different(f"there is no device {name[:15]!r}")
        if not link.up:
            raise _different(f"{name} is down")
        if mac and str(mac).lower() != link.mac:
            raise _different(f"the MAC of {name} is {link.mac}, and was {str(mac)[:17]!r}")


def _check_addresses(there: Netlink, previous: dict[str, Any], one: Attachment) -> None:
    """Compare the addresses of a result, and those of the host's attachment."""
    devices = {link.name: there.addresses(link) for link in there.links()}
    interfaces = previous.get("interfaces") or []
    for entry in previous.get("ips") or []:
        number, address = entry.get("interface"), entry.get("address")
        own = interfaces[number : number + 1] if type(number) is int and number >= 0 else []
        if own and not own[0].get("sandbox"):
            continue
        on = [str(row.get("name")) for row in own] or list(devices)
        if not any(_prefix(address) in devices.get(name, ()) for name in on):
            raise _different(f"the container has not the address {str(address)[:50]!r}")
    given = [_prefix(entry.get("address")) for entry in previous.get("ips") or []]
    for address, _gateway in one.ips:
        if _prefix(address) not in given:
            raise _different(f"the result of ADD has not the host's address {address}")


def _check_routes(there: Netlink, previous: dict[str, Any]) -> None:
    """Compare the routes of a result. One without a gateway may have any."""
    routes = there.routes()
    for entry in previous.get("routes") or []:
        dst, gateway = _prefix(entry.get("dst")), entry.get("gw")
        found = [other for prefix, other in routes if prefix == dst]
        if not found or (gateway and _packed(str(gateway)) not in found):
            raise _different(f"the container has not the route to {str(entry.get('dst'))[:50]!r}")


def _different(cause: str) -> CniError:
    return CniError(DIFFERENT, cause, "Make the container again")


def collect(call: Call) -> None:
    """Remove what no container of this network list has. Without a list nothing is removed.

    :raises CniError: some could not be removed.
    """
    keys = [key for key in GC_KEYS if key in call.config]
    if not keys:
        return
    valid = set()
    for key in keys:
        listed = call.config[key] if isinstance(call.config[key], list) else [None]
        pairs = [(_member(one, "containerID"), _member(one, "ifname")) for one in listed]
        if not all(isinstance(text, str) for pair in pairs for text in pair):
            raise _wrong(key, "a list of objects with containerID and ifname")
        valid.update(pairs)
    failed = None  # type: CniError | OSError | None
    if call.link == "ovs":
        try:
            _collect_ports(call, {f"{container}/{ifname}" for container, ifname in valid})
        except (CniError, OSError) as error:
            failed = error
    kept = [{"container": one, "ifname": ifname} for one, ifname in sorted(valid, key=str)]
    body = {"network": call.network, "owner": call.owner, "valid": kept}
    call.api.ask("POST", "/gc", body)
    if failed is not None:
        raise failed


def _collect_ports(call: Call, valid: set[str]) -> None:
    """Remove ports that no container has, unless their device is there: an ADD may be under way."""
    database, here = Database(call.database, call.api.end), Netlink()
    ids = [["dfmeta-cni-network", call.network], ["dfmeta-cni-owner", call.owner]]
    rows = database.ports("external_ids", "includes", ["map", ids])
    gone = [row for row in rows if dict(row["external_ids"][1]).get("dfmeta-cni") not in valid]
    database.remove([row for row in gone if here.link(row["name"]) is None])


def status_of(call: Call) -> None:
    """Return if containers can be attached.

    :raises CniError: with code 50 if they cannot, 51 if VLAN ids or addresses run short.
    """
    try:
        document = call.api.ask("GET", "/status")
    except CniError as error:
        raise CniError(UNAVAILABLE, error.msg, error.details) from error
    networks = _member(document, "networks")
    names = [_member(one, "name") for one in networks] if isinstance(networks, list) else []
    free = _member(document, "free")
    if type(free) is not int:
        raise CniError(UNAVAILABLE, "the host's answer is not a status", "Update dfmeta")
    if _member(document, "ready") is not True:
        raise CniError(UNAVAILABLE, "the host is not ready", "`dfmeta doctor` on the host says why")
    if call.network not in names:
        raise CniError(UNAVAILABLE, f"the host has no network {call.network}", "Correct network")
    if free <= 0:
        raise CniError(SHORT, "no attachment is free", "Delete containers, or raise the quota")


def from_options(options: object, name: str) -> dict[str, Any]:
    """Return the network configuration that a runtime has as options, whose values are text."""
    config = {"name": name}  # type: dict[str, Any]
    for key, value in options.items() if isinstance(options, dict) else ():
        typed = key in ("mtu", "timeout", "defaultRoute", "metadataRoute")
        config[key] = _document(str(value).encode()) if typed else value
    return config


# Docker's remote driver (libnetwork, docs/remote.md)


class Docker:
    """Answers dockerd, which moves devices into containers, and sets addresses and routes.

    Trust: dockerd is root of this VM. Its values are checked as those of a runtime are.

    :param folder: keeps what dockerd sends once: options of networks, and ids of endpoints.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def answer(self, verb: str, body: object) -> dict[str, Any]:
        """Return the answer to a call.

        :raises CniError: it failed.
        """
        if verb == "Plugin.Activate":
            return {"Implements": ["NetworkDriver"]}
        calls = {"CreateEndpoint": self._create, "Join": self._join, "DeleteEndpoint": self._delete}
        name = verb.partition(".")[2]
        if name in calls:
            call = self._call(body)
            try:
                return calls[name](call, body)
            finally:
                call.api.close()
        if name == "CreateNetwork":
            self._keep(body)
            self._clear(body)
        if name == "DeleteNetwork" and os.path.exists(self._file(body)):
            self._clear(body)
            os.unlink(self._file(body))
        # Addresses are given in each VM, and a network is that of other VMs too (as macvlan's).
        scopes = {"Scope": "local", "ConnectivityScope": "global"}
        return scopes if name == "GetCapabilities" else {}

    def _file(self, body: object) -> str:
        network = _member(body, "NetworkID")
        if not isinstance(network, str) or not _CONTAINER.fullmatch(network):
            raise CniError(ENVIRONMENT, "NetworkID has not its form", "dockerd has to send it")
        return os.path.join(self.folder, network)

    def _keep(self, body: object) -> None:
        options = _member(_member(body, "Options"), "com.docker.network.generic")
        config = from_options(options, "docker")
        Call("STATUS", config, {})
        os.makedirs(self.folder, exist_ok=True)
        with open(self._file(body) + ".new", "w", encoding="utf-8") as file:
            json.dump(config, file)
        os.replace(self._file(body) + ".new", self._file(body))

    def _clear(self, body: object) -> None:
        """Delete the endpoints of a network that has none for dockerd: a kill makes it forget."""
        for name in os.listdir(self.folder):
            network, colon, endpoint = name.partition(":")
            if colon and network == _member(body, "NetworkID"):
                gone = {"NetworkID": network, "EndpointID": endpoint}
                self.answer("NetworkDriver.DeleteEndpoint", gone)

    def _call(self, body: object) -> Call:
        try:
            with open(self._file(body), "rb") as file:
                config = read_config(file.read())
        except FileNotFoundError:
            raise CniError(UNKNOWN, "the network is unknown", "Make it again") from None
        asked, endpoint = _member(body, "Interface"), str(_member(body, "EndpointID"))
        mac, address = _member(asked, "MacAddress"), _member(asked, "Address")
        config["runtimeConfig"] = {"mac": mac, "ips": [address] if address else []}
        environ = {"CNI_CONTAINERID": endpoint, "CNI_NETNS": "/proc/self/ns/net"}
        environ["CNI_IFNAME"] = outer_name(endpoint, "docker").replace("dfc", "dfd")
        call = Call("ADD", config, environ)
        call.bare = True
        return call

    def _create(self, call: Call, body: object) -> dict[str, Any]:
        open(f"{self._file(body)}:{call.container}", "ab").close()
        one, asked = attach(call), _member(body, "Interface")
        given = {"Address": one.ips[0][0], "MacAddress": one.mac}
        return {"Interface": {name: given[name] for name in given if not _member(asked, name)}}

    def _join(self, call: Call, _body: object) -> dict[str, Any]:
        routes = routes_of(call, Attachment(call.api.ask("GET", call.path)))
        gateways = [gateway for dst, gateway in routes if not _prefix(dst)[1]]
        far = [pair for pair in routes if _prefix(pair[0])[1]]
        static = [{"Destination": dst, "RouteType": int(not gw), "NextHop": gw} for dst, gw in far]
        return {
            "InterfaceName": {"SrcName": call.ifname, "DstPrefix": "eth"},
            "Gateway": gateways[0] if gateways else "",
            "StaticRoutes": static,
            "DisableGatewayService": True,
        }

    def _delete(self, call: Call, body: object) -> dict[str, Any]:
        delete(call)
        if os.path.exists(f"{self._file(body)}:{call.container}"):
            os.unlink(f"{self._file(body)}:{call.container}")
        return {}


def listen(path: str, folder: str) -> socketserver.BaseServer:
    """Return a server for dockerd at a unix socket that root alone may use."""
    import http.server
    import socketserver

    docker = Docker(folder)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "0").encode()
            raw = self.rfile.read(min(int(length), MAX_INPUT)) if _NUMBER.fullmatch(length) else b""
            try:
                answer = docker.answer(self.path[1:], _document(raw))
            except (CniError, OSError) as error:
                answer = {"Err": f"{error}. {getattr(error, 'details', '')}"}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_arguments: Any) -> None:
            pass

    # A call leaves its descriptors to the end of its process.
    class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
        max_children, request_queue_size = 100, 128

    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.exists(path):
        os.unlink(path)
    before = os.umask(0o177)
    try:
        return Server(path, Handler)
    finally:
        os.umask(before)


# netavark's plugins (netavark, plugin-API.md)

OPTIONS = (
    *("network", "link", "parent", "bridge", "db", "mtu", "timeout", "endpoint", "owner"),
    *("defaultRoute", "metadataRoute"),
)
"""Options of a network: the keys of a network configuration of CNI."""
CHOSEN_BY_HOST = {
    "subnets": "the host gives addresses: leave --subnet, --gateway and --ip-range out",
    "routes": "the host gives routes: leave --route out",
    "network_interface": "the interface is an option: write -o parent=DEVICE",
    "internal": "the default route is an option: write -o defaultRoute=false",
    "ipv6_enabled": "the host gives addresses: leave --ipv6 out",
}
"""Members of a network that podman cannot set → the error."""


def netavark(words: list[str], raw: bytes) -> dict[str, Any] | None:
    """Carry out a sub-command; return the document to print.

    Trust: podman is root of this VM. Its values are checked as those of a runtime are.

    :param words: the sub-command, and the path of the container's namespace.
    :raises CniError: it failed.
    """
    if words == ["info"]:
        return {"version": RELEASE, "api_version": NETAVARK}
    verb = {"setup": "ADD", "teardown": "DEL"}.get(words[0], "")
    if len(words) != (2 if verb else 1) or not (verb or words == ["create"]):
        remedy = "Use info, create, setup PATH or teardown PATH, as podman does"
        raise CniError(ENVIRONMENT, "the arguments are not those of a sub-command", remedy)
    document = read_config(raw)
    if not verb:
        return _created(document)
    options, name = _member(document, "network_options"), _member(document, "container_name")
    config = from_options(_member(_member(document, "network"), "options"), "podman")
    ips, mac = _member(options, "static_ips") or [], _member(options, "static_mac")
    config["runtimeConfig"] = {"mac": mac, "ips": ips}
    environ = {"CNI_NETNS": words[1], "CNI_ARGS": f"K8S_POD_NAME={name}" if name else ""}
    environ["CNI_CONTAINERID"] = str(_member(document, "container_id") or "")
    environ["CNI_IFNAME"] = str(_member(options, "interface_name") or "")
    call = Call(verb, config, environ)
    try:
        if verb == "ADD":
            return _set_up(call)
        delete(call)
        return None
    finally:
        call.api.close()


def _created(network: dict[str, Any]) -> dict[str, Any]:
    """Return a network as podman has to store it."""
    remedy = "Write podman network create -d DRIVER -o network=NETWORK NAME"
    for member, cause in CHOSEN_BY_HOST.items():
        if network.get(member):
            raise CniError(CONFIGURATION, cause, remedy)
    if (_member(network.get("ipam_options"), "driver") or "none") != "none":
        raise CniError(CONFIGURATION, "the host gives addresses: use --ipam-driver none", remedy)
    config = from_options(network.get("options"), "podman")
    for key in config:
        if key not in (*OPTIONS, "name"):
            raise CniError(CONFIGURATION, f"{key} is not an option", f"Use {', '.join(OPTIONS)}")
    Call("STATUS", config, {})
    return {**network, "dns_enabled": False, "ipam_options": {"driver": "none"}}


def _set_up(call: Call) -> dict[str, Any]:
    """Attach a container; return its devices, addresses and name servers."""
    one = attach(call)
    subnets = [{"ipnet": address, "gateway": gateway or None} for address, gateway in one.ips]
    lists = [one.dns.get(name) for name in ("nameservers", "search")]
    servers, search = ([*map(str, found)] if isinstance(found, list) else [] for found in lists)
    return {
        "interfaces": {call.ifname: {"mac_address": one.mac, "subnets": subnets}},
        "dns_server_ips": [server for server in servers if _packed(server)],
        "dns_search_domains": search,
    }


# The program


def read_config(raw: bytes) -> dict[str, Any]:
    """Parse the network configuration.

    :raises CniError: it is too large, or not a JSON object.
    """
    if len(raw) > MAX_INPUT:
        raise CniError(DECODE, f"the network configuration has more than {MAX_INPUT} bytes")
    try:
        config = json.loads(raw.decode(), parse_int=lambda digits: int(digits[:20]))
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise CniError(DECODE, "the network configuration is not a JSON object", "Correct it")
    return config


def run(verb: str, raw: bytes, environ: dict[str, str]) -> dict[str, Any] | None:
    """Carry out a verb; return the result to print.

    :raises CniError: it failed.
    """
    if verb == "VERSION":
        config = read_config(raw) if raw.strip() else {}
        asked = config.get("cniVersion")
        version = asked if asked in VERSIONS else VERSIONS[-1]
        return {"cniVersion": version, "supportedVersions": [*VERSIONS]}
    verbs = {"ADD": add, "DEL": delete, "CHECK": check, "GC": collect, "STATUS": status_of}
    if verb not in verbs:
        cause = "CNI_COMMAND is not a verb" if verb else "CNI_COMMAND is missing"
        remedy = "A container runtime calls this program: see the documentation of dfmeta-cni"
        raise CniError(ENVIRONMENT, cause, remedy)
    config = read_config(raw)
    version = config.get("cniVersion")
    if version not in VERSIONS or version < SINCE.get(verb, ""):
        state = f"does not allow {verb}" if version in VERSIONS else "is unknown"
        remedy = f"Use {', '.join(one for one in VERSIONS if one >= SINCE.get(verb, ''))}"
        raise CniError(VERSION, f"cniVersion {state}", remedy)
    call = Call(verb, config, environ)
    try:
        return verbs[verb](call)
    finally:
        call.api.close()


def main() -> int:
    """Run the plugin; return 0, or 1 after an error on stdout."""
    if sys.argv[1:] == ["--docker"]:
        import signal

        # The first process of a container ignores signals without a handler (pid_namespaces(7)).
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        listen(DOCKER, STATE).serve_forever()
    words, verb, raw = sys.argv[1:], os.environ.get("CNI_COMMAND", ""), b""
    try:
        if (verb or words) and sys.stdin is not None and not sys.stdin.isatty():
            raw = sys.stdin.buffer.read(MAX_INPUT + 1)
        done = netavark(words, raw) if words else run(verb, raw, dict(os.environ))
    except CniError as error:
        failure = error
    except OSError as error:
        cause = f"the kernel refuses a change: {error.strerror or error}"
        failure = CniError(IO, cause, "Run as root")
    else:
        sys.stdout.write("" if done is None else json.dumps(done) + "\n")
        return 0
    asked = _member(_document(raw), "cniVersion")
    version = str(asked) if asked in VERSIONS else VERSIONS[-1]
    msg, details = _plain(failure.msg), _plain(failure.details)
    said = {"cniVersion": version, "code": failure.code, "msg": msg, "details": details}
    sys.stdout.write(json.dumps({"error": f"{msg}. {details}"} if words else said) + "\n")
    return 1


def _plain(text: str) -> str:
    """Return text for a terminal, because runtimes print messages as they are."""
    return "".join(one if one.isprintable() else "?" for one in text)


if __name__ == "__main__":
    sys.exit(main())
