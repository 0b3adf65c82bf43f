"""Reads a bridge's flows and ports over a short connection, for commands; changes nothing.

It works whether or not the daemon runs. The management socket's backlog is small, so a connection
that is refused or closed is tried again.
"""

import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from os_ken.ofproto import ofproto_parser
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as ofp_parser

from dfmeta.errors import SwitchError
from dfmeta.flows import openflow, port_down
from dfmeta.flows.pipeline import BR_META, Layout, Stage, is_ours
from dfmeta.flows.wire import DumpedFlow, Wire
from dfmeta.runtime import clock
from dfmeta.runtime.throttle import FIRST_PAUSE

TRIES = 5
_HEADER = struct.Struct("!BBHI")
_NAMED_PORTS = {
    ofp.OFPP_IN_PORT: "IN_PORT",
    ofp.OFPP_NORMAL: "NORMAL",
    ofp.OFPP_FLOOD: "FLOOD",
    ofp.OFPP_ALL: "ALL",
    ofp.OFPP_CONTROLLER: "CONTROLLER",
    ofp.OFPP_LOCAL: "LOCAL",
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BridgeFlows:
    """A bridge's flows at one moment."""

    dumped: tuple[openflow.Seen, ...]
    """Flows of dfmeta."""
    foreign: tuple[openflow.Foreign, ...] | None
    """Flows of other programs in the tables that dfmeta shares with them: the classification table,
    and all tables of the second bridge; None when os-ken cannot read them."""


class NoSocketError(SwitchError):
    """No program accepts connections on the management socket."""

    name = "no-switch-socket"
    sentence = "no program accepts connections on {what}: {cause}"
    advice = (
        "Check that ovs-vswitchd runs and has the bridge of [df_metadata] integration_bridge, and "
        "that this user may use its sockets"
    )


class SilentError(SwitchError):
    """The socket accepts a connection, and no message follows."""

    name = "switch-silent"
    sentence = "{what} does not answer within {seconds} s"
    advice = "Check whether ovs-vswitchd hangs: ovs-appctl coverage/show, and its log"


class NoOpenFlow13Error(SwitchError):
    """The bridge answers, but does not speak OpenFlow 1.3."""

    name = "no-openflow13"
    sentence = "{what} does not speak OpenFlow 1.3"
    advice = "Enable it: ovs-vsctl add bridge BRIDGE protocols OpenFlow13"


def read_flows(path: Path, layout: Layout) -> BridgeFlows:
    """Read our flows, and those of other programs; see :class:`BridgeFlows`.

    :param path: the bridge's management socket.
    :raises NoOpenFlow13Error: when the bridge speaks other versions only.
    :raises NoSocketError: when no program accepts connections there.
    :raises SwitchError: when the bridge does not answer, or not in time.
    """
    return _again(lambda: _read(path, layout), path)


def read_bits(path: Path, layout: Layout) -> dict[int, port_down.PortBits]:
    """Read the bits of each of the bridge's ports, by OpenFlow number.

    :param path: the bridge's management socket.
    :raises SwitchError: the same errors as :func:`read_flows`.
    """
    return _again(lambda: _read_bits(path, layout), path)


def check_socket(path: Path) -> None:
    """Check that a program accepts connections on *path*.

    :raises NoSocketError: when none does.
    """

    def connect() -> None:
        with _connected(path):
            pass

    _again(connect, path)


def _again(attempt: Callable[[], T], path: Path) -> T:
    for tries_left in reversed(range(TRIES)):
        try:
            return attempt()
        except TimeoutError as error:
            raise SilentError(what=str(path), seconds=clock.ANSWER_TIMEOUT) from error
        except OSError as error:
            if isinstance(error, BrokenPipeError | ConnectionResetError) and not tries_left:
                raise SwitchError(what=str(path), cause="it closes each connection") from error
            if isinstance(error, FileNotFoundError | PermissionError) or not tries_left:
                raise NoSocketError(what=str(path), cause=error.strerror or error) from error
            clock.sleep(FIRST_PAUSE)
    raise AssertionError("the last try returns or raises")


def _connected(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(clock.ANSWER_TIMEOUT)
    try:
        sock.connect(str(path))
    except OSError:
        sock.close()
        raise
    return sock


def _read(path: Path, layout: Layout) -> BridgeFlows:
    wire = Wire(layout)
    with _connected(path) as sock:
        _greet(sock, wire)
        entries = _ask(sock, wire, wire.dump_all())
        # On the second bridge, Neutron's metadata_path has flows in the same tables.
        shared = ofp.OFPTT_ALL if layout.pipeline is BR_META else layout.number(Stage.CLASSIFY)
        rest = _ask(sock, wire, _dump_table(wire, shared))
        # os-ken takes ten times as long for an entry, and a host may have thousands of ours.
        theirs = (
            None if rest is None else [entry.stats() for entry in rest if wire.found(entry) is None]
        )
        if theirs is not None and None in theirs:
            theirs = None
    if entries is None:
        raise SwitchError(what="the dump of flows", cause="os-ken cannot read it")
    dumped = tuple(_seen(flow) for flow in map(wire.found, entries) if flow is not None)
    if theirs is None:
        return BridgeFlows(dumped, None)
    return BridgeFlows(dumped, tuple(_foreign(flow) for flow in theirs if not is_ours(flow.cookie)))


def _seen(dumped: DumpedFlow) -> openflow.Seen:
    entry = dumped.entry
    place = entry.table, entry.priority, entry.cookie
    return openflow.Seen(dumped.current, *place, entry.packets, entry.bytes)


def _read_bits(path: Path, layout: Layout) -> dict[int, port_down.PortBits]:
    wire = Wire(layout)
    with _connected(path) as sock:
        _greet(sock, wire)
        ports = _ask(sock, wire, wire.list_ports())
    if ports is None:
        raise SwitchError(what="the list of ports", cause="os-ken cannot read it")
    return {port.port_no: port_down.PortBits.of(port) for port in ports}


def _greet(sock: socket.socket, wire: Wire) -> None:
    """Exchange hello messages (OpenFlow 1.3.5, 6.3.1); we offer 1.3 only."""
    versions = ofp_parser.OFPHelloElemVersionBitmap(versions=[ofp.OFP_VERSION])
    _send(sock, ofp_parser.OFPHello(wire.datapath, elements=[versions]))
    version, kind, _data = _receive(sock)
    if kind == ofp.OFPT_ERROR or version < ofp.OFP_VERSION:
        raise NoOpenFlow13Error(what="the bridge")


def _dump_table(wire: Wire, table: int) -> Any:
    return ofp_parser.OFPFlowStatsRequest(
        wire.datapath, table_id=table, out_port=ofp.OFPP_ANY, out_group=ofp.OFPG_ANY
    )


def _ask(sock: socket.socket, wire: Wire, request: Any) -> list[Any] | None:
    """Request a list; None when a part of the answer cannot be read."""
    # A switch that refused our hello has closed the connection; its error can still be read.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _send(sock, request)
    entries: list[Any] = []
    readable = True
    while True:
        _version, kind, data = _receive(sock)
        if kind == ofp.OFPT_ERROR:
            raise _refusal(data)
        if kind != ofp.OFPT_MULTIPART_REPLY:
            continue
        message = ofproto_parser.msg(wire.datapath, ofp.OFP_VERSION, kind, len(data), 1, data)
        readable = readable and message is not None
        entries.extend(message.body if message is not None else ())
        (flags,) = struct.unpack_from("!H", data, _HEADER.size + 2)
        if not flags & ofp.OFPMPF_REPLY_MORE:
            return entries if readable else None


def _refusal(data: bytes) -> SwitchError:
    """Read an error message; one about the hello arrives late, after the next request."""
    kind, code = struct.unpack_from("!HH", data, _HEADER.size)
    if kind == ofp.OFPET_HELLO_FAILED:
        return NoOpenFlow13Error(what="the bridge")
    return SwitchError(what="a request for a list", cause=f"error {kind}, {code}")


def _send(sock: socket.socket, message: Any) -> None:
    message.set_xid(1)
    message.serialize()
    sock.sendall(message.buf)


def _receive(sock: socket.socket) -> tuple[int, int, bytes]:
    """Read one message; return its version, its type, and all of its bytes."""
    header = _exactly(sock, _HEADER.size)
    version, kind, length, _xid = _HEADER.unpack(header)
    return version, kind, header + _exactly(sock, max(length - _HEADER.size, 0))


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the switch closed the connection")
        data += part
    return data


def _foreign(stats: Any) -> openflow.Foreign:
    texts, hands_on, table = [], False, int(stats.table_id)
    for instruction in stats.instructions:
        if isinstance(instruction, ofp_parser.OFPInstructionGotoTable):
            texts.append(f"goto_table:{instruction.table_id}")
        else:
            actions = getattr(instruction, "actions", [instruction])
            texts.extend(map(_text, actions))
            hands_on = hands_on or any(_resubmits_to(action, table) for action in actions)
    return openflow.Foreign(
        stats.cookie,
        stats.priority,
        dict(stats.match.items()),
        ",".join(texts) or "drop",
        table,
        hands_on,
    )


def _resubmits_to(action: Any, table: int) -> bool:
    if isinstance(action, ofp_parser.NXActionResubmit):
        return True
    to = getattr(action, "table_id", None)
    return isinstance(action, ofp_parser.NXActionResubmitTable) and to in (table, ofp.OFPTT_ALL)


def _text(action: Any) -> str:
    match action:
        case ofp_parser.OFPActionOutput(port=port):
            return _NAMED_PORTS.get(port, f"output:{port}")
        case ofp_parser.NXActionResubmitTable(table_id=table):
            return f"resubmit(,{table})"
        case ofp_parser.OFPActionSetField(key=key, value=value):
            return f"set_field:{value}->{key}"
        case _:
            name = type(action).__name__
            return (
                name.removeprefix("OFPInstruction")
                .removeprefix("OFPAction")
                .removeprefix("NXAction")
            )
