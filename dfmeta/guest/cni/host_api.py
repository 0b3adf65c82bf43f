"""A runtime's call, and its requests to the host's API."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
import struct
import time

from dfmeta.guest.cni import CniError, Code, Document, member, parse_json, wrong_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ENDPOINT = "169.254.169.254:80"
DATABASE = "unix:/var/run/openvswitch/db.sock"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
MAX_REPLY = 1 << 20
"""Bytes that are read at most of a reply's head, and of its body."""
MAX_LABELS, MAX_LABEL, MAX_LABEL_BYTES = 16, 256, 1024
PATIENCE = 20
"""Seconds for the requests of a call, unless ``timeout`` says otherwise."""
STATUS_PATIENCE = 4
"""Seconds for STATUS at most: runtimes ask it every 5 seconds."""
LISTS = ("interfaces", "ips", "routes")
"""Members of a result of ADD."""

CONTAINER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
IFNAME = re.compile(r"[!-$&-.0-9;-~]{1,15}", re.ASCII)
NUMBER = re.compile(rb"[0-9]{1,7}")
_NETWORK = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}", re.ASCII)
_MAC = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}", re.ASCII)
_TOKEN = re.compile(rb"[!-~]{1,4096}")
_STATUS = re.compile(rb"HTTP/1\.[01] ([2-5][0-9][0-9])(?: [ -~]{0,200})?")
_ENDPOINT = re.compile(
    r"\[([0-9A-Fa-f:.]{2,45}(?:%[!-~]{1,15})?)\]:([0-9]{1,5})|([0-9.]{7,15}):([0-9]{1,5})"
)
_SET = "The runtime has to set it"
_AWAY = (
    "Check that dfmeta-agent runs on the host, that this VM reaches the address, "
    "and that the plugin runs as root in the VM's own network namespace"
)


class CniCall:
    """A call of a runtime: its environment and its configuration, checked."""

    def __init__(self, verb: str, config: Document, environ: dict[str, str]) -> None:
        self.config, self.environ = config, environ
        self.bare = False
        """Whether the runtime moves the device, and sets addresses and routes itself."""
        self.container = self.ifname = self.netns = ""
        if verb in ("ADD", "DEL", "CHECK"):
            self.container = self._variable("CNI_CONTAINERID", CONTAINER)
            self.ifname = self._variable("CNI_IFNAME", IFNAME)
            self.netns = environ.get("CNI_NETNS", "")
            if self.ifname in (".", ".."):
                raise CniError(Code.ENVIRONMENT, "CNI_IFNAME is not the name of a device")
            if not self.netns and verb != "DEL":
                raise CniError(Code.ENVIRONMENT, "CNI_NETNS is missing", _SET)
        self.network = self._text("network", required=True)
        if not _NETWORK.fullmatch(self.network):
            form = "the name of a network of the host: small letters, digits, _.-"
            raise wrong_key("network", form)
        self.link = self._text("link", "vlan")
        if self.link not in ("vlan", "ovs"):
            raise wrong_key("link", "vlan or ovs")
        self.bridge = self._text("bridge", required=self.link == "ovs")
        self.database = self._text("db", DATABASE)
        if not self.database.startswith("unix:/"):
            raise wrong_key("db", "unix:PATH, the socket of ovsdb-server in this VM")
        self.parent = self._text("parent")
        self.owner = self._text("owner", self._text("name"))
        if len(self.owner) > 128 or not self.owner.isprintable():
            raise wrong_key("owner", "printable text of at most 128 characters")
        self.default_route = self._switch("defaultRoute")
        self.metadata_route = self._switch("metadataRoute")
        self.mtu = config.get("mtu", 0)
        if type(self.mtu) is not int or not (self.mtu == 0 or 68 <= self.mtu <= 65535):
            raise wrong_key("mtu", "a number of bytes from 68 to 65535")
        timeout = config.get("timeout", PATIENCE)
        if type(timeout) not in (int, float) or not 1 <= timeout <= 300:
            raise wrong_key("timeout", "seconds from 1 to 300")
        if verb == "STATUS":
            timeout = min(timeout, STATUS_PATIENCE)
        self.api = HostApi(self._text("endpoint", ENDPOINT), time.monotonic() + timeout)
        quoted = re.sub(r"[^-._~0-9A-Za-z]", lambda match: f"%{ord(match[0]):02X}", self.ifname)
        self.path = f"/attachments/{self.container}/{quoted}"

    @property
    def version(self) -> str:
        """The version of the specification that the runtime uses."""
        return str(self.config["cniVersion"])

    def wanted(self) -> Document:
        """Return the body of the request for an attachment."""
        body: Document = {"network": self.network, "owner": self.owner}
        with contextlib.suppress(OSError, ValueError), open(BOOT_ID, encoding="ascii") as file:
            body["boot_id"] = file.read(100).strip()
        runtime = self.config.get("runtimeConfig") or {}
        if not isinstance(runtime, dict):
            raise wrong_key("runtimeConfig", "an object")
        mac, ips = runtime.get("mac"), runtime.get("ips") or []
        if mac:
            body["mac"] = str(mac).lower()
            if not _is_mac(body["mac"]):
                raise wrong_key("runtimeConfig.mac", "a MAC address with colons")
        if ips:
            single = isinstance(ips, list) and len(ips) == 1
            body["ip"] = str(ips[0]).partition("/")[0] if single else ""
            if len(packed(body["ip"])) != 4:
                raise wrong_key("runtimeConfig.ips", "a list of one IPv4 address")
        labels = self._labels()
        if labels:
            body["labels"] = labels
        return body

    def _labels(self) -> dict[str, str]:
        """Return the variables of Kubernetes in ``CNI_ARGS``, as many as the host accepts."""
        pairs = [pair.partition("=") for pair in self.environ.get("CNI_ARGS", "").split(";")]
        texts = {
            name: text[:MAX_LABEL]
            for name, equals, text in pairs
            if equals and name.startswith("K8S_") and len(name) <= 63
        }
        labels: dict[str, str] = {}
        left = MAX_LABEL_BYTES
        printable = [name for name, text in texts.items() if (name + text).isprintable()]
        for name in printable[:MAX_LABELS]:
            size = len((name + texts[name]).encode())
            if size <= left:
                labels[name], left = texts[name], left - size
        return labels

    def previous(self) -> Document:
        """Return ``prevResult``; empty without one."""
        result = self.config.get("prevResult") or {}
        lists = [member(result, name) or [] for name in LISTS]
        if not isinstance(result, dict) or not all(
            isinstance(rows, list) and all(type(row) is dict for row in rows) for rows in lists
        ):
            raise wrong_key("prevResult", "the result of ADD")
        return result

    def previous_mac(self) -> str:
        """Return the MAC of the container's device in ``prevResult``; empty without one."""
        for interface in self.previous().get("interfaces") or []:
            if interface.get("name") == self.ifname and interface.get("sandbox"):
                return str(interface.get("mac", "")).lower()
        return ""

    def _variable(self, name: str, form: re.Pattern[str]) -> str:
        value = self.environ.get(name, "")
        if not form.fullmatch(value):
            state = "is not valid by the CNI specification" if value else "is missing"
            raise CniError(Code.ENVIRONMENT, f"{name} {state}", _SET)
        return value

    def _text(self, name: str, default: str = "", *, required: bool = False) -> str:
        value = self.config.get(name, default)
        if not isinstance(value, str) or (required and not value):
            raise wrong_key(name, "text" if value else "in the configuration: it is missing")
        return value

    def _switch(self, name: str) -> bool:
        value = self.config.get(name, True)
        if not isinstance(value, bool):
            raise wrong_key(name, "true or false")
        return value


def packed(address: object) -> bytes:
    """Return an address as bytes; empty if it is invalid."""
    text = str(address)
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)
    except (OSError, ValueError):
        return b""


def prefix_of(text: object) -> tuple[bytes, int]:
    """Return address and length of a prefix; an empty address if it is invalid."""
    address, _slash, length = text.partition("/") if isinstance(text, str) else ("", "", "")
    raw = packed(address)
    bits = length if length.isascii() and length.isdigit() and len(length) < 4 else "999"
    return (raw, int(bits)) if int(bits) <= 8 * len(raw) else (b"", 0)


class HostApi:
    """The host's API: a token and the requests of a call on one connection.

    :param endpoint: ``ADDRESS:PORT``; an IPv6 address has brackets, and its zone inside.
    :param end: time (``time.monotonic``) at which no more attempts are made.
    """

    def __init__(self, endpoint: str, end: float) -> None:
        match = _ENDPOINT.fullmatch(endpoint)
        host, port = (match[1] or match[3], match[2] or match[4]) if match else ("", "0")
        self.host: str = host.partition("%")[0]
        self.zone: str = host.partition("%")[2]
        self.port = int(port)
        if not 0 < self.port < 65536 or not packed(self.host):
            raise wrong_key("endpoint", f"ADDRESS:PORT, such as {ENDPOINT}")
        self.end = end
        self.token = b""
        self._socket: socket.socket | None = None
        self._rest = b""

    def ask(self, method: str, path: str, body: object = None, *, missing: bool = False) -> Any:
        """Send a request until it is answered; return the document, or None for *missing* and 404.

        A request may be sent twice: the API's are the same again. 503 and a rate that was exceeded
        are repeated.

        :raises CniError: the host refuses it, or sends no reply in time, or none that can be read.
        """
        pause, renewed = 0.1, False
        while True:
            wait = pause
            try:
                status, headers, raw = self._request(method, path, body)
            except OSError as error:
                self.close()
                cause = error.strerror or str(error) or "it does not answer"
                cause = f"the host's API at {self.host}:{self.port} is away: {cause}"
                failure = CniError(Code.LATER, cause, _AWAY)
                pause = min(2 * pause, 2)
            else:
                document = parse_json(raw)
                if status == 401 and not renewed:
                    renewed = True
                    self.close()
                    continue
                if status in (200, 201, 204):
                    return document
                if status == 404 and missing:
                    return None
                failure = _refusal(status, document)
                exceeded = status == 429 and member(document, "error") == "rate"
                if status != 503 and not exceeded:
                    raise failure
                after = headers.get(b"retry-after", b"")
                wait = max(int(after) if NUMBER.fullmatch(after) else pause, 0.1)
            if wait >= self.end - time.monotonic():
                raise failure
            time.sleep(wait)

    def close(self) -> None:
        """Close the connection; its token goes with it."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self.token, self._rest = None, b"", b""

    def _request(
        self, method: str, path: str, body: object
    ) -> tuple[int, dict[bytes, bytes], bytes]:
        if not self.token:
            ttl = b"X-dfmeta-token-ttl-seconds: 300\r\n"
            status, headers, raw = self._exchange("PUT", "/token", ttl, b"")
            if status != 200:
                return status, headers, raw
            if not _TOKEN.fullmatch(raw):
                raise CniError(Code.DECODE, "the host's token is not a token")
            self.token = raw
        data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        kind = b"Content-Type: application/json\r\n" if data else b""
        return self._exchange(method, path, b"X-dfmeta-token: %b\r\n%b" % (self.token, kind), data)

    def _exchange(
        self, method: str, path: str, lines: bytes, data: bytes
    ) -> tuple[int, dict[bytes, bytes], bytes]:
        peer = self._connected()
        name = f"[{self.host}]" if ":" in self.host else self.host
        head = f"{method} /dfmeta/v1{path} HTTP/1.1\r\nHost: {name}\r\n".encode()
        size = b"Content-Length: %d\r\n" % len(data) if method in ("PUT", "POST") else b""
        peer.settimeout(self._left())
        peer.sendall(head + lines + size + b"\r\n" + data)
        while b"\r\n\r\n" not in self._rest:
            if len(self._rest) > MAX_REPLY:
                cause = f"the head of the host's answer has more than {MAX_REPLY} bytes"
                raise CniError(Code.DECODE, cause)
            self._receive(peer)
        head, _end, self._rest = self._rest.partition(b"\r\n\r\n")
        first, *fields = head.split(b"\r\n")
        match = _STATUS.fullmatch(first)
        if not match:
            raise CniError(Code.DECODE, "the host's answer is not HTTP", "Check the key endpoint")
        status = int(match[1])
        pairs = [field.partition(b":") for field in fields]
        headers = {field.lower(): value.strip() for field, _colon, value in pairs}
        length = headers.get(b"content-length", b"0" if status in (204, 304) else b"")
        if not NUMBER.fullmatch(length) or int(length) > MAX_REPLY:
            raise CniError(Code.DECODE, f"the host's answer has no length up to {MAX_REPLY} bytes")
        while len(self._rest) < int(length):
            self._receive(peer)
        raw, self._rest = self._rest[: int(length)], self._rest[int(length) :]
        if headers.get(b"connection", b"").lower() == b"close":
            peer.close()
            self._socket, self._rest = None, b""
        return status, headers, raw

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
                raise CniError(Code.IO, cause, "Run the plugin as root") from error
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return
    raise OSError("no source port below 1024 is free")


_REFUSALS = {
    400: (Code.CONFIGURATION, "a wrong request", "Correct the configuration"),
    401: (Code.REFUSED, "a request without a valid token", "Update the plugin"),
    403: (Code.REFUSED, "a request that may come from a container", "Run the plugin as root"),
    404: (Code.REFUSED, "attachments for this VM", "Allow the VM on the host: [attachments] allow"),
    409: (Code.CONFLICT, "the attachment", "Delete the container first: it is on another network"),
    413: (Code.CONFIGURATION, "a request of this size", "Use shorter values"),
    422: (Code.CONFIGURATION, "this network", "Name one that the host has in the key network"),
    429: (Code.LATER, "more attachments or requests", "Try again, or raise [attachments] quota"),
    503: (Code.LATER, "requests at the moment", "Try again; `dfmeta doctor` on the host says more"),
    507: (Code.EXHAUSTED, "an attachment: VLAN ids or addresses are used up", "Enlarge the subnet"),
}
"""Status of a reply that refuses a request → the error's code, its cause and its remedy."""


def _refusal(status: int, document: object) -> CniError:
    message = member(document, "message")
    text = message if isinstance(message, str) and message.isprintable() else ""
    other = (Code.LATER, "the request", "See the log of dfmeta-agent on the host")
    code, cause, remedy = _REFUSALS.get(status, other)
    return CniError(code, f"the host refuses {cause} ({status})", f"{text[:400]} {remedy}".strip())


class HostReply:
    """An attachment in a reply of the host, checked."""

    def __init__(self, document: object) -> None:
        members: Document = document if isinstance(document, dict) else {}
        self.vid: Any = members.get("vid")
        self.mac: Any = members.get("mac")
        self.mtu: Any = members.get("mtu", 1500)
        self.parent_mac: Any = members.get("parent_mac") or ""
        self.active = members.get("state", "active") == "active"
        self.dns: Document = members.get("dns") or {}
        ips, routes = members.get("ips"), members.get("routes") or []
        if (
            type(self.vid) is not int
            or not 1 <= self.vid <= 4094
            or not _is_mac(self.mac)
            or not (self.parent_mac == "" or _is_mac(self.parent_mac))
            or type(self.mtu) is not int
            or not 68 <= self.mtu <= 65535
            or not isinstance(ips, list)
            or not ips
            or not isinstance(routes, list)
            or not isinstance(self.dns, dict)
        ):
            raise CniError(Code.DECODE, "the host's answer is not an attachment", "Update dfmeta")
        self.ips = [_pair(row, "address", "gateway") for row in ips]
        """Each address with the length of its prefix, and its gateway or an empty text."""
        defaults = [("::/0" if ":" in via else "0.0.0.0/0", via) for _ip, via in self.ips if via]
        pairs = [*defaults, *(_pair(row, "dst", "gw") for row in routes)]
        self.routes = [*dict.fromkeys(pairs)]
        """Destination and gateway of each route; an empty gateway: on the link."""


def _is_mac(value: object) -> bool:
    return isinstance(value, str) and _MAC.fullmatch(value) is not None


def _pair(row: object, name: str, gateway: str) -> tuple[str, str]:
    """Return a prefix and a gateway, which may be missing, of the host's reply."""
    dst, via = member(row, name), member(row, gateway) or ""
    if not prefix_of(dst)[0] or (via and not packed(via)):
        kind = "address" if name == "address" else "route"
        raise CniError(Code.DECODE, f"the host's answer has an invalid {kind}", "Update dfmeta")
    return dst, via


def check_status(call: CniCall) -> None:
    """Return if containers can be attached.

    :raises CniError: with code 50 if they cannot, 51 if VLAN ids or addresses run short.
    """
    try:
        document = call.api.ask("GET", "/status")
    except CniError as error:
        raise CniError(Code.UNAVAILABLE, error.msg, error.details) from error
    networks, free = member(document, "networks"), member(document, "free")
    names = [member(row, "name") for row in networks] if isinstance(networks, list) else []
    if type(free) is not int:
        raise CniError(Code.UNAVAILABLE, "the host's answer is not a status", "Update dfmeta")
    if member(document, "ready") is not True:
        remedy = "`dfmeta doctor` on the host says why"
        raise CniError(Code.UNAVAILABLE, "the host is not ready", remedy)
    if call.network not in names:
        cause = f"the host has no network {call.network}"
        raise CniError(Code.UNAVAILABLE, cause, "Correct network")
    if free <= 0:
        raise CniError(Code.SHORT, "no attachment is free", "Delete containers, or raise the quota")
