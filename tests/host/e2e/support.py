"""What the tests of this tier share: records, captures, connections to the millisecond."""

import contextlib
import http.client
import json
import os
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

from dfmeta.conf.agent import SERVICE6
from dfmeta.flows.integration_bridge import ServedEndpoint, Tap, fixed_flows, guest_flows
from dfmeta.model import TAP_MAC, Endpoint, GuestAddress
from tests.harness.agent import Agent
from tests.harness.closing import Closing
from tests.harness.guest import METADATA_IP, Guest, Ids, Sample, uuid_of
from tests.harness.netns import Namespace
from tests.harness.nova import SECRET, RecordingNova
from tests.harness.nova_tree import Instance
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import DEADLINE
from tests.harness.scheme import SIDE, Side

META_DATA = "/openstack/latest/meta_data.json"
PROJECT = "5f705ae0b9a94e0c8f0a1d9d5d3b3b1c"
TWIN_MAC = "fa:16:3e:00:aa:aa"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHdlYi4uLi4uLi4uLi4uLi4uLi4uLi4uLi4uLi4uLi4u key-1"
NOVA_OPTIONS = {
    "DEFAULT": {"metadata_proxy_shared_secret": SECRET},
    "df_metadata": {"backend": "nova"},
}
PROXY_PORT = SIDE.port
"""TCP port of the listeners."""
_TAP = Tap(
    ofport=1,
    mac=TAP_MAC,
    port=PROXY_PORT,
    ip=SIDE.ip,
    ip6=SIDE.ip6,
    guest_ip6=tuple(SERVICE6),
    keys=SIDE.keys,
)
_ADDRESS = GuestAddress("fa:16:3e:00:00:05", IPv4Address("10.0.0.5"))
FIXED_FLOWS = len(fixed_flows(_TAP))
PORT_FLOWS = len(guest_flows(ServedEndpoint(Endpoint(1)), _TAP))
ADDRESS_FLOWS = (
    len(guest_flows(ServedEndpoint(Endpoint(1), {SIDE.keys.slots(4)[0]: _ADDRESS}), _TAP))
    - PORT_FLOWS
)
"""Flows of br-int: of the host, of a port, of one of its addresses; with the options as they are
unless they are set."""
PROMPT = 0.9
"""Seconds: below the first retransmission of a SYN or a SYN-ACK (1 s)."""

SILENCE = 1.0
"""Seconds in which an answer would have come."""

_ETH_P_ALL = 0x0003
_SO_TIMESTAMPNS = 35
_SO_RCVBUFFORCE = 33
_SOL_PACKET = 263
_PACKET_OUTGOING = 4
_PACKET_AUXDATA = 8
_TP_STATUS_VLAN_VALID = 1 << 4
_FIN, _SYN, _RST, _ACK = 0x01, 0x02, 0x04, 0x10


def project_ids(name: str, **values: Any) -> Ids:
    """Ids with a project, as dfmeta needs them for Nova."""
    return Ids(
        iface_id=uuid_of(f"port {name}"),
        vm_uuid=uuid_of(f"instance {name}"),
        project_id=PROJECT,
        **values,
    )


def put(agent: Agent, guest: Guest, *options: str, hostname: str = "") -> str:
    """A record in the store; its host name."""
    hostname = hostname or f"{guest.name}.example.org"
    if options:
        agent.ctl("store", "put", guest.instance_id, "--hostname", hostname, *options)
    else:
        agent.put(guest.instance_id, hostname)
    return hostname


def put_nova(nova: RecordingNova, guest: Guest, **values: Any) -> Instance:
    """An instance at Nova."""
    return nova.put(
        Instance(
            instance_id=guest.instance_id,
            project_id=guest.ids.project_id,
            **{"hostname": guest.name, **values},
        )
    )


def uuid_in(body: bytes) -> str:
    """Whose meta_data.json that is."""
    return str(json.loads(body)["uuid"])


def asks_own(guest: Guest, *, source: str = "", host: str = METADATA_IP) -> None:
    """The guest asks once and gets its own document."""
    reply = guest.curl(META_DATA, source=source, host=host)
    assert reply.status == 200, reply
    assert uuid_in(reply.body) == guest.instance_id


def failures(samples: dict[Guest, list[Sample]]) -> Counter[str]:
    """What went wrong for guests that asked for their names, by kind.

    An answer that is another's counts as the worst.
    """
    kinds: Counter[str] = Counter()
    for guest, own_samples in samples.items():
        for sample in own_samples:
            if sample.status == 200 and sample.body.decode() != guest.name:
                kinds["ANOTHER'S"] += 1
            elif sample.status != 200:
                kinds[sample.error or str(sample.status)] += 1
    return kinds


def served(guest: Guest) -> bool:
    """Whether the guest gets an answer soon."""
    reply = guest.curl("/latest/meta-data/instance-id", timeout=SILENCE)
    return reply.status == 200


def is_unanswered(guest: Guest) -> bool:
    """Return whether the guest gets no answer while one would have come."""
    return guest.curl("/", timeout=SILENCE).status == 0


def status_of(pid: int) -> dict[str, str]:
    """What proc(5), status, has of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def resident(agent: Agent) -> int:
    """Memory of the daemon, in KiB."""
    return int(status_of(agent.pid)["VmRSS"].split()[0])


def descriptors(agent: Agent) -> int:
    """How many the daemon has open."""
    return len(os.listdir(f"/proc/{agent.pid}/fd"))


def holders(host: OpenvSwitch) -> list[int]:
    """Pids of the processes that keep a listener open while no daemon runs."""
    result = []
    for pid in host.namespace.processes():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if b"dfmeta.cmd.holder" in Path(f"/proc/{pid}/cmdline").read_bytes():
                result.append(pid)
    return result


def log_time(agent: Agent, text: str) -> float:
    """When the daemon last logged a line with that text, seconds of the clock."""
    lines = [line for line in agent.log().splitlines() if text in line]
    stamp = " ".join(lines[-1].split()[:2])
    return datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A TCP segment that was seen, once or repeatedly.

    :ivar times: of each copy, by the kernel's clock.
    """

    times: tuple[float, ...]
    source: str
    destination: str
    source_port: int
    destination_port: int
    sequence: int
    flags: int
    length: int
    source_mac: str

    @property
    def time(self) -> float:
        """Return the time of the first copy."""
        return self.times[0]

    @property
    def is_repeated(self) -> bool:
        """Return whether it was sent again."""
        return len(self.times) > 1

    @property
    def is_syn(self) -> bool:
        """Return whether it begins a connection, ECN or not."""
        return self.flags & (_SYN | _ACK) == _SYN

    @property
    def is_syn_ack(self) -> bool:
        """Return whether it is the answer to one that does."""
        return self.flags & (_SYN | _ACK) == _SYN | _ACK

    @property
    def is_reset(self) -> bool:
        """Return whether it is an RST."""
        return bool(self.flags & _RST)

    @property
    def identity(self) -> tuple[object, ...]:
        """Return what a repetition has in common with the first copy.

        A SYN without an answer is repeated without ECN (RFC 3168, 6.1.1.1).
        """
        connection = self.source, self.source_port, self.destination, self.destination_port
        return (*connection, self.sequence, self.length, self.flags & (_SYN | _ACK | _RST | _FIN))


def packets(segments: list[Segment]) -> int:
    """Return how many packets these segments were, with those that were repeated."""
    return sum(len(segment.times) for segment in segments)


class Capture(Closing):
    """Every frame on a device from now on; a context manager.

    :param arriving: leave out what this end itself sends.
    """

    def __init__(self, namespace: Namespace, device: str, *, arriving: bool = False) -> None:
        self._arriving = arriving
        self._socket = namespace.open_socket(socket.AF_PACKET, socket.SOCK_RAW)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 23)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        self._socket.bind((device, _ETH_P_ALL))
        self._socket.setblocking(False)
        self._frames: list[tuple[float, bytes]] = []

    def close(self) -> None:
        """Stop to capture."""
        self._socket.close()

    def frames(self) -> list[tuple[float, bytes]]:
        """All so far, with the kernel's time (of the clock)."""
        with contextlib.suppress(BlockingIOError):
            while True:
                data, extras, _, sender = self._socket.recvmsg(65536, 256)
                if self._arriving and sender[2] == _PACKET_OUTGOING:
                    continue
                extra = {kind: value for _level, kind, value in extras}
                seconds, nanoseconds = struct.unpack("ll", extra[_SO_TIMESTAMPNS][:16])
                when = seconds + nanoseconds / 1e9
                self._frames.append((when, _with_tag(data, extra[_PACKET_AUXDATA])))
        return list(self._frames)

    def segments(self) -> list[Segment]:
        """Return the TCP segments, each once, but for those of the daemon's own probe."""
        result: dict[tuple[object, ...], Segment] = {}
        for when, data in self.frames():
            segment = _segment(when, data)
            if segment is None or SIDE.probes & {segment.source, segment.destination}:
                continue
            if first := result.get(segment.identity):
                segment = replace(first, times=(*first.times, when))
            result[segment.identity] = segment
        return list(result.values())

    def segments_of(self, *ports: int) -> list[Segment]:
        """Return those of connections with one of these ports, at either end."""
        return [
            segment
            for segment in self.segments()
            if segment.source_port in ports or segment.destination_port in ports
        ]

    def arp_requests(self) -> list[bytes]:
        """ARP requests for the service."""
        service = IPv4Address(METADATA_IP).packed
        frames = [data for _when, data in self.frames()]
        return [
            frame for frame in frames if frame[12:14] == b"\x08\x06" and frame[38:42] == service
        ]

    def syns(self) -> list[Segment]:
        """SYNs towards the service, or towards the proxy."""
        service = {METADATA_IP, SIDE.ip}
        return [
            segment
            for segment in self.segments()
            if segment.is_syn and segment.destination in service
        ]


def source_of(frame: bytes, side: Side = SIDE) -> str:
    """The source of a frame on the listeners' device, if it is TCP to the proxy; else empty.

    No ARP nor neighbour discovery is: the host asks for nobody.
    """
    if frame[12:14] == b"\x86\xdd":
        source, destination = IPv6Address(frame[22:38]), IPv6Address(frame[38:54])
        protocol, port, listener = frame[20], frame[56:58], IPv6Address(side.ip6)
        is_plain = True
    else:
        source, destination = IPv4Address(frame[26:30]), IPv4Address(frame[30:34])
        protocol, port, listener = frame[23], frame[36:38], IPv4Address(side.ip)
        is_plain = frame[12:15] == b"\x08\0\x45"
    to_proxy = (destination, protocol, port) == (
        listener,
        socket.IPPROTO_TCP,
        side.port.to_bytes(2, "big"),
    )
    return str(source) if is_plain and to_proxy else ""


def _with_tag(data: bytes, auxiliary: bytes) -> bytes:
    """Put the outermost tag back, which the kernel hands over beside the frame (packet(7))."""
    status, _length, _kept, _mac, _net, tci, tpid = struct.unpack_from("IIIHHHH", auxiliary)
    if not status & _TP_STATUS_VLAN_VALID:
        return data
    return data[:12] + struct.pack("!HH", tpid or 0x8100, tci) + data[12:]


def _segment(when: float, data: bytes) -> Segment | None:
    if data[12:14] != b"\x08\x00" or data[23] != socket.IPPROTO_TCP:
        return None
    start = 14 + (data[14] & 15) * 4
    source_port, destination_port, sequence = struct.unpack_from("!HHI", data, start)
    header = (data[start + 12] >> 4) * 4
    return Segment(
        times=(when,),
        source=socket.inet_ntoa(data[26:30]),
        destination=socket.inet_ntoa(data[30:34]),
        source_port=source_port,
        destination_port=destination_port,
        sequence=sequence,
        flags=data[start + 13],
        length=14 + int.from_bytes(data[16:18], "big") - start - header,
        source_mac=data[6:12].hex(":"),
    )


class Attempt(Closing):
    """A connection that a guest starts now; ``source`` is one of its addresses.

    A context manager that gives it up.
    """

    def __init__(self, guest: Guest, source: str = "", *, port: int = 80) -> None:
        self._socket = guest.namespace.open_socket()
        self._socket.setblocking(False)
        self._socket.bind((source, 0))
        self.started = time.time()
        self._start = time.monotonic()
        self.error = self._socket.connect_ex((METADATA_IP, port))
        self.source, self.port = self._socket.getsockname()

    @property
    def under_way(self) -> bool:
        """Whether it is neither open nor refused yet."""
        poller = select.poll()
        poller.register(self._socket, select.POLLOUT)
        return not poller.poll(0)

    def connected_after(self, timeout: float = DEADLINE) -> float | None:
        """Seconds from the start until it was open; None: not within ``timeout``, or refused."""
        poller = select.poll()
        poller.register(self._socket, select.POLLOUT)
        left = self._start + timeout - time.monotonic()
        if not poller.poll(max(left, 0) * 1000):
            return None
        if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return None
        return time.monotonic() - self._start

    def close(self) -> None:
        """Give it up."""
        self._socket.close()


@contextlib.contextmanager
def open_connection(guest: Guest) -> Iterator[socket.socket]:
    """A connection of the guest's to the service, for requests written by hand."""
    with guest.namespace.connect(METADATA_IP, 80) as connection:
        yield connection


def read_answer(connection: socket.socket) -> bytes:
    """The body of the next answer on a connection that stays open.

    Head and body may arrive one after the other.
    """
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer.read()


def read_all(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            data += piece
    return data
