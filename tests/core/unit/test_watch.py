"""Why a guest is without a connection, in the order of what the counters tell."""

import uuid
from dataclasses import replace
from ipaddress import IPv4Network
from types import SimpleNamespace
from typing import Any

import pytest

from dfmeta.apps.probe import Result
from dfmeta.cmd import watch
from dfmeta.cmd.watch import FullRange, Silence
from dfmeta.errors import NotConnectedError
from dfmeta.flows.pipeline import Purpose
from dfmeta.identity.host_wide_allocator import allocator_of
from dfmeta.identity.key import PREFIX6
from dfmeta.identity.meta_key import MetaKeys
from dfmeta.identity.registry import Registry
from dfmeta.identity.syn_accounting import GuestCounts, SynAccounting
from dfmeta.model import Endpoint, Port

HERE = Endpoint(1)
PORT = Port("tap1", "row1", 1, instance_id=str(uuid.uuid4()), project_id="p")


class Rig:
    """A guest that sends SYNs without end, and what the host and the switch count of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.syns, self.left, self.wrong = 1000.0, 0, 0, 0
        self.connected = True
        self.probe = SimpleNamespace(last=Result(answered=True))
        self.registry = Registry()
        # Connections of other tests of this process are of the same endpoint.
        monkeypatch.setattr(watch, "ACCEPTED", GuestCounts())
        monkeypatch.setattr(watch, "checksum_errors", lambda: self.wrong)
        switch: Any = SimpleNamespace(read=self._read, replies=lambda _endpoint: self.left)
        probe: Any = self.probe
        self.userspace, self.driver = True, ""
        self.floods: tuple[Purpose, ...] = ()
        monkeypatch.setattr(watch, "driver_of", lambda _name: self.driver)
        self.silence = Silence(
            self.registry,
            switch,
            probe,
            GuestCounts(),
            floods=lambda endpoint: self.floods if endpoint == HERE else (),
            userspace=lambda: self.userspace,
        )
        self.silence.experience = SynAccounting(clock=lambda: self.now)
        self.silence.look()
        self.registry.set_port(PORT)

    def _read(self) -> dict[Endpoint, int]:
        if not self.connected:
            raise NotConnectedError(bridge="br-int")
        return {HERE: self.syns} if self.registry.ports() else {}

    def cause(self, *, replies: int = 0, wrong: int = 0) -> str:
        """After three SYNs within three seconds, of which so many had this."""
        for _ in range(3):
            self.now, self.syns = self.now + 1, self.syns + 1
            self.left += replies
            self.wrong += wrong
            self.silence.look()
        return self.silence.cause(PORT)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


def test_flood_explains_why_there_is_no_connection(rig: Rig) -> None:
    rig.floods = (Purpose.GUEST_SYN,)
    assert rig.cause(wrong=1).endswith(
        "and no connection: it sends too many, and the switch drops them until it stops"
    )


def test_wrong_checksums_come_first(rig: Rig) -> None:
    said = rig.cause(wrong=1, replies=1)
    assert said.startswith("3 SYNs since 1970-01-01T00:16:41Z and no connection")
    assert "TcpInCsumErrors +3" in said
    assert "ethtool -K DEVICE tx off" in said


def test_answers_that_leave_are_not_taken_up(rig: Rig) -> None:
    assert "the guest does not answer them" in rig.cause(replies=1)


def test_a_probe_without_an_answer_names_the_host(rig: Rig) -> None:
    rig.probe.last = Result(answered=False, cause="the host does not answer")
    assert rig.cause().endswith("and no connection: the host does not answer")


def test_else_this_guest_alone_is_dropped(rig: Rig) -> None:
    assert "a packet filter that drops only this guest's SYNs" in rig.cause()
    assert rig.silence.connections(PORT) == {
        "syns": 3,
        "first_syns": 0,
        "accepted": 0,
        "unanswered": 3,
        "unanswered_since": "1970-01-01T00:16:41Z",
    }


def test_without_the_switch_there_is_no_cause(rig: Rig) -> None:
    rig.connected = False
    assert rig.cause() == ""
    assert rig.silence.connections(PORT) is None


def test_a_port_for_which_no_meta_ip_is_left_is_named_once_addresses_are_adopted() -> None:
    keys = MetaKeys(IPv4Network("240.0.0.0/29"), PREFIX6, "fa:16:ee:00:00:00")
    registry = Registry(keys=keys, allocator=allocator_of(keys, frozenset))
    ports = [replace(PORT, name=f"tap{n}", row=f"row{n}", ofport=n) for n in range(1, 7)]
    for one in ports:
        registry.set_port(one)
    adopted, now = False, 0.0
    full = FullRange(registry, lambda: adopted, clock=lambda: now)
    assert [full.cause(one) for one in ports] == [""] * len(ports)
    adopted = True
    *served, late = [full.cause(one) for one in ports]
    assert served == [""] * (len(ports) - 1)
    assert late == "all Meta IPs of 240.0.0.0/29 are taken ([METADATA] provider_cidr)"
    subport = replace(PORT, vid=7)
    registry.set_port(subport)
    now += watch.INTERVAL
    text = full.cause(subport)
    assert text.startswith("no Meta IP of 240.0.0.0/29 is left for it ([METADATA] provider_cidr)")
    registry.remove_port(subport.id)
    registry.remove_port(ports[0].id)
    now += watch.INTERVAL
    assert full.cause(ports[-1]) == ""
