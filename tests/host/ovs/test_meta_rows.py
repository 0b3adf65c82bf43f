"""The second bridge and the Meta addresses in a real OVSDB, through the daemon's own watcher."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from dfmeta.errors import OvsdbError
from dfmeta.model import MetaIds, MetaNames, Port
from dfmeta.ovsdb import meta_bridge
from dfmeta.ovsdb.bridge_reader import Update
from dfmeta.ovsdb.meta_bridge import MetaDatapathError, MetaRows, TapElsewhereError
from dfmeta.ovsdb.watcher import OvsdbWatcher
from dfmeta.runtime.throttle import LONGEST_PAUSE
from tests.core.unit.support import let_hub_run, until
from tests.harness.netns import KERNEL_DATAPATH
from tests.harness.ovs import BRIDGE, OpenvSwitch

MAC, NEUTRONS_MAC = "fa:16:ee:00:00:01", "fa:16:ee:00:00:09"
META, TAP, NEAR, FAR, _ = NAMES = MetaNames(
    "br-meta", "tap-meta", "int-br-meta", "phy-br-meta", MAC
)
RENAMED = MetaNames("br-new", TAP, "int-br-new", "phy-br-new", MAC)
OTHERS = MetaNames("br-other", "tap-other", "int-br-other", "phy-br-other", MAC)
MARK = {"dfmeta": "meta of br-int"}
MARKS = MARK | {"skip_cleanup": "true"}
VLAN = {"tag": 4095, "vlan_mode": "dot1q-tunnel", "cvlans": 1}
DATAPATH, OTHER_DATAPATH = ("system", "netdev") if KERNEL_DATAPATH else ("netdev", "system")
IDS = MetaIds("240.0.0.5", "fa:16:ee:00:00:05", "fd00:a9fe:a9fe:a9fe::5")
KEYS = {"dfmeta-meta-ip": IDS.ip, "dfmeta-meta-mac": IDS.mac, "dfmeta-meta-ip6": IDS.ip6}
VIF = {"iface-id": "port-1", "attached-mac": "02:00:00:00:00:05"}
LEFT = {"iface-status": "active", "attached-mac": MAC}
"""Keys of tap-meta from Neutron's metadata_path."""


class Watch:
    """A watcher, and the last state that it has told."""

    def __init__(
        self,
        host: OpenvSwitch,
        names: MetaNames | None = NAMES,
        bridge: str = BRIDGE,
        tap: str = "tap-metadata",
    ) -> None:
        self.names = names or NAMES
        self.update = Update(connected=False)
        self.answered = 0
        self.ports: dict[str, Port] = {}
        self.watcher = OvsdbWatcher(
            host.ovsdb_connection, bridge, tap, deliver=self._take, meta=names
        )

    def __enter__(self) -> Watch:
        self.watcher.start()
        until(lambda: self.update.connected, "the first reading")
        return self

    def __exit__(self, *_: object) -> None:
        self.watcher.stop()
        let_hub_run()

    def _take(self, update: Update) -> None:
        self.update = update
        self.answered = max(self.answered, update.answered)
        self.ports |= {port.name: port for port in update.changed}

    @property
    def rows(self) -> MetaRows:
        """The second bridge."""
        assert self.update.meta is not None
        return self.update.meta

    def ensured(self) -> MetaRows:
        """Create everything and wait until Open vSwitch has numbered it.

        It may have to number it again, as the daemon asks it every two seconds: see
        :meth:`OvsdbWatcher.reconfigure`.
        """
        self._read()
        self.watcher.ensure_meta(self.names)
        until(lambda: self.rows.sound, "the rows of the second bridge")
        due = time.monotonic()

        def in_use() -> bool:
            nonlocal due
            if time.monotonic() >= due:
                self.watcher.reconfigure()
                due += LONGEST_PAUSE
            return self._in_use()

        until(in_use, "the second bridge")
        return self.rows

    def _in_use(self) -> bool:
        rows = self.rows
        numbers = (rows.datapath_id, rows.tap, rows.patch_int, rows.patch_meta)
        return rows.sound and None not in numbers and rows.tap_mac == self.names.mac

    def error(self) -> BaseException | None:
        """Return the cause for which OVSDB could not be changed."""
        self._read()
        with pytest.raises(OvsdbError) as raised:
            self.watcher.ensure_meta(self.names)
        return raised.value.__cause__

    def _read(self) -> None:
        """Wait until the watcher has read what other programs have changed by now."""
        question = self.watcher.ask()
        until(lambda: self.answered >= question, "OVSDB's answer to an echo")


@pytest.fixture(scope="module")
def one() -> Iterator[OpenvSwitch]:
    with OpenvSwitch() as switch:
        yield switch


@pytest.fixture
def host(one: OpenvSwitch) -> Iterator[OpenvSwitch]:
    """A host with br-int alone."""
    yield one
    for name in bridges(one):
        if name != BRIDGE:
            one.vsctl("del-br", name, wait=False)
    one.reset()


@pytest.fixture
def watch(host: OpenvSwitch) -> Iterator[Watch]:
    with Watch(host) as watching:
        yield watching


@pytest.fixture
def also(host: OpenvSwitch) -> Iterator[Callable[..., Watch]]:
    """Start further watchers."""
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(Watch(host, *args, **kwargs))


def bridges(host: OpenvSwitch) -> list[str]:
    return host.vsctl("list-br", wait=False).split()


def row(host: OpenvSwitch, table: str, name: str, *columns: str) -> dict[str, Any]:
    """Columns of a row."""
    (result,) = (
        record for record in host.records(table, "name", *columns) if record["name"] == name
    )
    return {column: result[column] for column in columns}


def ids(host: OpenvSwitch, interface: str) -> dict[str, str]:
    result: dict[str, str] = row(host, "Interface", interface, "external_ids")["external_ids"]
    return result


def database(host: OpenvSwitch) -> list[Any]:
    """Everything that dfmeta may write."""
    return [
        host.records("Bridge", "_uuid", "name", "ports", "fail_mode", "datapath_type"),
        host.records("Port", "_uuid", "name", "interfaces", *VLAN, "other_config"),
        host.records("Interface", "_uuid", "name", "type", "options", "mac", "external_ids"),
    ]


def add_bridge(host: OpenvSwitch, name: str, *ports: str, datapath: str = DATAPATH) -> None:
    """Add a bridge of others with internal ports."""
    added = [("--", "add-port", name, port, "--", *internal(port)) for port in ports]
    host.vsctl(
        *("add-br", name, "--", "set", "Bridge", name, f"datapath_type={datapath}"),
        *(part for command in added for part in command),
        wait=datapath == DATAPATH,
    )


def internal(interface: str) -> tuple[str, ...]:
    return ("set", "Interface", interface, "type=internal")


def add_guest(host: OpenvSwitch, name: str = "guest") -> None:
    keys = [f'external_ids:{key}="{value}"' for key, value in VIF.items()]
    host.vsctl("add-port", BRIDGE, name, "--", "set", "Interface", name, *keys, wait=False)


def leave_neutrons(host: OpenvSwitch) -> None:
    """Leave the bridge and the ports of Neutron's metadata_path.

    See neutron.agent.l2.extensions.metadata.metadata_path; the patch ports are the Open vSwitch
    agent's, for a bridge in bridge_mappings.
    """
    add_bridge(host, META, TAP)
    keys = [f'external_ids:{key}="{value}"' for key, value in LEFT.items()]
    host.vsctl(
        *("set", "Port", TAP, "tag=1", "other_config:tag=1", "--", "set", "Interface", TAP),
        *(f'mac="{NEUTRONS_MAC}"', *keys),
        *("--", "add-port", BRIDGE, NEAR, "--", "set", "Interface", NEAR, "type=patch"),
        *(f"options:peer={FAR}", "--", "add-port", META, FAR),
        *("--", "set", "Interface", FAR, "type=patch", f"options:peer={NEAR}"),
    )


# The second bridge


def test_host_gets_a_second_bridge_with_its_ports(host: OpenvSwitch, watch: Watch) -> None:
    assert watch.rows == MetaRows()
    rows = watch.ensured()
    assert (host.ports(), host.ports(META)) == ([NEAR], [FAR, TAP])
    assert row(host, "Bridge", META, "fail_mode", "datapath_type", "external_ids") == {
        "fail_mode": "secure",
        "datapath_type": DATAPATH,
        "external_ids": MARK,
    }
    for name, kind, options in (
        (TAP, "internal", {}),
        (NEAR, "patch", {"peer": FAR}),
        (FAR, "patch", {"peer": NEAR}),
    ):
        assert row(host, "Port", name, *VLAN) == VLAN
        assert row(host, "Interface", name, "type", "options", "external_ids") == {
            "type": kind,
            "options": options,
            "external_ids": MARKS,
        }
    numbers = [host.ofport(name) for name in (TAP, NEAR, FAR)]
    assert [rows.tap, rows.patch_int, rows.patch_meta] == numbers
    datapath_id = row(host, "Bridge", META, "datapath_id")["datapath_id"]
    assert (rows.datapath_id, rows.controllers) == (int(datapath_id, 16), 0)


CHANGES = [
    ("del-br", META),
    ("del-port", NEAR),
    ("del-port", TAP),
    ("del-port", TAP, "--", "add-bond", META, TAP, "b1", "b2"),
    ("del-br", META, "--", "add-br", META, "--", "add-port", META, TAP),
    ("clear", "Port", NEAR, "tag"),
    ("clear", "Port", FAR, "cvlans"),
    ("set", "Interface", NEAR, "options:peer=elsewhere"),
    ("set", "Interface", TAP, "type=dummy"),
    ("set", "Interface", TAP, f'mac="{NEUTRONS_MAC}"'),
    ("clear", "Interface", TAP, "mtu_request"),
    ("clear", "Bridge", META, "fail_mode"),
    ("set", "Bridge", META, f"datapath_type={OTHER_DATAPATH}"),
]


def test_a_change_by_an_operator_is_noticed_and_corrected(host: OpenvSwitch, watch: Watch) -> None:
    watch.ensured()
    for change in CHANGES:
        host.vsctl(*change, wait=False)
        until(lambda: not watch.rows.sound, f"{change} to be noticed")
        watch.ensured()
        assert {NEAR} <= set(host.ports()), change
        assert host.ports(META) == [FAR, TAP], change


# Bridges and ports of others


@pytest.mark.parametrize("ports", [("uplink",), ()])
def test_others_bridge_is_kept(host: OpenvSwitch, watch: Watch, ports: tuple[str, ...]) -> None:
    """Its fail mode and its datapath stay while it has ports of theirs."""
    add_bridge(host, META, *ports, datapath=DATAPATH if ports else OTHER_DATAPATH)
    host.vsctl("set-fail-mode", META, "standalone", wait=False)
    watch.ensured()
    mode = "standalone" if ports else "secure"
    kept = {"datapath_type": DATAPATH, "fail_mode": mode, "external_ids": {}}
    assert row(host, "Bridge", META, *kept) == kept
    assert watch.watcher.remove_meta() == [NEAR, FAR, TAP]
    assert host.ports(META) == [*ports]
    assert row(host, "Bridge", META, *kept) == kept


def test_datapath_of_a_shared_bridge_is_not_changed(host: OpenvSwitch, watch: Watch) -> None:
    add_bridge(host, META, "uplink", datapath=OTHER_DATAPATH)
    before = database(host)
    error = watch.error()
    assert isinstance(error, MetaDatapathError)
    assert (error.bridge, error.found, error.wanted) == (META, OTHER_DATAPATH, DATAPATH)
    assert "uplink" in str(error)
    assert database(host) == before
    assert not watch.rows.sound


def test_foreign_port_stays(host: OpenvSwitch, watch: Watch, also: Callable[..., Watch]) -> None:
    for name in (TAP, NEAR, FAR, META):
        add_bridge(host, "br-ex", name)
        before = database(host)
        error = watch.error()
        assert isinstance(error, TapElsewhereError)
        assert (error.tap, error.bridge, error.owner) == (name, "br-ex", None)
        assert database(host) == before
        host.vsctl("del-br", "br-ex", wait=False)
    # The tap of another daemon is known as its.
    watch.ensured()
    add_bridge(host, "br-int2")
    with pytest.raises(OvsdbError) as raised:
        also(None, "br-int2", tap=TAP).watcher.ensure_tap()
    for error in (also(RENAMED, "br-int2").error(), raised.value.__cause__):
        assert isinstance(error, TapElsewhereError)
        assert (error.tap, error.bridge, error.owner) == (TAP, META, BRIDGE)


@pytest.mark.parametrize("used", [False, True])
def test_a_former_second_bridge_gives_way_to_the_configured_one(
    host: OpenvSwitch, watch: Watch, also: Callable[..., Watch], used: bool
) -> None:
    """With ports of others, it loses those of dfmeta alone."""
    watch.ensured()
    if used:
        host.vsctl("add-port", META, "uplink", "--", *internal("uplink"))
    also(RENAMED).ensured()
    former = [META] if used else []
    assert bridges(host) == [BRIDGE, *former, RENAMED.bridge]
    assert [host.ports(bridge) for bridge in former] == [["uplink"]] * used
    assert host.ports() == [RENAMED.patch_int]
    assert host.ports(RENAMED.bridge) == [RENAMED.patch_meta, TAP]


def test_other_pair_stays(host: OpenvSwitch, watch: Watch, also: Callable[..., Watch]) -> None:
    watch.ensured()
    add_bridge(host, "br-int2")
    other = also(OTHERS, "br-int2")
    other.ensured()
    assert watch.watcher.remove_meta() == [NEAR, FAR, TAP, META]
    assert other.ensured().sound
    assert host.ports("br-int2") == [OTHERS.patch_int]
    assert host.ports(OTHERS.bridge) == [OTHERS.patch_meta, OTHERS.tap]


def test_ports_of_metadata_path_are_used_and_stay(host: OpenvSwitch, watch: Watch) -> None:
    leave_neutrons(host)
    numbers = [host.ofport(name) for name in (TAP, NEAR, FAR)]
    assert not watch.rows.sound
    rows = watch.ensured()
    assert [rows.tap, rows.patch_int, rows.patch_meta] == numbers
    for name in (TAP, NEAR, FAR):
        assert row(host, "Port", name, *VLAN) == VLAN
    assert ids(host, TAP) == LEFT
    assert row(host, "Port", TAP, "other_config") == {"other_config": {"tag": "1"}}
    assert row(host, "Bridge", META, "external_ids") == {"external_ids": {}}
    before = database(host)
    assert watch.watcher.remove_meta() == []
    assert database(host) == before
    # One that dfmeta made again is its own.
    host.vsctl("del-port", FAR)
    until(lambda: not watch.rows.sound, "the port to be gone")
    watch.ensured()
    assert watch.watcher.remove_meta() == [FAR]
    assert (host.ports(), host.ports(META)) == ([NEAR], [TAP])


# Removal


def test_the_removal_leaves_the_host_as_it_was(host: OpenvSwitch, watch: Watch) -> None:
    before = database(host)
    watch.ensured()
    assert watch.watcher.remove_meta() == [NEAR, FAR, TAP, META]
    assert database(host) == before
    until(lambda: watch.rows == MetaRows(), "the removal")
    assert watch.watcher.remove_meta() == []


def test_dfmetas_bridge_stays_while_others_use_it(host: OpenvSwitch, watch: Watch) -> None:
    watch.ensured()
    host.vsctl("add-port", META, "uplink", "--", *internal("uplink"))
    assert watch.watcher.remove_meta() == [NEAR, FAR, TAP]
    assert host.ports(META) == ["uplink"]
    host.vsctl("del-port", "uplink")
    assert watch.watcher.remove_meta() == [META]
    assert bridges(host) == [BRIDGE]
    # They begin to use it at that moment.
    watch.ensured()
    removed: list[list[str]] = []

    def act(idl: Any, _txn: Any) -> None:
        removed.append(meta_bridge.remove(idl, BRIDGE))
        if len(removed) == 1:
            host.vsctl("add-port", META, "uplink", "--", *internal("uplink"), wait=False)

    watch.watcher.run(act)
    assert removed == [[NEAR, FAR, TAP, META], [NEAR, FAR, TAP]]
    assert host.ports(META) == ["uplink"]


# Meta addresses


def test_meta_addresses_come_and_go_beside_others_keys(host: OpenvSwitch, watch: Watch) -> None:
    guest, bystander = added_guests(host, watch, "guest", "bystander")
    assert watch.ports["guest"].meta == MetaIds()
    watch.watcher.write_ids({guest: IDS})
    assert (ids(host, "guest"), ids(host, "bystander")) == (VIF | KEYS, VIF)
    until(lambda: watch.ports["guest"].meta == IDS, "the Meta addresses")
    other = MetaIds("240.0.0.6", "fa:16:ee:00:00:06")
    watch.watcher.write_ids({guest: other})
    written = {"dfmeta-meta-ip": other.ip, "dfmeta-meta-mac": other.mac}
    assert ids(host, "guest") == VIF | written
    watch.watcher.write_ids({guest: MetaIds()})
    assert ids(host, "guest") == VIF
    watch.ensured()
    watch.watcher.write_ids(dict.fromkeys((guest, bystander), IDS))
    watch.watcher.remove_keys(KEYS)
    assert ids(host, "guest") == ids(host, "bystander") == VIF
    assert ids(host, NEAR) == MARKS


def added_guests(host: OpenvSwitch, watch: Watch, *names: str) -> list[str]:
    """Add guests; return their rows when the watcher knows them."""
    for name in names:
        add_guest(host, name)
    until(lambda: {*names} <= watch.ports.keys(), "the guests")
    return [watch.ports[name].row for name in names]


def test_foreign_key_that_changes_meanwhile_stays(host: OpenvSwitch, watch: Watch) -> None:
    (guest,) = added_guests(host, watch, "guest")

    def act(idl: Any, _txn: Any) -> None:
        meta_bridge.write_ids(idl, {guest: IDS})
        host.vsctl("set", "Interface", "guest", "external_ids:iface-id=port-2", wait=False)

    watch.watcher.run(act)
    assert ids(host, "guest") == VIF | KEYS | {"iface-id": "port-2"}
    # A forged or deleted key is noticed.
    host.vsctl("set", "Interface", "guest", "external_ids:dfmeta-meta-ip=nonsense", wait=False)
    until(lambda: watch.ports["guest"].meta.ip == "nonsense", "the forged key")
    host.vsctl("remove", "Interface", "guest", "external_ids", "dfmeta-meta-ip", wait=False)
    until(lambda: watch.ports["guest"].meta.ip == "", "the key to be gone")


def test_addresses_of_metadata_path_are_read_and_stay(host: OpenvSwitch, watch: Watch) -> None:
    add_guest(host)
    neutrons = {"provider_ip": "240.0.7.7", "provider_mac": NEUTRONS_MAC}
    columns = [f'other_config:{key}="{value}"' for key, value in neutrons.items()]
    host.vsctl("set", "Port", "guest", *columns, wait=False)
    meta_ids = MetaIds("240.0.7.7", NEUTRONS_MAC)
    until(lambda: "guest" in watch.ports and watch.ports["guest"].meta == meta_ids, "the addresses")
    watch.watcher.write_ids({watch.ports["guest"].row: IDS})
    until(lambda: watch.ports["guest"].meta == IDS, "dfmeta's own addresses")
    watch.watcher.remove_keys(KEYS)
    until(lambda: watch.ports["guest"].meta == meta_ids, "Neutron's addresses")
    assert row(host, "Port", "guest", "other_config") == {"other_config": neutrons}
