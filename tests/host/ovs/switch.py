"""A real bridge as the tests of this tier talk to it: raw OpenFlow and ``ofproto/trace``."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.flows.wire import Wire
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import DEADLINE

GUESTS = (1, 2, 3)
ELSEWHERE = 8
"""Port that the bridge's own flow sends everything to that nobody else has taken."""
TAP_PORT = 9
LOCAL = 0xFFFFFFFE
_HEADER = struct.Struct("!BBHI")


def add_ports(host: OpenvSwitch) -> dict[int, int]:
    """Give the bridge its ports; return datapath port number → ofport."""
    arguments: list[str] = []
    for number in (*GUESTS, ELSEWHERE, TAP_PORT):
        arguments += ["--", "add-port", BRIDGE, f"p{number}", "--", "set", "Interface"]
        arguments += [f"p{number}", "type=internal", f"ofport_request={number}"]
    host.vsctl(*arguments[1:])
    shown = re.findall(rf"^\s+({BRIDGE}|p\d) (\d+)/(\d+):", host.appctl("dpif/show"), re.MULTILINE)
    numbers = {int(datapath): int(ofport) for _name, ofport, datapath in shown}
    return {datapath: LOCAL if n == 0xFFFE else n for datapath, n in numbers.items()}


class Connection:
    """An OpenFlow connection to the management socket; messages are exchanged with a barrier."""

    def __init__(self, host: OpenvSwitch, bridge: str = BRIDGE) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(DEADLINE)
        self._socket.connect(str(host.mgmt_socket(bridge)))
        self._socket.sendall(_HEADER.pack(ofp.OFP_VERSION, ofp.OFPT_HELLO, 8, 0))
        assert self._receive()[1] == ofp.OFPT_HELLO

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def exchange(self, data: bytes, last: int) -> list[bytes]:
        """Send *data*, whose last message is the barrier with the xid *last*; return the answers.

        What the switch sends of its own accord is left out.
        """
        self._socket.sendall(data)
        answers = []
        while True:
            message = self._receive()
            if message[1] not in (ofp.OFPT_FLOW_REMOVED, ofp.OFPT_PACKET_IN, ofp.OFPT_PORT_STATUS):
                answers.append(message)
            if message[1] == ofp.OFPT_BARRIER_REPLY and message[4:8] == last.to_bytes(4, "big"):
                return answers

    def _receive(self) -> bytes:
        head = self._exactly(_HEADER.size)
        return head + self._exactly(_HEADER.unpack(head)[2] - _HEADER.size)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the switch has closed the connection")
            data += part
        return data


def encode(wire: Wire, messages: Iterable[Any], first: int = 1) -> tuple[bytes, int]:
    """Number *messages* from *first* up, with a barrier behind; give their bytes and its xid."""
    data, number = b"", first
    for number, message in enumerate((*messages, wire.barrier()), first):
        message.set_xid(number)
        message.serialize()
        data += bytes(message.buf)
    return data, number


@dataclass(frozen=True)
class Traced:
    """What ``ofproto/trace`` says of a frame."""

    text: str
    ports: tuple[int, ...]
    controllers: tuple[int, ...]

    @property
    def before(self) -> str:
        """The frame's fields as it came in."""
        return self._line("Flow")

    @property
    def after(self) -> str:
        """Its fields when the last action was done."""
        line = self._line("Final flow")
        return self.before if line == "unchanged" else line

    def _line(self, name: str) -> str:
        match = re.search(rf"^{name}: (.*)$", self.text, re.MULTILINE)
        assert match is not None, self.text
        return match[1]


class Tracer:
    """Asks ovs-vswitchd's control socket for many traces at once: 20,000 a second."""

    def __init__(self, host: OpenvSwitch, ports: dict[int, int]) -> None:
        self._ports = ports
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(DEADLINE)
        self._socket.connect(str(host.rundir / "ovs-vswitchd.ctl"))

    def __enter__(self) -> Tracer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def trace(self, frames: Iterable[tuple[int, bytes]]) -> list[Traced]:
        """Trace each (in_port, frame)."""
        requests = [
            {"method": "ofproto/trace", "params": [BRIDGE, f"in_port={port}", frame.hex()], "id": n}
            for n, (port, frame) in enumerate(frames)
        ]
        data = "".join(map(json.dumps, requests)).encode()
        sender = threading.Thread(target=self._socket.sendall, args=(data,))
        sender.start()
        answers = self._answers(len(requests))
        sender.join()
        return [self._read(answer) for answer in answers]

    def _answers(self, count: int) -> list[dict[str, Any]]:
        decoder, text, answers = json.JSONDecoder(), "", list[dict[str, Any]]()
        while len(answers) < count:
            try:
                answer, end = decoder.raw_decode(text)
            except ValueError:
                part = self._socket.recv(1 << 16)
                assert part, "ovs-vswitchd has closed its control socket"
                text += part.decode()
                continue
            assert answer["id"] == len(answers)
            answers.append(answer)
            text = text[end:].lstrip()
        return answers

    def _read(self, answer: dict[str, Any]) -> Traced:
        assert answer["error"] is None, answer["error"]
        text = answer["result"]
        actions = re.search(r"^Datapath actions: (.*)$", text, re.MULTILINE)
        assert actions is not None, text
        ports, controllers = list[int](), list[int]()
        for action in _split(actions[1]):
            if action.isdigit():
                ports.append(self._ports[int(action)])
            elif action.startswith("userspace("):
                controllers += map(int, re.findall(r"controller_id=(\d+)", action))
            else:
                match = re.match(r"(drop|pop_vlan|set\(|push_vlan\()", action)
                assert match is not None, text
        return Traced(text, tuple(ports), tuple(controllers))


def _split(actions: str) -> list[str]:
    """Split at the commas that stand in no parenthesis."""
    parts, depth = [""], 0
    for char in actions:
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return parts
