"""Facts for the commands that inspect a host: settings, OVSDB, the daemon's ports, the proxy."""

from __future__ import annotations

import contextlib
import http.client
import pwd
import stat
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

from oslo_config import cfg

from dfmeta.cli.client import ask_agent, daemon_pid, request_agent
from dfmeta.conf.accounts import WORKER_ACCOUNT, account_of
from dfmeta.doctor import find_port
from dfmeta.doctor.checks_daemon import DaemonFacts, FolderFacts, Owners
from dfmeta.doctor.checks_path import PathFacts
from dfmeta.doctor.facts import GuestFailure, KnownPort, MetaSide, Settings
from dfmeta.errors import KeyRangeError, NotRunningError, UsageError
from dfmeta.flows.meta_bridge import MetaTap
from dfmeta.flows.port_down import PortBits, cut_of
from dfmeta.flows.service import Tap
from dfmeta.host.facts import ProcessFacts
from dfmeta.identity.key import Keys
from dfmeta.identity.meta_key import MetaKeys
from dfmeta.model import (
    OBSERVED,
    TAP_MAC,
    Binding,
    Endpoint,
    GuestAddress,
    NextHop,
    Port,
    PortKind,
    PortState,
)
from dfmeta.ovsdb.rows import Snapshot
from dfmeta.ovsdb.vswitchd import management_socket
from dfmeta.proxy.tokens import unusable_key
from dfmeta.runtime.saved_state import UNREADABLE, State, read_state
from dfmeta.store import strictjson
from dfmeta.wiring.layout import keys_of, layout_of, meta_of

TIMEOUT = 3.0
"""Seconds to wait for an answer of the daemon."""


def settings(conf: cfg.ConfigOpts) -> Settings:
    """Return the settings of the host that follow from *conf* and state_path."""
    group = conf.df_metadata
    bridge, ovsdb = group.integration_bridge, group.ovsdb_connection
    meta, remembered = meta_of(conf), State()
    with contextlib.suppress(*UNREADABLE):
        remembered = read_state(Path(group.state_path))
    return Settings(
        bridge=bridge,
        tap=group.metadata_interface,
        ip=group.ip,
        host_ip=group.host_ip,
        port=group.port or remembered.port or None,
        listener=remembered.listener,
        route_table=group.route_table,
        layout=layout_of(group),
        ovsdb=ovsdb,
        socket=str(management_socket(group.openflow_connection, ovsdb, bridge)),
        admin=group.admin_listen,
        state_path=group.state_path,
        sources=tuple(group.identity_sources),
        needs_project=group.backend == "nova",
        host_service=remembered.host_service,
        ip6=tuple(str(IPv6Address(one)) for one in group.ip6),
        host_ip6=str(IPv6Address(group.host_ip6)),
        listener6=remembered.listener6,
        keys=keys_of(conf),
        meta=None
        if meta is None
        else MetaSide(
            meta,
            conf.METADATA.provider_vlan_id,
            str(management_socket("auto", ovsdb, meta.bridge)),
        ),
    )


def daemon_ports(conf: cfg.ConfigOpts, keys: Keys) -> tuple[KnownPort, ...]:
    """Return every guest port as the running daemon knows it.

    :param keys: the key scheme; it learns the owners of the keys.
    :raises NotRunningError: when the daemon does not run.
    """
    rows = ask_agent(conf, "/ports")
    try:
        ports = tuple(known(row, keys) for row in rows)
    except (KeyError, TypeError, ValueError, KeyRangeError) as error:
        raise NotRunningError(
            address=conf.df_metadata.admin_listen,
            cause="the answer for /ports has an unknown format",
            remedy="It is another program, or a dfmeta-agent of another version: restart it",
        ) from error
    own(keys, ((port.endpoint, slot) for port in ports for slot in port.addresses))
    return ports


def find(conf: cfg.ConfigOpts, ports: Iterable[KnownPort], text: str) -> list[KnownPort]:
    """Return the guests' ports that *text* names: see :func:`dfmeta.doctor.find_port.named`.

    Libvirt's names of domains, and the names in records of the store, count last.

    :raises UsageError: when several instances have that name.
    """
    ports = tuple(ports)
    found = list(find_port.named(ports, text))
    if found and not all(text in one.names and text != one.name for one in found):
        return found
    found = found or _of_domain(conf, ports, text)
    if not found:
        named = find_port.named(with_record_names(conf, ports), text)
        places = {(one.name, one.vid) for one in named}
        found = [one for one in ports if (one.name, one.vid) in places]
    if several := find_port.several(found):
        raise UsageError(
            cause=f"several instances have the name {text}: {several}",
            remedy="Give the name of one of these ports",
        )
    return found


def _of_domain(conf: cfg.ConfigOpts, ports: tuple[KnownPort, ...], text: str) -> list[KnownPort]:
    """Return the ports of the libvirt domains on this host that have the name *text*."""
    from dfmeta.cli.store_target import Domains

    return [port for one in Domains(conf).ids(text) for port in find_port.named(ports, one)]


def with_record_names(conf: cfg.ConfigOpts, ports: Iterable[KnownPort]) -> list[KnownPort]:
    """Return *ports* with the names in the records of their instances, from the running daemon."""
    known = record_names(conf)
    return [replace(port, record_names=known.get(port.instance, ())) for port in ports]


def record_names(conf: cfg.ConfigOpts) -> dict[str, tuple[str, ...]]:
    """Return instance → the names in its record, of the instances of this host.

    Empty if the daemon does not run, is older, or has another backend than the store.
    """
    with contextlib.suppress(NotRunningError, AttributeError, TypeError):
        _status, document = request_agent(conf, "/names", timeout=TIMEOUT)
        return {instance: tuple(map(str, names)) for instance, names in document.items()}
    return {}


def own(keys: Keys, numbers: Iterable[tuple[Endpoint, int]]) -> None:
    """Tell *keys* the owners of all numbers that are in use, where numbers have owners."""
    if isinstance(keys, MetaKeys):
        keys.owners.clear()
    for endpoint, number in numbers:
        keys.own(endpoint, number)


def served_ip6(conf: cfg.ConfigOpts) -> tuple[str, ...]:
    """Return the IPv6 addresses at which the running daemon serves guests at this moment.

    Empty if the daemon or the host has no IPv6, and if the daemon does not run or is of a version
    without IPv6.
    """
    with contextlib.suppress(NotRunningError, KeyError, TypeError, ValueError):
        return tuple(str(IPv6Address(one)) for one in ask_agent(conf, "/service")["ip6"])
    return ()


def ovsdb_ports(snapshot: Snapshot, bridge: str) -> tuple[KnownPort, ...]:
    """Return every guest port from OVSDB, without its addresses."""
    ports = [port for one in snapshot.interfaces if one.bridge == bridge for port in one.ports]
    return tuple(
        KnownPort(
            port.name,
            port.ofport,
            PortState.UNNAMED if _is_unnamed(port) else port.state,
            instance=port.instance_id,
            iface_id=port.iface_id,
            mac=port.mac,
            fault=port.fault,
            project=port.project_id,
            vid=port.vid,
            next_hops=port.next_hops,
            next_hop_faults=port.next_hop_faults,
            kind=port.kind,
            segmentation_id=port.segmentation_id,
            parent=port.parent,
            subport_faults=port.subport_faults,
            binding=port.binding,
        )
        for port in ports
    )


def _is_unnamed(port: Port) -> bool:
    """Return whether OVSDB names no instance for a subport."""
    return port.kind is PortKind.SUBPORT and port.state is PortState.NO_INSTANCE


def with_cuts(
    ports: Iterable[KnownPort], bits: Mapping[int, PortBits], bridge: str
) -> tuple[KnownPort, ...]:
    """Add to *ports* the cause if they are cut off on the switch at this moment.

    :param bits: port number → the switch's description of the port.
    """
    return tuple(_with_cut(port, bits.get(port.ofport or 0), bridge) for port in ports)


def _with_cut(port: KnownPort, bits: PortBits | None, bridge: str) -> KnownPort:
    cut = cut_of(bits, port.name, bridge=bridge)
    if cut is None:
        return port
    if port.state not in (PortState.SERVED, *OBSERVED):
        return replace(port, cut=cut)
    return replace(port, cut=cut, state=PortState.CUT_OFF, fault=str(cut))


def tap_of(wanted: Settings, snapshot: Snapshot, *, ip6: tuple[str, ...]) -> Tap | None:
    """Return tap-metadata as the flows address it; None while a part of it is unknown.

    With a second bridge, it is the patch port to that bridge.

    :param ip6: the IPv6 addresses at which guests are served; see :func:`served_ip6`.
    """
    name = wanted.tap if wanted.meta is None else wanted.meta.names.patch_int
    found = snapshot.interface(name, wanted.bridge)
    if found is None or found.ofport is None or wanted.port is None:
        return None
    mac = found.mac_in_use if wanted.meta is None else TAP_MAC
    if not mac:
        return None
    return Tap(
        ofport=found.ofport,
        mac=mac,
        port=wanted.port,
        ip=wanted.host_ip,
        guest_ip=wanted.ip,
        ip6=wanted.host_ip6 if ip6 else "",
        guest_ip6=ip6,
        keys=wanted.keys,
    )


def meta_tap_of(wanted: Settings, snapshot: Snapshot, *, ip6: tuple[str, ...]) -> MetaTap | None:
    """Return the ports of the second bridge as its flows address them.

    :param ip6: the IPv6 addresses at which guests are served; see :func:`served_ip6`.
    :return: None if there is no second bridge, and while a part of it is unknown.
    """
    meta = wanted.meta
    if meta is None or wanted.port is None or not isinstance(wanted.keys, MetaKeys):
        return None
    tap = snapshot.interface(meta.names.tap, meta.names.bridge)
    patch = snapshot.interface(meta.names.patch_meta, meta.names.bridge)
    if tap is None or patch is None or not (tap.ofport and patch.ofport and tap.mac_in_use):
        return None
    return MetaTap(
        ofport=tap.ofport,
        patch=patch.ofport,
        mac=tap.mac_in_use,
        port=wanted.port,
        vlan=meta.vlan,
        guest_ip=wanted.ip,
        keys=wanted.keys,
        guest_ip6=ip6,
    )


def daemon_facts(conf: cfg.ConfigOpts) -> DaemonFacts:
    """Return whether the daemon runs, and the parts that it still misses to be ready."""
    try:
        document = _ask(conf, "/healthz/readiness")
        missing = tuple(str(one) for one in document.get("missing", ()))
        up = document["status"] == "UP"
    except (OSError, http.client.HTTPException) as error:
        cause = getattr(error, "strerror", None) or str(error) or "no answer in time"
        if isinstance(error, TimeoutError) and (pid := daemon_pid(conf)):
            return DaemonFacts(running=False, cause=cause, hangs=pid, seconds=TIMEOUT)
        other = isinstance(error, http.client.HTTPException)
        return DaemonFacts(running=False, cause=cause, other=other)
    except (ValueError, KeyError, AttributeError, TypeError):
        cause = "its answer is not dfmeta-agent's"
        return DaemonFacts(running=False, cause=cause, other=True)
    return DaemonFacts(running=True, ready=up, missing=missing)


def path_facts(conf: cfg.ConfigOpts, *, silent: str = "") -> PathFacts:
    """Request a probe of the path to the proxy from the running daemon, and return its result.

    :param silent: why a probe, which the daemon would wait for, would have no answer and show
        nothing about the host; empty: it shows something.
    """
    if silent:
        found = PathFacts(asked=False, cause=silent)
        return replace(found, ip6=found if served_ip6(conf) else None)
    try:
        found = ask_agent(conf, "/probe")
        six = found.get("ip6")
        return replace(_path(found), ip6=None if six is None else _path(six))
    except NotRunningError as error:
        return PathFacts(asked=False, cause=str(error.fields["cause"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        return PathFacts(asked=False, cause="dfmeta-agent of another version runs: restart it")


def _path(found: Mapping[str, Any]) -> PathFacts:
    return PathFacts(
        asked=bool(found["sent"]),
        answered=bool(found["answered"]),
        cause=str(found["cause"]),
        seconds=float(found["seconds"]),
        whole=bool(found["whole_checksum"]),
    )


def daemon_version(conf: cfg.ConfigOpts) -> str:
    """Return the version of the running daemon; empty if it does not report one."""
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return str(_ask(conf, "/version")["version"])
    return ""


def explicit(conf: cfg.ConfigOpts, name: str, group: str) -> bool:
    """Return whether an operator has set an option, so that it does not have its default."""
    place = conf.get_location(name, group)
    return place is not None and bool(place.location.is_user_controlled)


def folder_facts(path: str) -> FolderFacts:
    """Return the facts about state_path and the files in it."""
    try:
        found = Path(path).stat()
        files = [(one.name, one.stat()) for one in Path(path).iterdir() if one.is_file()]
    except FileNotFoundError:
        return FolderFacts(there=False)
    except OSError as error:
        return FolderFacts(there=True, error=error.strerror or str(error))
    owners = {path: found.st_uid} | {f"{path}/{name}": one.st_uid for name, one in files}
    return FolderFacts(
        there=True,
        folder=stat.S_ISDIR(found.st_mode),
        mode=stat.S_IMODE(found.st_mode),
        open_files=tuple(sorted(name for name, one in files if one.st_mode & 0o077)),
        owners=dict(sorted(owners.items())),
        key=unusable_key(Path(path)),
    )


def owners(conf: cfg.ConfigOpts, process: ProcessFacts | None) -> Owners:
    """Return the users that may own the daemon's files.

    :param process: the daemon's; None when it does not run or is not visible.
    """
    worker, user = None, account_of(conf.df_metadata.proxy_worker_user, WORKER_ACCOUNT)
    with contextlib.suppress(KeyError):
        worker = pwd.getpwnam(user).pw_uid
    return Owners(worker=worker, daemon=process.uid if process is not None else None)


def _ask(conf: cfg.ConfigOpts, path: str) -> Any:
    """Return the JSON document at *path* of the admin listener, with any status."""
    connection = http.client.HTTPConnection(conf.df_metadata.admin_listen, timeout=TIMEOUT)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        return strictjson.loads(connection.getresponse().read())
    finally:
        connection.close()


def known(row: Mapping[str, Any], keys: Keys) -> KnownPort:
    """Return a port from its row of ``GET /ports``.

    :raises KeyError, TypeError, ValueError, KeyRangeError: for a row of another form.
    """
    return KnownPort(
        row["port"],
        row["ofport"],
        PortState(row["state"]),
        instance=row["instance"],
        iface_id=row["iface_id"],
        mac=row["mac"],
        fault=row["fault"],
        project=row["project"],
        instance_name=row["instance_name"],
        addresses={_slot(one, keys): _address(one) for one in row["addresses"]},
        asked=row["requests"] is not None,
        failure=_failure(row["last_failure"]),
        # A daemon of an older version that still runs does not report VLAN ids.
        vid=row.get("vid", 0),
        key=row.get("key") or "",
        label=row.get("meta_mac") or "",
        # A daemon of an older version that still runs has no guest next hops.
        next_hops=_next_hops(row.get("next_hops", ())),
        next_hop_faults=tuple(row.get("next_hop_faults", ())),
        key6=row.get("key6") or "",
        # A daemon of an older version that still runs has no subports.
        kind=PortKind(row.get("kind", PortKind.PORT)),
        segmentation_id=row.get("segmentation_id") or 0,
        parent=row.get("parent") or "",
        subport_faults=tuple(row.get("subport_faults", ())),
        binding=Binding(row["mac"], IPv4Address(row["source"])) if row.get("source") else None,
    )


def _next_hops(rows: Iterable[Mapping[str, Any]] | None) -> tuple[NextHop, ...] | None:
    if rows is None:
        return None
    return tuple(NextHop(one["ip"], one["mac"] or "", one["source"]) for one in rows)


def _failure(row: Mapping[str, Any] | None) -> GuestFailure | None:
    if row is None or not row["failing"]:
        return None
    since = datetime.fromisoformat(row["failing_since"])
    return GuestFailure(row["status"], row["brief"], row["remedy"], since, row["times"])


def _address(row: Mapping[str, Any]) -> GuestAddress:
    ip, service = ip_address(row["ip"]), row.get("service")
    if ip.version == 6:
        return GuestAddress(row["mac"], ip, IPv6Address(service))
    return GuestAddress(row["mac"], ip)


def _slot(row: Mapping[str, Any], keys: Keys) -> int:
    """Return the slot with the number that the registry uses: listings show another one.

    :raises ValueError: for an address that is not a key.
    """
    slot = keys.number_of(ip_address(row["key"]))
    if slot is None:
        raise ValueError(f"{row['key']} is not a key")
    return slot
