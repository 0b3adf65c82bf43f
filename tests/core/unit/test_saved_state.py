"""What was saved should come back after a restart; what cannot be read costs only memory."""

import errno
import json
import os
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dfmeta.cmd.state_path import SavedGuests
from dfmeta.errors import AlreadyRunningError, StartError
from dfmeta.identity.key import PREFIX6, MetaKeys
from dfmeta.identity.registry import Registry
from dfmeta.model import Endpoint, GuestAddress, Port
from dfmeta.runtime import clock, saved_state
from dfmeta.runtime.saved_state import (
    FILE,
    VERSION,
    Holder,
    HostMemory,
    Listeners,
    SavedState,
    StateFile,
)
from dfmeta.runtime.throttle import LONGEST_PAUSE
from dfmeta.wiring.process import BridgeLock
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE, address, port
from tests.harness.examples import examples

MACS = st.binary(min_size=6, max_size=6).map(lambda mac: mac.hex(":"))
ADDRESSES = st.builds(GuestAddress, MACS, st.ip_addresses(v=4)) | st.builds(
    GuestAddress, MACS, st.ip_addresses(v=6), st.ip_addresses(v=6)
)
ENDPOINTS = st.builds(Endpoint, st.integers(1, 65279), st.just(0) | st.integers(0, 4094))
STATES = st.builds(
    SavedState,
    port=st.integers(0, 65535),
    listener=st.integers(0, 2**64 - 1),
    listener6=st.integers(0, 2**64 - 1),
    resting=st.lists(st.integers(2, 2**23)),
    host_service=st.booleans(),
    holders=st.dictionaries(
        ENDPOINTS,
        st.builds(
            Holder,
            st.text(),
            st.text(),
            st.dictionaries(st.integers(0, 7), ADDRESSES | st.none(), max_size=3),
        ),
        max_size=4,
    ),
    arp_ignore=st.one_of(st.none(), st.integers(0, 8)),
    host=st.none()
    | st.builds(
        HostMemory,
        st.text(),
        st.ip_addresses(v=4).map(str),
        st.integers(1, 2**32 - 1),
        st.just("") | st.ip_addresses(v=6, network="fc00::/7").map(str),
    ),
)
IN_ONE_FOLDER = settings(
    deadline=None,
    max_examples=examples(20),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
GOOD = {
    "version": VERSION,
    "port": 7,
    "listener": 4711,
    "listener6": 0,
    "holders": {},
    "arp_ignore": None,
    "host": None,
    "resting": [],
    "host_service": False,
}
SIDE = {"device": "x", "address": "10.0.0.1", "table": 2, "address6": "", "network": ""}


def write(folder: Path, text: str) -> StateFile:
    (folder / FILE).write_text(text, encoding="utf-8")
    return StateFile(folder)


def test_a_folder_is_made_for_the_daemon_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    StateFile(folder).save(SavedState(port=5))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / FILE).stat().st_mode & 0o777 == 0o600
    assert [file.name for file in folder.iterdir()] == [FILE]


def test_side_of_the_host_that_cannot_be_is_no_memory(tmp_path: Path) -> None:
    for host in (
        5,
        {},
        SIDE,
        SIDE | {"network6": "", "address": "10.0.0"},
        SIDE | {"network6": "", "address6": "fd00::x"},
        SIDE | {"network6": "x"},
    ):
        assert write(tmp_path, json.dumps(GOOD | {"host": host})).load() == SavedState(), host
    host = SIDE | {"network6": ""}
    assert write(tmp_path, json.dumps(GOOD | {"host": host})).load().host is not None


def test_another_format_is_no_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for version in (VERSION - 1, VERSION + 1, "x"):
        caplog.clear()
        assert write(tmp_path, json.dumps(GOOD | {"version": version})).load() == SavedState()
        (record,) = caplog.records
        assert f"it has format {version!r}, this dfmeta knows {VERSION}" in record.getMessage()


def test_malformed_file_is_no_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    holder = {"port_id": "a", "instance_id": "b", "slots": 5}
    mac, six = "fa:16:3e:00:00:05", "fd12::5"
    wrong = ("x", ["10.0.0.5"], [mac, "10.0.0"], ["fa:16", "10.0.0.5"], [mac, six], [mac, six, ""])
    texts = ["", "\x00", "nonsense", "[]", "null", '{"version": 1}', json.dumps(GOOD)[:-5]]
    for odd in (
        {"port": "x"},
        {"holders": []},
        {"holders": {"x": {}}},
        {"holders": {"1": holder}},
        {"resting": ["x"]},
        *({"holders": {"1": holder | {"slots": {"0": parts}}}} for parts in wrong),
    ):
        texts.append(json.dumps(GOOD | odd))
    for text in (*texts, "[" * 100_000, "\udcff\udcfe{}"):
        caplog.clear()
        (tmp_path / FILE).write_bytes(text.encode(errors="surrogateescape"))
        assert StateFile(tmp_path).load() == SavedState(), text[:80]
        assert "starting with an empty state" in caplog.text, text[:80]


def test_save_that_fails_is_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE).mkdir()
    file = StateFile(tmp_path)
    assert file.load() == SavedState()
    file.save(SavedState(port=5))
    assert "cannot be written" in caplog.text
    assert [file.name for file in tmp_path.iterdir()] == [FILE]
    (tmp_path / FILE).rmdir()
    file.save(SavedState(port=5))
    assert file.load() == SavedState(port=5)


def test_a_disk_that_stays_full_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, folder = registry_of(port()), tmp_path / "state"

    def refuse(*_args: object, **_how: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(Path, "mkdir", refuse)
        memory = SavedGuests(folder)
        for _ in range(3):
            memory.save(Listeners(18080, 1), registry)
            clock.sleep(LONGEST_PAUSE)
            assert memory.due_in(registry) <= 0, "it is tried again without another change"
    assert caplog.text.count("cannot be written") == 1
    memory.save(Listeners(18080, 1), registry)
    assert StateFile(folder).load().port == 18080


def test_a_folder_that_cannot_be_made_stops_the_start_and_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match=r"state_path = .*/file/folder.* Name a directory"):
        StateFile(tmp_path / "file" / "folder")


@IN_ONE_FOLDER
@given(STATES, st.lists(st.tuples(ENDPOINTS, STATES), max_size=5))
def test_saving_the_changes_saves_all(
    tmp_path: Path, state: SavedState, changes: list[tuple[int, SavedState]]
) -> None:
    file = StateFile(tmp_path)
    file.save(state)
    for endpoint, other in changes:
        state.port = other.port
        state.holders.pop(endpoint, None)
        state.holders.update(other.holders)
        file.save(state)
        assert StateFile(tmp_path).load() == state


HERE, BEHIND = Endpoint(13), Endpoint(13, 100)


def registry_of(*ports: Port) -> Registry:
    registry = Registry()
    for port_ in ports:
        registry.set_port(port_)
    return registry


def behind(instance: str = OTHER_INSTANCE) -> Port:
    """The port of a VLAN behind :func:`port`, of the same row."""
    return replace(port(instance=instance), vid=100)


@pytest.mark.parametrize("now", [False, True])
def test_two_ports_of_one_row_are_remembered_apart(tmp_path: Path, now: bool) -> None:
    registry = registry_of(port(), behind())
    registry.learn(HERE, address(), 0.0)
    for number in range(2):
        registry.learn(BEHIND, address(f"10.0.0.{number}"), 0.0)
    SavedGuests(tmp_path).save(Listeners(18080, 1), registry, now=now)

    memory = SavedGuests(tmp_path)
    holders = {one: (held.instance_id, held.slots) for one, held in memory.state.holders.items()}
    first, second = address("10.0.0.0"), address("10.0.0.1")
    assert holders == {
        HERE: (INSTANCE, {0: address()}),
        BEHIND: (OTHER_INSTANCE, {0: first, 1: second}),
    }
    assert memory.adopts(HERE, registry)
    assert memory.adopts(BEHIND, registry)
    assert set(memory.addresses(registry)) == {
        (HERE, 0, address()),
        (BEHIND, 0, first),
        (BEHIND, 1, second),
    }
    exchanged = registry_of(port(instance=OTHER_INSTANCE), behind(INSTANCE))
    assert not memory.adopts(HERE, exchanged)
    assert not memory.adopts(BEHIND, exchanged)
    assert list(memory.addresses(exchanged)) == []


def of_the_host(*ports: Port) -> Registry:
    keys = MetaKeys(IPv4Network("240.0.0.0/28"), PREFIX6, "fa:16:ee:00:00:00")
    registry = Registry(keys=keys)
    for port_ in ports:
        registry.set_port(port_)
    return registry


def number(registry: Registry, endpoint: Endpoint, ip: str = "10.0.0.5") -> int:
    learned = registry.learn(endpoint, address(ip), 0.0)
    assert learned is not None
    return learned.slot


def test_numbers_of_the_host_that_rest_do_so_after_a_restart(tmp_path: Path) -> None:
    registry, memory = of_the_host(port(), port(14, name="tap2")), SavedGuests(tmp_path)
    assert (number(registry, HERE), number(registry, Endpoint(14))) == (2, 3)
    registry.remove_port(port().id)
    memory.save(Listeners(18080, 1), registry)

    registry, memory = of_the_host(port(15, name="tap3")), SavedGuests(tmp_path)
    assert memory.state.resting == [2]
    memory.quarantine_keys(registry)
    assert sorted(registry.allocator.resting()) == [2, 3], "the guest of ofport 14 is gone as well"
    assert number(registry, Endpoint(15)) == 4


def test_a_number_of_the_host_is_kept_for_the_same_guest_alone(tmp_path: Path) -> None:
    registry, memory = of_the_host(port()), SavedGuests(tmp_path)
    assert [number(registry, HERE, ip) for ip in ("10.0.0.5", "10.0.0.6")] == [2, 3]
    memory.save(Listeners(18080, 1), registry)

    meta = registry.pending_ovsdb_writes()[port().row]
    for instance in (INSTANCE, OTHER_INSTANCE):
        here = replace(port(instance=instance), meta=meta)
        registry = of_the_host(port(14, name="tap2"), here)
        SavedGuests(tmp_path).quarantine_keys(registry)
        assert number(registry, Endpoint(14)) not in (2, 3)
        mine = {number(registry, HERE, ip) for ip in ("10.0.0.5", "10.0.0.6")}
        assert mine == {2, 3} if instance == INSTANCE else not mine & {2, 3}


def test_save_encodes_changed_holders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = SavedState(holders={Endpoint(number): Holder("p", "i") for number in range(1, 10)})
    file, encoded = StateFile(tmp_path), list[Holder]()
    plain = saved_state._plain
    monkeypatch.setattr(
        saved_state, "_plain", lambda holder: encoded.append(holder) or plain(holder)
    )
    assert file.save(state)
    changed = Holder("p", "other")
    encoded.clear()
    del state.holders[Endpoint(1)]
    state.holders[Endpoint(2)] = changed
    assert file.save(state)
    assert encoded == [changed]
    assert StateFile(tmp_path).load().holders == state.holders


def test_unchanged_state_is_not_written_again(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    written = []
    for state in (SavedState(port=1), SavedState(port=1), SavedState(port=2)):
        file.save(state)
        written.append((tmp_path / FILE).stat().st_ino)
    assert written[0] == written[1] != written[2]


@pytest.fixture
def ovsdb(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/db.sock"


def test_second_daemon_on_a_bridge_is_refused_with_the_lock(ovsdb: str) -> None:
    with BridgeLock(ovsdb, "br-int"):
        with pytest.raises(AlreadyRunningError, match="already serves br-int") as caught:
            BridgeLock(ovsdb, "br-int").__enter__()
        assert str(caught.value.fields["lock"]).startswith("@dfmeta-agent ")


def test_another_bridge_or_database_is_another_lock(ovsdb: str) -> None:
    long = f"unix:/{'x' * 120}/db.sock"
    for one, other in (
        ((ovsdb, "br-int"), (ovsdb, "br-ex")),
        (("unix:/a.sock", "br-int"), ("tcp:127.0.0.1:6640", "br-int")),
        ((long, "br-int"), (long, "br-ex")),
        ((f"unix:/{'ü' * 60}/db.sock", "br-int"), (ovsdb, "br-int")),
    ):
        with BridgeLock(*one), BridgeLock(*other):
            pass
