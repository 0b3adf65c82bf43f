"""Guests: network namespaces behind ports of br-int, with any addresses that a test sets."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import ipaddress
import itertools
import json
import os
import socket
import struct
import subprocess
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO, Any, Literal

from tests.harness import netns, stand_in
from tests.harness.closing import Closing
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.ovsdb import OvsdbRefusalError
from tests.harness.poll import DEADLINE, wait_for
from tests.harness.program import Script, script

METADATA_IP = "169.254.169.254"
OPENSTACK6 = "[fe80::a9fe:a9fe%25eth0]"
"""Host of a URL: OpenStack's IPv6 address of the service, with the guest's device as its zone."""
EC2_6 = "[fd00:ec2::254]"
"""Host of a URL: Amazon EC2's IPv6 address of the service."""
PING = 4.0
"""Seconds for the answer to an ICMP echo request."""
GATEWAY_MAC = "fa:16:3e:ff:00:01"
"""MAC of the next hop, for the kinds of route that have one; no device needs this MAC."""

_ECHOES = itertools.count(1)
_DIFFERENT = 0x8000
"""Frames of a flood, which are sent again and again."""
_ROUTER = "02:00:00:00:00:01"
_SERVICE6 = "fe80::a9fe:a9fe"

Route = Literal["on-link", "on-link-host", "gateway", "host-route", "link-local", "none"]
"""A guest's route to 169.254.169.254:

``on-link``       169.254.0.0/16 is on its link: the guest sends ARP requests;
``on-link-host``  169.254.169.254/32 is on its link;
``gateway``       default route through .1 of its network, which has a MAC of its own;
``host-route``    169.254.169.254/32 via .2 of its network (a DHCP port, say);
``link-local``    on-link, from a source address of its own in 169.254.0.0/16;
``none``          no route.
"""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer. Without one, curl's ``status`` is 0, and ``error`` has the cause."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    seconds: float = 0.0
    port: int = 0
    error: str = ""
    exit_code: int = 0

    @property
    def text(self) -> str:
        """Return the body as text."""
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        """Return the body, parsed as JSON."""
        return json.loads(self.body)

    def header(self, name: str) -> str:
        """Return the first header of that name, or an empty string."""
        return next((v for k, v in self.headers if k.lower() == name.lower()), "")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One request of :meth:`Guest.http_many`; times in seconds, ``port`` is the source port."""

    status: int
    body: bytes
    error: str
    seconds: float
    connect: float
    port: int


@dataclass(frozen=True, kw_only=True)
class Ids:
    """``external_ids`` of the guest's interface; empty values are omitted."""

    iface_id: str = ""
    vm_uuid: str = ""
    project_id: str = ""
    attached_mac: bool = True
    extra: dict[str, str] = field(default_factory=dict)


class Guest(Closing):
    """A guest; a context manager that removes its port and its namespace."""

    device = "eth0"

    def __init__(
        self,
        host: OpenvSwitch,
        name: str = "guest",
        *,
        address: str = "10.0.0.5/24",
        address6: Iterable[str] = (),
        mac: str = "",
        route: Route = "on-link",
        ids: Ids | None = None,
        bridge: str = BRIDGE,
        plug: bool = True,
    ) -> None:
        """Make a guest; several guests may have the same address and MAC.

        Its link-local IPv6 address, from its MAC, is usable at once: the guest does no duplicate
        address detection.

        :param address: IPv4 with its prefix length; for ``link-local`` one of 169.254.0.0/16.
        :param address6: IPv6 addresses with their prefix lengths; see :meth:`add_address6`.
        :param mac: empty: derived from the guest's number.
        :param ids: None: attached-mac, and an iface-id and a vm-uuid derived from the number.
        :param plug: false: the port is added to the bridge only by :meth:`plug`.
        """
        number = host.next_number()
        self.host = host
        self.name = name
        self.bridge = bridge
        self.port = f"tap{number}"
        self.mac = mac or f"fa:16:3e:00:{number >> 8:02x}:{number & 255:02x}"
        self.interface = ipaddress.IPv4Interface(address)
        self.route: Route = route
        self.ids = ids or Ids(
            iface_id=uuid_of(f"{host.namespace.name} port {number}"),
            vm_uuid=uuid_of(f"{host.namespace.name} instance {number}"),
        )
        self.namespace = netns.Namespace(name)
        host.on_close(self.close)
        try:
            self.namespace.setting("net/ipv6/conf/default/accept_dad", "0")
            lines = [f"addr add {self.interface} dev {self.device}", *self._route_commands()]
            lines += [
                line for interface6 in address6 for line in self._address6_commands(interface6)
            ]
            ends = (host.namespace, self.port, self.namespace, self.device)
            netns.veth(*ends, mac=self.mac, then=lines)
            if plug:
                self.plug()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<Guest {self.name} {self.port} {self.mac} {self.interface}>"

    def close(self) -> None:
        """Remove the port and the namespace. Idempotent; works while the switch is down."""
        if self.host.running("ovsdb-server"):
            with contextlib.suppress(OvsdbRefusalError):  # the port is gone
                self.host.ovsdb.del_port(self.port, wait=False)
        self.namespace.close()

    # Identity and port

    @property
    def ip(self) -> str:
        """Return the guest's (first) address."""
        return str(self.interface.ip)

    @property
    def instance_id(self) -> str:
        """Return the guest's vm-uuid."""
        return self.ids.vm_uuid

    @property
    def ofport(self) -> int:
        """Return the OpenFlow number of the guest's port."""
        return self.host.ofport(self.port)

    def plug(self, *, ofport_request: int = 0, vm_uuid: str | None = None) -> None:
        """Add the port to the bridge, with the external_ids in the same transaction.

        :param vm_uuid: a new vm-uuid, if the port now belongs to another instance.
        """
        if vm_uuid is not None:
            self.ids = Ids(**{**vars(self.ids), "vm_uuid": vm_uuid})
        wait = self.host.running("ovs-vswitchd")
        self.host.ovsdb.add_port(
            self.bridge,
            self.port,
            external_ids=self.external_ids(),
            ofport_request=ofport_request,
            wait=wait,
        )

    def del_port(self) -> None:
        """Remove the port from the bridge; the guest keeps its device and its addresses."""
        self.host.ovsdb.del_port(self.port, wait=self.host.running("ovs-vswitchd"))

    def external_ids(self) -> dict[str, str]:
        """Return the external_ids that os-vif or libvirt would write into OVSDB."""
        known = {
            "iface-id": self.ids.iface_id,
            "attached-mac": self.mac if self.ids.attached_mac else "",
            "vm-uuid": self.ids.vm_uuid,
            "project-id": self.ids.project_id or stand_in.project_on(self.host),
        }
        return {key: value for key, value in known.items() if value} | self.ids.extra

    def set_external_ids(self, **values: str) -> None:
        """Change some external_ids (``vm_uuid`` is vm-uuid); an empty value removes the key."""
        command: list[str] = []
        for name, value in values.items():
            key = name.replace("_", "-")
            if value:
                command += ["--", "set", "Interface", self.port, f'external_ids:{key}="{value}"']
            else:
                command += ["--", "remove", "Interface", self.port, "external_ids", key]
        self.host.vsctl(*command[1:])

    # Addresses

    def set_mac(self, mac: str) -> None:
        """Change the guest's MAC, and restore its routes and neighbours."""
        self.mac = mac
        self.namespace.ip(
            f"link set {self.device} down",
            f"link set {self.device} address {mac}",
            f"link set {self.device} up",
            *self._route_commands(),
        )

    def set_address(self, address: str) -> None:
        """Change the guest's address."""
        self.interface = ipaddress.IPv4Interface(address)
        self.namespace.ip(
            f"addr flush dev {self.device}",
            f"addr add {self.interface} dev {self.device}",
            *self._route_commands(),
        )

    def add_address(self, *addresses: str) -> None:
        """Add addresses; ``source=`` of :meth:`curl` selects one."""
        self.namespace.ip(*(f"addr add {address} dev {self.device}" for address in addresses))

    @property
    def link_local(self) -> str:
        """Return the link-local IPv6 address that Linux derives from the MAC (RFC 4291, A)."""
        packed = bytes.fromhex(self.mac.replace(":", ""))
        host = bytes((packed[0] ^ 2, *packed[1:3], 0xFF, 0xFE, *packed[3:]))
        return str(ipaddress.IPv6Address(bytes.fromhex("fe80000000000000") + host))

    def add_address6(self, *addresses: str) -> None:
        """Add IPv6 addresses; one that is not link-local comes with a route to EC2's service."""
        self.namespace.ip(
            *(line for address in addresses for line in self._address6_commands(address))
        )

    def drop_ipv4(self) -> None:
        """Remove the guest's IPv4 address, and with it all routes of IPv4."""
        self.namespace.ip(f"addr del {self.interface} dev {self.device}")

    def add_route(self, *routes: str) -> None:
        """Run ``ip route add …`` for each route."""
        self.namespace.ip(*(f"route add {route}" for route in routes))

    def forget_neighbours(self) -> None:
        """Drop the neighbours that ARP has learnt, and pending ARP requests.

        After an ARP request without an answer, the kernel repeats it only once a second, so that
        the next connection would be slow.
        """
        self.namespace.run(["ip", "neigh", "flush", "dev", self.device], check=False)

    # Traffic

    def send_frames(self, *frames: bytes) -> None:
        """Send frames unchanged."""
        with self.namespace.open_socket(socket.AF_PACKET, socket.SOCK_RAW) as link:
            link.bind((self.device, 0))
            for frame in frames:
                link.send(frame)

    def ping(self, address: str, *, timeout: float = PING) -> bool:
        """Return whether an ICMP echo request is answered.

        ping(8) need not be installed.
        """
        with self.namespace.inside():
            link = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        with link:
            return is_answered(link, address, timeout)

    def curl(
        self,
        path: str = "/",
        *options: str,
        host: str = METADATA_IP,
        source: str = "",
        timeout: float = DEADLINE,
        data: bytes | None = None,
        headers: Iterable[tuple[str, str]] = (),
    ) -> Reply:
        """Send a request with curl; errors of the network or the server raise no exception.

        :param options: more options of curl, such as ``"-X", "PUT"`` or ``"--local-port", "4000"``.
        :param source: the source address or device.
        """
        command = ["curl", "-q", "-sS", "-i", "--noproxy", "*", "--path-as-is"]
        command += ["--max-time", f"{timeout:g}"]
        command += ["-w", "%{stderr}\n%{time_total} %{local_port}"]
        if source:
            command += ["--interface", source]
        if data is not None:
            command += ["--data-binary", "@-"]
        for name, value in headers:
            command += ["-H", f"{name}: {value}"]
        command += [*options, f"http://{host}{path}"]
        with ExitStack() as stack:
            if self.namespace.resolv_conf:
                command = self.namespace.command(command)
            else:
                # A start by ip(8) takes a quarter of the CPU time of both.
                stack.enter_context(self.namespace.inside())
            done = subprocess.run(
                command, input=data or b"", capture_output=True, timeout=timeout + 30, check=False
            )
        return _reply(done)

    def http_many(self, count: int, concurrency: int = 1, **asking: Any) -> list[Sample]:
        """Send ``count`` requests, each on a connection of its own, ``concurrency`` at a time.

        :param asking: as :meth:`start_many` has it.
        """
        return self.start_many(count, concurrency, **asking).samples()

    def start_many(
        self,
        count: int,
        concurrency: int = 1,
        *,
        path: str = "/openstack/latest/meta_data.json",
        host: str = METADATA_IP,
        source: str = "",
        timeout: float = DEADLINE,
        interval: float = 0,
        headers: Iterable[tuple[str, str]] = (),
    ) -> Batch:
        """Start :meth:`http_many` in the background, so that several guests send at once.

        :param interval: seconds from the start of a request to that of the next, at least, of each
            of those that run at a time. 0: as fast as they are answered, which takes all the CPU.
        """
        name, _, port = host.partition(":") if "]" not in host else host[1:].partition("]")
        port = port.removeprefix(":")
        arguments = ["--host", name.replace("%25", "%"), "--port", port or "80", "--path", path]
        arguments += ["--timeout", str(timeout)]
        arguments += ["--count", str(count), "--concurrency", str(concurrency)]
        if source:
            arguments += ["--source", source]
        if interval:
            arguments += ["--interval", str(interval)]
        for key, value in headers:
            arguments += ["--header", key, value]
        # The maximum timeout of the operating system's poll() is some weeks.
        limit = min((timeout + interval) * (count // concurrency + 1) + 30, 1_000_000)
        return Batch(self.namespace, arguments, limit)

    def flood(self, kind: Literal["own", "forged", "forged6"], *, rate: int, seconds: int) -> Flood:
        """Send SYNs to the metadata service, and ignore the answers.

        :param kind: ``own``: from one unused address, with another source port in each;
            ``forged``: with another MAC and address in each; ``forged6``: over IPv6.
        :param rate: SYNs a second.
        :param seconds: its length, unless it is ended before.
        """
        frames = _syns(kind, self.mac, str(self.interface.network[-2]))
        with open(os.memfd_create("frames"), "w+b") as stdin:
            stdin.write(b"".join(frames))
            stdin.seek(0)
            how = (self.device, str(rate), str(seconds), str(len(frames[0])))
            return Flood(self.namespace, "flood", *how, stdin=stdin)

    def _address6_commands(self, address: str) -> list[str]:
        commands = [f"addr add {address} dev {self.device} nodad"]
        if not ipaddress.IPv6Interface(address).is_link_local:
            commands.append(f"route replace {EC2_6.strip('[]')}/128 dev {self.device}")
        return commands

    def _route_commands(self) -> list[str]:
        device, network = self.device, self.interface.network
        gateway, other = network[1], network[2]
        neighbour = f"neigh replace {{}} lladdr {GATEWAY_MAC} dev {device} nud permanent"
        match self.route:
            case "on-link":
                return [f"route replace 169.254.0.0/16 dev {device}"]
            case "on-link-host":
                return [f"route replace {METADATA_IP}/32 dev {device} scope link"]
            case "gateway":
                return [
                    neighbour.format(gateway),
                    f"route replace default via {gateway} dev {device}",
                ]
            case "host-route":
                return [
                    neighbour.format(other),
                    f"route replace {METADATA_IP}/32 via {other} dev {device}",
                ]
            case "link-local":
                source = f"scope link src {self.ip}"
                return [f"route replace {METADATA_IP}/32 dev {device} {source}"]
            case "none":
                return []


class Batch:
    """Requests that run in the background."""

    def __init__(self, namespace: netns.Namespace, arguments: list[str], limit: float) -> None:
        """Start them.

        :param limit: the most seconds that they take.
        """
        self._limit = limit
        with ExitStack() as files:
            results, errors = (
                files.enter_context(open(os.memfd_create(name), "w+b")) for name in ("out", "err")
            )
            self._process = script(
                "client", *arguments, namespace=namespace, stdout=results, stderr=errors
            )
            self._results, self._errors = results, errors
            self._files = files.pop_all()

    @property
    def running(self) -> bool:
        """Return whether requests are still running."""
        return self._process.poll() is None

    @property
    def answered(self) -> int:
        """Return how many requests have been answered with status 200 so far."""
        return os.fstat(self._errors.fileno()).st_size

    @property
    def _has_begun(self) -> bool:
        return os.fstat(self._results.fileno()).st_size > 0

    def stop(self) -> None:
        """Kill the requests; the results are lost."""
        self._process.kill()
        self._process.wait()
        self._files.close()

    def finish(self) -> list[Sample]:
        """Start no further requests; return the results, including those of running requests."""
        # Before it has begun, a signal would end it without results.
        wait_for(lambda: self._has_begun or not self.running, "the client to begin")
        self._process.terminate()
        return self.samples()

    def samples(self) -> list[Sample]:
        """Wait for the end; return the results in the order of their arrival."""
        try:
            status = self._process.wait(self._limit)
        except BaseException:
            self.stop()
            raise
        results, errors = (_all_of(file) for file in (self._results, self._errors))
        self._files.close()
        if status:
            message = errors.decode(errors="replace").lstrip(".")
            raise netns.CommandError(["client.py"], status, "", message)
        return [
            Sample(**{**result, "body": base64.b64decode(result["body"])})
            for result in json.loads(results)
        ]


class Flood(Script):
    """A running flood, which has begun with its first frame."""

    def end(self) -> int:
        """End the flood, and return the number of sent SYNs: at least those of a second."""
        self._process.terminate()
        return int(self.last_words())


def _syns(kind: str, mac: str, source: str) -> list[bytes]:
    """Return different SYNs to the metadata service, all of one length."""
    # Only a flood needs os-ken, which this imports.
    from tests.core.flows.frames import ethernet, ipv4, ipv6, tcp

    frames = []
    for number in range(_DIFFERENT):
        high, low = number >> 8, number & 255
        dst, src, sport = METADATA_IP, f"10.77.{high}.{low}", 4242
        sender = f"fa:17:00:00:{high:02x}:{low:02x}"
        match kind:
            case "own":
                src, sport, sender = source, 1024 + number, mac
            case "forged6":
                dst, src = _SERVICE6, f"fe80::77:0:{number:x}"
        pack, ether_type = (ipv6, 0x86DD) if kind == "forged6" else (ipv4, 0x0800)
        packet = pack(tcp(dst=dst, src=src, sport=sport), dst=dst, src=src)
        frames.append(ethernet(packet, dst=_ROUTER, src=sender, kind=ether_type))
    return frames


def is_answered(link: socket.socket, address: str, timeout: float) -> bool:
    """Send an ICMP echo request (RFC 792), and wait for its reply."""
    identity, number = os.getpid() & 0xFFFF, next(_ECHOES) & 0xFFFF
    total = 0x0800 + identity + number
    checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    wanted = (0, identity, number, address)
    deadline = time.monotonic() + timeout
    with contextlib.suppress(OSError):
        link.sendto(struct.pack("!BBHHH", 8, 0, checksum, identity, number), (address, 0))
        while (left := deadline - time.monotonic()) > 0:
            link.settimeout(left)
            packet, (sender, _) = link.recvfrom(2048)
            reply = packet[(packet[0] & 15) * 4 :]
            kind, _, _, *ids = struct.unpack("!BBHHH", reply[:8])
            if (kind, *ids, sender) == wanted:
                return True
    return False


def uuid_of(text: str) -> str:
    """Return a UUID that depends only on ``text``."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}"


def _all_of(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _reply(done: subprocess.CompletedProcess[bytes]) -> Reply:
    complaint, _, figures = done.stderr.decode(errors="replace").rstrip().rpartition("\n")
    seconds, _, port = figures.partition(" ")
    head, _, body = done.stdout.partition(b"\r\n\r\n")
    while head.startswith(b"HTTP/1.1 100"):
        head, _, body = body.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    headers = [line.partition(":") for line in lines[1:]]
    return Reply(
        status=int(words[1]) if len(words) > 1 else 0,
        headers=tuple((name, value.strip()) for name, _, value in headers),
        body=body,
        seconds=float(seconds or 0),
        port=int(port or 0),
        error=complaint.strip() if done.returncode else "",
        exit_code=done.returncode,
    )
