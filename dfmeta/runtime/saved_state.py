"""State that outlives the daemon: a file in state_path, replaced as a whole.

If it is missing or unreadable, no answer is wrong, but each address costs a packet-in, and the
connections of an address whose flows are gone as well have to be made again.

Trust: only dfmeta's own user can write the file. Addresses in it are a guest's; each is checked for
its form, and used only for the guest that it was saved for.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any, Final, NamedTuple

from dfmeta.errors import StartError
from dfmeta.model import Endpoint, GuestAddress

LOG = logging.getLogger(__name__)

FILE = "state.json"
VERSION = 1
_MAC: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}", re.ASCII)
UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""Exceptions that reading a damaged state may raise."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The guest that an endpoint belongs to."""

    port_id: str
    instance_id: str
    slots: Mapping[int, GuestAddress | None] = field(default_factory=dict)
    """Slot whose key the guest has used → the address that has it; None: saved by a version that
    did not save addresses."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Device, addresses and table for which dfmeta configured rules, route and addresses."""

    device: str
    address: str
    table: int
    address6: str = ""
    """The IPv6 address; empty: none was configured."""
    network: str = ""
    """Network of the route in the main table; empty: the table has a default route."""
    network6: str = ""
    """The same for IPv6."""


class Listeners(NamedTuple):
    """The proxy's listening sockets, by which other programs identify them."""

    port: int
    """TCP port of all of them."""
    inode: int
    """Inode of IPv4's socket."""
    inode6: int = 0
    """Inode of IPv6's socket; 0: there is none."""


@dataclass(slots=True)
class SavedState:
    """Contents of the state file."""

    port: int = 0
    """Last TCP port of the proxy; used with port = 0."""
    listener: int = 0
    """Inode of the proxy's listening socket for IPv4, by which other programs identify it."""
    holders: dict[Endpoint, Holder] = field(default_factory=dict)
    """Endpoint → its guest when its flows were installed."""
    arp_ignore: int | None = None
    """Value of the host's arp_ignore before dfmeta raised it."""

    host: HostMemory | None = None
    """Configuration of dfmeta's side of the host; None: not known."""
    listener6: int = 0
    """Inode of the proxy's listening socket for IPv6; 0: there was none."""
    resting: list[int] = field(default_factory=list)
    """Slot numbers that rest on the whole host; see
    :meth:`~dfmeta.identity.slot_allocator.SlotAllocator.resting`."""
    host_service: bool = False
    """Whether a server answered the host itself at the metadata address before dfmeta took it."""


_BY_ENDPOINT = ("holders",)
"""Fields that have an entry for each endpoint."""


class StateFile:
    """Reads and replaces the file.

    :param folder: state_path; created with mode 0700 if it does not exist.
        It need not exist while the disk has no room for it.
    :raises StartError: if the directory cannot be created or written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._written, self._fault = "", ""
        self._entries: dict[str, dict[Endpoint, str]] = {name: {} for name in _BY_ENDPOINT}
        try:
            self._make_folder()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return
            raise _unusable(folder, error) from error
        # access(2) also fails on a read-only disk, which needs another remedy: check it first.
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            raise _unusable(folder, OSError(errno.EROFS, os.strerror(errno.EROFS)))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise _unusable(folder, PermissionError(13, "Permission denied"))

    def load(self) -> SavedState:
        """Return the state from the file; an empty state if the file is missing or unreadable."""
        try:
            return read_state(self._path.parent)
        except FileNotFoundError:
            return SavedState()
        except UNREADABLE as error:
            LOG.warning("%s cannot be read (%s): starting with an empty state", self._path, error)
            return SavedState()

    def save(
        self,
        state: SavedState,
        changed: Collection[Endpoint] | None = None,
        *,
        give_way: Callable[[], object] = lambda: None,
        apart: Callable[[Callable[[str], None], str], object] = lambda write, text: write(text),
    ) -> bool:
        """Replace the file if the state has changed; a failure is logged once, and not raised.

        :param changed: the only endpoints whose entries may have changed since the last call; the
            texts of the other entries are reused. None: any entry may have changed.
        :param give_way: lets other greenthreads run, which must not change *state*.
        :param apart: writes without blocking the hub: a file system may need some time to replace
            one file by another (0.1 s and more were seen for 5,000 ports).
        :return: whether the file has the state now.
        """
        rest = {name: value for name, value in _values(state).items() if name not in _BY_ENDPOINT}
        parts = [json.dumps({"version": VERSION, **rest}, sort_keys=True)[1:-1]]
        for name in _BY_ENDPOINT:
            self._renew(name, getattr(state, name), changed, give_way)
            parts.append(f'"{name}": {{{", ".join(self._entries[name].values())}}}')
        text = f"{{{', '.join(parts)}}}"
        if text == self._written:
            return True
        try:
            apart(self._replace, text)
        except OSError as error:
            if str(error) != self._fault:
                LOG.warning("%s cannot be written: %s", self._path, error)
            self._fault = str(error)
            with contextlib.suppress(OSError):
                self._new.unlink(missing_ok=True)
            return False
        self._written, self._fault = text, ""
        return True

    @property
    def _new(self) -> Path:
        # Only one daemon holds the bridge's lock, so one fixed name for the new file is enough.
        return self._path.with_suffix(".new")

    def _make_folder(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _replace(self, text: str) -> None:
        self._make_folder()
        self._new.touch(mode=0o600)
        self._new.write_text(text, encoding="utf-8")
        self._new.replace(self._path)

    def _renew(
        self,
        name: str,
        entries: dict[Endpoint, Any],
        changed: Collection[Endpoint] | None,
        give_way: Callable[[], object],
    ) -> None:
        if changed is None:
            self._entries[name] = {}
            changed = list(entries)
        texts = self._entries[name]
        for endpoint in changed:
            entry = entries.get(endpoint)
            if entry is None:
                texts.pop(endpoint, None)
            else:
                plain = _plain(entry) if isinstance(entry, Holder) else entry
                texts[endpoint] = f'"{_name(endpoint)}": {json.dumps(plain)}'
            give_way()


def _values(state: SavedState) -> dict[str, Any]:
    values = {member.name: getattr(state, member.name) for member in fields(state)}
    return values | {"host": asdict(state.host) if state.host is not None else None}


def read_state(folder: Path) -> SavedState:
    """Return the state in *folder*.

    :raises UNREADABLE: one of these exceptions, if there is no readable state.
    """
    raw = json.loads((folder / FILE).read_text(encoding="utf-8"))
    if raw["version"] != VERSION:
        raise ValueError(f"it has format {raw['version']!r}, this dfmeta knows {VERSION}")
    return SavedState(
        port=int(raw["port"]),
        listener=int(raw["listener"]),
        holders={
            _endpoint(name): Holder(
                str(holder["port_id"]), str(holder["instance_id"]), _slots(holder["slots"])
            )
            for name, holder in raw["holders"].items()
        },
        arp_ignore=None if raw["arp_ignore"] is None else int(raw["arp_ignore"]),
        host=_host_memory(raw.get("host")),
        # State files of versions without IPv6 lack the member.
        listener6=int(raw.get("listener6", 0)),
        # State files of versions without such numbers lack the member.
        resting=[int(number) for number in raw.get("resting", ())],
        host_service=bool(raw.get("host_service", False)),
    )


def _plain(holder: Holder) -> dict[str, Any]:
    """Return a holder in the form of the file: slot → MAC, IP and, for IPv6, the service."""
    slots = {
        number: []
        if address is None
        else [address.mac, *map(str, filter(None, (address.ip, address.service)))]
        for number, address in holder.slots.items()
    }
    return {"port_id": holder.port_id, "instance_id": holder.instance_id, "slots": slots}


def _slots(raw: Any) -> dict[int, GuestAddress | None]:
    """Parse the slots of a holder; state files of earlier versions have a list of numbers.

    :raises UNREADABLE: one of these exceptions.
    """
    if isinstance(raw, list):
        return dict.fromkeys(map(int, raw))
    return {int(number): _address(*address) if address else None for number, address in raw.items()}


def _address(mac: str, ip: str, service: str | None = None) -> GuestAddress:
    at = ip_address(ip)
    if not _MAC.fullmatch(mac) or (at.version == 6) != (service is not None):
        raise ValueError(f"{mac!r}, {ip!r} and {service!r} are no address of a guest")
    return GuestAddress(mac, at, None if service is None else IPv6Address(service))


def _name(endpoint: Endpoint) -> str:
    """Return an endpoint in the form of the file: its ofport, or ``ofport.vid``."""
    return f"{endpoint.ofport}.{endpoint.vid}" if endpoint.vid else str(endpoint.ofport)


def _endpoint(name: str) -> Endpoint:
    ofport, _, vid = name.partition(".")
    return Endpoint(int(ofport), int(vid or 0))


def _host_memory(raw: Any) -> HostMemory | None:
    """Parse the member ``host``; state files of earlier versions lack it."""
    if raw is None:
        return None
    address = str(IPv4Address(str(raw["address"])))
    # State files of versions without IPv6 lack the member.
    address6 = str(raw.get("address6", ""))
    if address6:
        address6 = str(IPv6Address(address6))
    # State files of versions without Meta IPs lack the members.
    networks = [str(raw.get(name, "")) for name in ("network", "network6")]
    for network in filter(None, networks):
        ip_network(network)
    return HostMemory(str(raw["device"]), address, int(raw["table"]), address6, *networks)


def _unusable(folder: Path, error: OSError) -> StartError:
    return StartError(
        cause=f"[df_metadata] state_path = {str(folder)!r} cannot be used: {error.strerror}",
        remedy="Name a directory that the daemon may write to, or create it for the daemon's user",
    )
