"""Guests without a connection: when a guest counts as one, and the cause."""

import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dfmeta.apps.probe import Result
from dfmeta.cmd import unanswered
from dfmeta.cmd.unanswered import FORGOTTEN, LAG, PERSISTENCE, UnansweredGuests
from dfmeta.errors import NotConnectedError
from dfmeta.flows.pipeline import Purpose
from dfmeta.identity.registry import Registry
from dfmeta.identity.slots import GuestCounts
from dfmeta.model import Endpoint, Port

HERE = Endpoint(1)
PORT = Port("tap1", "row1", 1, instance_id=str(uuid.uuid4()), project_id="p")


class Rig:
    """A guest that sends SYNs, and the counters of the host and of the switch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.syns, self.replies, self.wrong = 1000.0, 0, 0, 0
        self.connected = self.reads = True
        self.probe = SimpleNamespace(last=Result(answered=True))
        self.registry = Registry()
        self.accepted = GuestCounts()
        self.userspace, self.driver = True, ""
        self.floods: tuple[Purpose, ...] = ()
        # Connections of other tests of this process are of the same endpoint.
        monkeypatch.setattr(unanswered, "ACCEPTED", self.accepted)
        monkeypatch.setattr(unanswered, "checksum_errors", lambda: self.wrong)
        monkeypatch.setattr(unanswered, "driver_of", lambda _name: self.driver)
        self.start()
        self.guests.look()
        self.registry.set_port(PORT)

    def start(self) -> None:
        """Start as the daemon does, without any count."""
        switch: Any = SimpleNamespace(read=self._read, replies=lambda _endpoint: self.replies)
        probe: Any = self.probe
        self.guests = UnansweredGuests(
            self.registry,
            switch,
            probe,
            floods=lambda endpoint: self.floods if endpoint == HERE else (),
            userspace=lambda: self.userspace,
            clock=lambda: self.now,
        )

    def _read(self) -> dict[Endpoint, int] | None:
        if not self.connected:
            raise NotConnectedError(bridge="br-int")
        if not self.reads:
            return None
        return {HERE: self.syns} if self.registry.ports() else {}

    def look(
        self, seconds: float = 1.0, *, syns: int = 0, accepted: int = 0, read: bool = True
    ) -> bool:
        """Return whether the guest is without a connection, so many seconds later.

        :param read: whether the counters are read this time.
        """
        self.now += seconds
        self.syns += syns
        identity = self.registry.identity(HERE)
        if accepted and identity is not None:
            self.accepted.add(HERE, identity.incarnation, accepted)
        self.reads = read
        self.guests.look()
        port = self.registry.port_at(HERE)
        return port is not None and bool(self.guests.cause(port))

    def connections(self, *members: str) -> list[Any]:
        """Return members of the port's connections."""
        connections = self.guests.connections(PORT)
        assert connections is not None
        return [connections[member] for member in members]

    def cause(self, *, replies: int = 0, wrong: int = 0) -> str:
        """Return the cause after three SYNs within three seconds, each with these counts."""
        for _ in range(3):
            self.replies += replies
            self.wrong += wrong
            self.look(syns=1)
        return self.guests.cause(PORT)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


def test_flood_explains_why_there_is_no_connection(rig: Rig) -> None:
    rig.floods = (Purpose.GUEST_SYN,)
    assert rig.cause(wrong=1).endswith(
        "and no connection: it sends too many, and the switch drops them until it stops"
    )


def test_wrong_checksums_come_first(rig: Rig) -> None:
    cause = rig.cause(wrong=1, replies=1)
    assert cause.startswith("3 SYNs since 1970-01-01T00:16:41Z and no connection")
    assert "TcpInCsumErrors +3" in cause
    assert "ethtool -K DEVICE tx off" in cause


def test_answers_that_leave_are_not_taken_up(rig: Rig) -> None:
    assert "the guest does not answer them" in rig.cause(replies=1)


def test_a_probe_without_an_answer_names_the_host(rig: Rig) -> None:
    rig.probe.last = Result(answered=False, cause="the host does not answer")
    assert rig.cause().endswith("and no connection: the host does not answer")


def test_else_this_guest_alone_is_dropped(rig: Rig) -> None:
    assert "a packet filter that drops only this guest's SYNs" in rig.cause()
    assert rig.guests.connections(PORT) == {
        "syns": 3,
        "first_syns": 0,
        "accepted": 0,
        "unanswered": 3,
        "unanswered_since": "1970-01-01T00:16:41Z",
    }


def test_without_the_switch_there_is_no_cause(rig: Rig) -> None:
    rig.connected = False
    assert rig.cause() == ""
    assert rig.guests.connections(PORT) is None


def test_repeated_syns_without_a_connection_are_reported_within_five_seconds(rig: Rig) -> None:
    assert not rig.look(0.5, syns=1)
    assert not rig.look(syns=1), "two within a second may yet be answered"
    assert rig.look()
    assert rig.now - 1000.0 < 5
    assert rig.connections("syns", "unanswered") == [2, 2]
    assert rig.connections("unanswered_since") == ["1970-01-01T00:16:40Z"]


def test_a_connection_ends_it(rig: Rig) -> None:
    rig.look(syns=2)
    assert rig.look(PERSISTENCE)
    assert not rig.look(syns=1, accepted=1)
    assert rig.connections("unanswered") == [0]


def test_what_the_switch_counts_late_belongs_to_the_connections_before(rig: Rig) -> None:
    rig.look(syns=50, accepted=100)
    assert not rig.look(LAG - 0.5, syns=50)
    assert not rig.look(10)
    assert not rig.look(syns=2)
    assert rig.look(PERSISTENCE), "behind the lag they count"


def test_connections_between_two_distant_readings_are_no_report(rig: Rig) -> None:
    # Thousands of ports, or a slow host: the flows are read every few seconds, and a guest's
    # connections are seen before its SYNs.
    rig.look()
    assert not rig.look(syns=3, accepted=3, read=False)
    assert not any(rig.look(read=False) for _ in range(3))
    assert not rig.look()
    assert not any(rig.look() for _ in range(3))
    assert rig.connections("syns", "unanswered") == [3, 0]
    rig.look(syns=1)
    rig.look(syns=1, read=False)
    assert rig.look(), "the next ones are none of theirs"


def test_one_lost_syn_is_no_report(rig: Rig) -> None:
    rig.look(syns=1)
    assert not rig.look(60)


def test_counts_of_the_time_before_the_daemon_are_none_of_its_guests(rig: Rig) -> None:
    rig.start()
    assert not rig.look(syns=1000)
    assert not rig.look(LAG + 1)


def test_another_guest_on_the_port_begins_anew(rig: Rig) -> None:
    rig.look(syns=3)
    assert rig.look(PERSISTENCE)
    rig.registry.set_port(replace(PORT, instance_id=str(uuid.uuid4())))
    assert not rig.look()
    assert not rig.look(LAG + 1)
    rig.registry.remove_port(PORT.id)
    assert not rig.look(syns=5)
    assert rig.guests.connections(PORT) is None


def test_a_flow_that_is_put_in_anew_counts_from_zero(rig: Rig) -> None:
    rig.look(syns=7, accepted=7)
    rig.look(LAG + 1)
    rig.syns = 0
    assert not rig.look(syns=2)
    assert rig.look(PERSISTENCE)


def test_a_guest_that_has_given_up_long_ago_is_forgotten(rig: Rig) -> None:
    rig.look(syns=3)
    assert rig.look(FORGOTTEN - 10)
    assert not rig.look(20)
