"""SYNs beside connections: when a guest counts as without one, and when not."""

from dfmeta.identity.syn_accounting import FORGOTTEN, LAG, PERSISTENCE, GuestCounts, SynAccounting
from dfmeta.model import Endpoint

HERE = Endpoint(1)


class Rig:
    """One guest: its counter, its connections, its incarnation, and the time."""

    def __init__(self) -> None:
        self.now, self.counter, self.accepted = 1000.0, 0, 0
        self.guest: int | None = 1
        self.experience = SynAccounting(clock=lambda: self.now)
        self.experience.look({}, lambda _: None, lambda _e, _g: 0)

    def look(
        self, seconds: float = 1.0, *, syns: int = 0, accepted: int = 0, read: bool = True
    ) -> bool:
        """After so many seconds with so many SYNs and connections: is it without a connection?

        :param read: whether the counters are read this time.
        """
        self.now += seconds
        self.counter += syns
        self.accepted += accepted
        counters = {HERE: self.counter} if read else None
        self.experience.look(counters, lambda _: self.guest, lambda _e, _g: self.accepted)
        met = self.experience.of(HERE, self.guest or 0)
        return met is not None and self.experience.silent(met)


def test_repeated_syns_without_a_connection_are_reported_within_five_seconds() -> None:
    rig = Rig()
    assert not rig.look(0.5, syns=1)
    assert not rig.look(syns=1), "two within a second may yet be answered"
    assert rig.look()
    assert rig.now - 1000.0 < 5
    met = rig.experience.of(HERE, 1)
    assert met is not None
    assert (met.syns, met.unanswered, met.since) == (2, 2, 1000.5)


def test_a_connection_ends_it() -> None:
    rig = Rig()
    rig.look(syns=2)
    assert rig.look(PERSISTENCE)
    assert not rig.look(syns=1, accepted=1)
    assert rig.experience.doubtful() == []


def test_what_the_switch_counts_late_belongs_to_the_connections_before() -> None:
    rig = Rig()
    rig.look(syns=50, accepted=100)
    assert not rig.look(LAG - 0.5, syns=50)
    assert not rig.look(10)
    assert not rig.look(syns=2)
    assert rig.look(PERSISTENCE), "behind the lag they count"


def test_connections_between_two_distant_readings_are_no_report() -> None:
    # Thousands of ports, or a slow host: the flows are read every few seconds, and a guest's
    # connections are seen before its SYNs.
    rig = Rig()
    rig.look()
    assert not rig.look(syns=3, accepted=3, read=False)
    assert not any(rig.look(read=False) for _ in range(3))
    assert not rig.look()
    assert not any(rig.look() for _ in range(3))
    met = rig.experience.of(HERE, 1)
    assert met is not None
    assert (met.syns, met.unanswered) == (3, 0)
    rig.look(syns=1)
    rig.look(syns=1, read=False)
    assert rig.look(), "the next ones are none of theirs"


def test_one_lost_syn_is_no_report() -> None:
    rig = Rig()
    rig.look(syns=1)
    assert not rig.look(60)


def test_counts_of_the_time_before_the_daemon_are_none_of_its_guests() -> None:
    rig = Rig()
    rig.experience = SynAccounting(clock=lambda: rig.now)
    assert not rig.look(syns=1000)
    assert not rig.look(LAG + 1)


def test_another_guest_on_the_port_begins_anew() -> None:
    rig = Rig()
    rig.look(syns=3)
    assert rig.look(PERSISTENCE)
    rig.guest = 2
    assert not rig.look()
    assert not rig.look(LAG + 1)
    rig.guest = None
    assert not rig.look(syns=5)
    assert rig.experience.doubtful() == []


def test_a_flow_that_is_put_in_anew_counts_from_zero() -> None:
    rig = Rig()
    rig.look(syns=7, accepted=7)
    rig.look(LAG + 1)
    rig.counter = 0
    assert not rig.look(syns=2)
    assert rig.look(PERSISTENCE)


def test_a_guest_that_has_given_up_long_ago_is_forgotten() -> None:
    rig = Rig()
    rig.look(syns=3)
    assert rig.look(FORGOTTEN - 10)
    assert not rig.look(20)


def test_connections_are_counted_for_the_guest_of_today_alone() -> None:
    mine, worker = GuestCounts(ports=2), GuestCounts()
    mine.add(HERE, 1)
    worker.add(HERE, 1, 2)
    worker.add(Endpoint(2), 7)
    told = worker.take()
    assert worker.take() == []
    mine.merge(told, {HERE: 1, Endpoint(2): 8}.get)
    assert (mine.of(HERE, 1), mine.of(HERE, 2), mine.of(Endpoint(2), 7)) == (3, 0, 0)
    mine.add(HERE, 2)
    assert (mine.of(HERE, 1), mine.of(HERE, 2)) == (0, 1)
    mine.add(Endpoint(3), 1)
    mine.add(Endpoint(4), 1)
    assert mine.of(HERE, 2) == 0, "the oldest has fallen out"
