"""The model of :mod:`tests.flowsim` and a real bridge, fed the same bytes."""

import contextlib
import itertools
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from os_ken.ofproto import ofproto_parser
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as parser
from os_ken.ofproto.ofproto_protocol import ProtocolDesc

from dfmeta.flows.openflow import Flow
from dfmeta.flows.pipeline import CONTROLLER_ID, Layout, Purpose
from dfmeta.flows.wire import Wire
from dfmeta.model import Endpoint
from tests.core.flows.frames import Frame
from tests.flowsim import Out, Switch
from tests.harness.examples import examples
from tests.harness.ovs import OpenvSwitch
from tests.host.ovs.made_up import Frames, State, quick
from tests.host.ovs.switch import (
    ELSEWHERE,
    GUESTS,
    LOCAL,
    TAP_PORT,
    Connection,
    Tracer,
    add_ports,
    encode,
)


class Pair:
    """The model and a real bridge, side by side."""

    def __init__(self, connection: Connection, tracer: Tracer) -> None:
        self.wire = Wire(Layout())
        self.connection, self.tracer = connection, tracer
        self.answers: list[bytes] = []
        self.model = Switch((*GUESTS, ELSEWHERE, TAP_PORT, LOCAL), self.answers.append)
        self._xid, self._bundles = 1, itertools.count(1)

    def feed(self, *messages: Any) -> list[bytes]:
        """Give both the same bytes; they have to answer with the same."""
        data, last = encode(self.wire, messages, self._xid)
        self._xid = last + 1
        self.answers.clear()
        self.model.feed(data)
        kept = [answer for answer in self.answers if answer[1] != ofp.OFPT_FLOW_REMOVED]
        assert self.connection.exchange(data, last) == kept
        return kept

    def clear(self) -> None:
        """Remove all flows of the bridge, of which the model has none yet."""
        everything = {"out_port": ofp.OFPP_ANY, "out_group": ofp.OFPG_ANY}
        flows = bare_flow(
            self.wire, [], command=ofp.OFPFC_DELETE, table_id=ofp.OFPTT_ALL, **everything
        )
        data, last = encode(self.wire, [flows])
        (answer,) = self.connection.exchange(data, last)
        assert answer[1] == ofp.OFPT_BARRIER_REPLY

    def inject(self, in_port: int, frame: bytes) -> list[Out]:
        """Have both execute *frame*; unlike a trace, it is counted. Return what the model emits."""
        through_tables = [parser.OFPActionOutput(ofp.OFPP_TABLE)]
        out = parser.OFPPacketOut(
            self.wire.datapath, ofp.OFP_NO_BUFFER, in_port, through_tables, frame
        )
        data, last = encode(self.wire, [out], self._xid)
        self._xid = last + 1
        (answer,) = self.connection.exchange(data, last)
        assert answer[1] == ofp.OFPT_BARRIER_REPLY
        return self.model.receive(in_port, frame)

    def packets(self, purpose: Purpose, endpoint: Endpoint) -> int:
        """Return the packets of the flows of a purpose of an endpoint, the same on both."""
        count = self.feed(self.wire.count(purpose, endpoint))[0]
        return int(_parsed(count).body.packet_count)

    def install(self, flows: Iterable[Flow]) -> None:
        """Have these flows of ours and no others."""
        mods = [self.wire.remove_all(), *map(self.wire.add, flows)]
        answers = self.feed(*self.wire.bundle(next(self._bundles), mods))
        assert all(answer[1] != ofp.OFPT_ERROR for answer in answers)

    def compare(self, frames: Frames) -> Counter[str]:
        """Hold what they do with *frames* against each other; count the kinds of fate."""
        emitted, expected, fates = Frames(), list[str](), Counter[str]()
        for (in_port, frame), traced in zip(frames, self.tracer.trace(frames), strict=True):
            outs = self.model.receive(in_port, frame)
            where = f"{frame.hex()}\n{outs}\n{traced.text}"
            controllers = tuple(out.controller for out in outs if out.controller is not None)
            ports = tuple(out.port for out in outs if out.controller is None)
            assert (ports, controllers) == (traced.ports, traced.controllers), where
            emitted += [(in_port, out.frame) for out in outs]
            expected += [_visible(traced.after, out.frame) for out in outs]
            fates["controller" if controllers else fate(in_port, ports)] += 1
        traces = self.tracer.trace(emitted)
        for (_, frame), seen, after in zip(emitted, traces, expected, strict=True):
            assert _visible(seen.before, frame) == after, seen.text
        for flow in self.model.flows:
            flow.packets = flow.bytes = 0  # as on the bridge, where a trace is not counted
        return fates

    def agree_on(self, cases: st.SearchStrategy[tuple[State, Frames]]) -> None:
        """Hold them against each other in many states, until every fate has been seen."""
        fates = Counter[str]()

        @settings(quick, max_examples=examples(13))
        @given(case=cases)
        def agree(case: tuple[State, Frames]) -> None:
            state, sent = case
            self.install(state.flows())
            fates.update(self.compare(sent))

        agree()
        assert fates.keys() == {"controller", "proxy", "guest", "back", "untouched", "dropped"}
        assert fates.total() >= 400

    def read_alike(self, flows: Sequence[Flow]) -> None:
        """Have these flows; a dump of either has to read as them."""
        self.install(flows)
        data, last = encode(self.wire, [self.wire.dump_all()], 1)
        self.answers.clear()
        self.model.feed(data)
        for answers in (self.answers, self.connection.exchange(data, last)):
            entries = [entry for answer in answers[:-1] for entry in _parsed(answer).body]
            result = [entry.flow for entry in map(self.wire.found, entries) if entry is not None]
            assert len(result) == len(flows)
            assert set(result) == set(flows)


def _parsed(message: bytes) -> Any:
    """Parse a message as os-ken does."""
    head = struct.unpack_from("!BBHI", message)
    return ofproto_parser.msg(ProtocolDesc(version=ofp.OFP_VERSION), *head, message)


def _visible(flow: str, frame: bytes) -> str:
    """Leave out of a flow's text what is not sent out with *frame*.

    Registers, and of an advertisement the source link-layer address, whose option is the target's
    now, and the target's if no option can be read that would have it.
    """
    text = re.sub(r"reg\d=0x[0-9a-f]+,", "", flow)
    if "icmp_type=136" not in text:
        return text
    hidden = "nd_sll" if Frame(0, frame).has("ipv6_nd_tll") else "nd_[st]ll"
    return re.sub(rf",{hidden}=[0-9a-f:]+", "", text)


def fate(in_port: int, ports: tuple[int, ...]) -> str:
    """Say in a word where a frame has gone that no controller has got."""
    if ports == (in_port,):
        return "back"
    names = {(): "dropped", (TAP_PORT,): "proxy", (ELSEWHERE,): "untouched"}
    return names.get(ports, "guest")


def bare_flow(wire: Wire, actions: list[Any], *, match: Any = None, **fields: Any) -> Any:
    """A flow-mod of somebody else's making."""
    step = parser.OFPInstructionActions(ofp.OFPIT_APPLY_ACTIONS, actions)
    return parser.OFPFlowMod(
        wire.datapath, match=parser.OFPMatch(**match or {}), instructions=[step], **fields
    )


@contextlib.contextmanager
def _pair(host: OpenvSwitch, ports: dict[int, int]) -> Iterator[Pair]:
    """A model of a bridge with those ports; both have nothing but the bridge's flow."""
    with Connection(host) as connection, Tracer(host, ports) as tracer:
        pair = Pair(connection, tracer)
        pair.clear()
        pair.feed(
            pair.wire.set_controller_id(CONTROLLER_ID),
            pair.wire.set_async(),
            bare_flow(pair.wire, [parser.OFPActionOutput(ELSEWHERE)], priority=0),
        )
        yield pair


@pytest.fixture
def shared_pair(shared_host: OpenvSwitch) -> Iterator[Pair]:
    """Provide the bridge and a model of it, with the flow of the bridge itself."""
    with _pair(shared_host, add_ports(shared_host)) as pair:
        yield pair


@pytest.fixture
def own_pair(lasting_host: OpenvSwitch, lasting_ports: dict[int, int]) -> Iterator[Pair]:
    """As ``shared_pair``, for a module that uses the host for nothing else."""
    with _pair(lasting_host, lasting_ports) as pair:
        yield pair
