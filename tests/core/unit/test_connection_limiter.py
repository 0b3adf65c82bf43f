"""A port that has all the connections that it may have should be nobody else's loss."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dfmeta.http.limits import VM_PART, Admission, ConnectionLimiter, Limits
from dfmeta.model import Endpoint

HERE = Endpoint(1)
FEW = Limits(connections=60, connections_per_port=2, waiting_per_port=2)


def room(limits: Limits = FEW, *loud: str) -> ConnectionLimiter[str]:
    return ConnectionLimiter(limits, quiet=lambda connection: connection not in loud)


def test_waiting_connections_are_served_in_turn() -> None:
    places = room()
    for connection in "abcd":
        places.enter(HERE, connection)
    assert places.leave(HERE, "b") == "c"
    assert not places.waits(HERE, "c")
    assert places.leave(HERE, "a") == "d"
    assert places.leave(HERE, "d") is None


def test_idle_connection_with_unread_input_stays() -> None:
    places = room(FEW, "a")
    for connection in "ab":
        places.enter(HERE, connection)
        places.idle(HERE, connection)
    assert places.enter(HERE, "c").close == ("b",)
    assert places.enter(HERE, "d").close == ()


def test_idle_connection_gives_way_when_all_places_are_taken() -> None:
    places = room(replace(FEW, connections=4))
    for ofport, connection in enumerate("abcd"):
        places.enter(Endpoint(ofport), connection)
    places.idle(Endpoint(1), "b")
    entry = places.enter(Endpoint(9), "x")
    assert (entry.admission, entry.limit, entry.close) == (Admission.SERVED, "connections", ("b",))


def crowded() -> ConnectionLimiter[str]:
    """16 places: ports 0 to 2 have all that they may have, 3 to 6 have one."""
    places = room(replace(FEW, connections=16))
    for ofport in (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 4, 5, 6):
        places.enter(Endpoint(ofport), f"{len(places)} of {ofport}", f"vm{ofport}")
    return places


def test_without_idle_connections_the_greediest_port_loses_a_waiting_one() -> None:
    places = crowded()
    entry = places.enter(Endpoint(9), "x", "vm9")
    assert (entry.admission, entry.limit, entry.gone) == (Admission.SERVED, "connections", "3 of 0")
    assert (len(places), places.of(Endpoint(0))[-1]) == (16, "2 of 0")
    assert places.leave(Endpoint(0), "3 of 0") is None


def test_the_last_places_are_for_vms_without_a_connection() -> None:
    places = crowded()
    places.leave(Endpoint(6), "15 of 6")
    refused = places.enter(Endpoint(3), "x", "vm3"), places.enter(Endpoint(2, 9), "y", "vm2")
    assert {(entry.admission, entry.limit) for entry in refused} == {
        (Admission.REFUSED, "connections")
    }
    assert places.enter(Endpoint(6), "z", "vm6").admission is Admission.SERVED


def test_client_without_a_vm_has_no_vm_share() -> None:
    places = crowded()
    places.leave(Endpoint(6), "15 of 6")
    for number in range(2):
        assert places.enter(Endpoint(9), f"{number}").admission is Admission.SERVED


def test_container_takes_no_place_of_its_siblings() -> None:
    limits = Limits(connections=64, connections_per_port=4, waiting_per_port=4)
    places = room(limits)
    for number in range(24):
        places.enter(Endpoint(1, number % 3), f"{number}", "vm")
    assert [len(places.of(Endpoint(1, vid))) for vid in range(3)] == [4, 4, 4]
    assert places.enter(Endpoint(1, 9), "x", "vm").admission is Admission.SERVED


def test_vm_has_one_share_with_its_containers() -> None:
    places = room(replace(FEW, connections=64))
    for vid in range(20):
        places.enter(Endpoint(1, vid), f"{vid}", "vm")
    assert len(places) == 64 // VM_PART == places.limits.of_vm(64)
    assert places.enter(Endpoint(2), "x", "other").admission is Admission.SERVED
    places.idle(Endpoint(1, 3), "3")
    assert places.enter(Endpoint(1, 3), "y", "vm").close == ("3",), "its own idle one gives way"
    places.leave(Endpoint(1, 3), "3")
    places.leave(Endpoint(1, 4), "4")
    assert places.enter(Endpoint(1, 30), "z", "vm").admission is Admission.SERVED


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["enter", "leave", "idle", "busy"]),
            st.integers(1, 4),
            st.integers(0, 200),
        ),
        max_size=200,
    )
)
def test_bounds_hold_and_none_waits_beside_a_free_place(steps: list[tuple[str, int, int]]) -> None:
    limits = replace(FEW, connections=9)
    places: ConnectionLimiter[int] = ConnectionLimiter(limits, quiet=lambda _connection: True)
    ports: dict[int, Endpoint] = {}
    closing: set[int] = set()
    for number, (step, ofport, pick) in enumerate(steps):
        if step == "enter":
            entry = places.enter(Endpoint(ofport), number)
            if entry.admission is not Admission.REFUSED:
                ports[number] = Endpoint(ofport)
            if entry.gone is not None:
                del ports[entry.gone]
            assert not closing & set(entry.close), "closed once"
            closing |= set(entry.close)
        elif ports:
            connection = sorted(ports)[pick % len(ports)]
            if step == "leave":
                places.leave(ports.pop(connection), connection)
                closing.discard(connection)
            elif step == "idle" and connection not in closing:
                places.idle(ports[connection], connection)
            else:
                places.busy(ports[connection], connection)
        assert sorted(places) == sorted(ports)
        assert len(places) <= limits.connections + len(closing)
        served = Counter(at for connection, at in ports.items() if not places.waits(at, connection))
        waiting = Counter(at for connection, at in ports.items() if places.waits(at, connection))
        assert all(count <= limits.connections_per_port for count in served.values())
        assert all(served[at] == limits.connections_per_port for at in waiting)
        assert all(n <= limits.waiting_per_port + len(closing) for n in waiting.values())
