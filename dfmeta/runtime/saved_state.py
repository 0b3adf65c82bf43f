"""State that outlives the daemon: a file in state_path, replaced as a whole.

If it is missing or unreadable, no answer is wrong, but each address costs a packet-in, and the
connections of an address whose flows are gone as well have to be made again.

Trust: only dfmeta's own user can write the file. Addresses in it are a guest's; each is checked for
its form, and used only for the guest that it was saved for.
"""

import contextlib
import errno
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any, Final, NamedTuple

from dfmeta import errors, model

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
    slots: Mapping[int, model.GuestAddress | None] = field(default_factory=dict)
    """Slot whose key the guest has used → the address that has it; None: it is not known."""


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
    holders: dict[model.Endpoint, Holder] = field(default_factory=dict)
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


class StateFile:
    """Reads and replaces the file.

    :param folder: state_path; created with mode 0700 if it does not exist.
        It need not exist while the disk has no room for it.
    :raises StartError: if the directory cannot be created or written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._written, self._fault = "", ""
        self._texts: dict[model.Endpoint, tuple[Holder, str]] = {}
        """Endpoint → its holder, and the text of that in the file."""
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
        *,
        apart: Callable[[Callable[[SavedState], None], SavedState], object] = (
            lambda write, state: write(state)
        ),
    ) -> bool:
        """Replace the file if the state has changed; a failure is logged once, and not raised.

        :param apart: encodes and writes without blocking the hub: thousands of ports take some time
            to encode, and a file system to replace one file by another (0.1 s and more were seen).
        :return: whether the file has the state now.
        """
        try:
            # A copy: the state may change while another thread writes.
            apart(self._write, replace(state, holders={**state.holders}))
        except OSError as error:
            if str(error) != self._fault:
                LOG.warning("%s cannot be written: %s", self._path, error)
            self._fault = str(error)
            with contextlib.suppress(OSError):
                self._new.unlink(missing_ok=True)
            return False
        self._fault = ""
        return True

    @property
    def _new(self) -> Path:
        # Only one daemon holds the bridge's lock, so one fixed name for the new file is enough.
        return self._path.with_suffix(".new")

    def _make_folder(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _write(self, state: SavedState) -> None:
        text = self._encode(state)
        if text == self._written:
            return
        self._make_folder()
        self._new.touch(mode=0o600)
        self._new.write_text(text, encoding="utf-8")
        self._new.replace(self._path)
        self._written = text

    def _encode(self, state: SavedState) -> str:
        values = {member.name: getattr(state, member.name) for member in fields(state)}
        values["host"] = asdict(state.host) if state.host is not None else None
        del values["holders"]
        # The encoder stops all threads while it runs: it gets the changed holders alone.
        self._texts = {
            endpoint: kept
            if (kept := self._texts.get(endpoint)) is not None and kept[0] is holder
            else (holder, f'"{_name(endpoint)}": {json.dumps(_plain(holder))}')
            for endpoint, holder in state.holders.items()
        }
        holders = ", ".join(text for _holder, text in self._texts.values())
        head = json.dumps({"version": VERSION, **values}, sort_keys=True)[:-1]
        return f'{head}, "holders": {{{holders}}}}}'


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
        holders={_endpoint(name): _holder(holder) for name, holder in raw["holders"].items()},
        arp_ignore=None if raw["arp_ignore"] is None else int(raw["arp_ignore"]),
        host=None if raw["host"] is None else _host_memory(raw["host"]),
        listener6=int(raw["listener6"]),
        resting=[int(number) for number in raw["resting"]],
        host_service=bool(raw["host_service"]),
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


def _holder(raw: Any) -> Holder:
    slots = {
        int(number): _address(*address) if address else None
        for number, address in raw["slots"].items()
    }
    return Holder(str(raw["port_id"]), str(raw["instance_id"]), slots)


def _address(mac: str, ip: str, service: str | None = None) -> model.GuestAddress:
    at = ip_address(ip)
    if not _MAC.fullmatch(mac) or (at.version == 6) != (service is not None):
        raise ValueError(f"{mac!r}, {ip!r} and {service!r} are no address of a guest")
    return model.GuestAddress(mac, at, None if service is None else IPv6Address(service))


def _name(endpoint: model.Endpoint) -> str:
    """Return an endpoint in the form of the file: its ofport, or ``ofport.vid``."""
    return f"{endpoint.ofport}.{endpoint.vid}" if endpoint.vid else str(endpoint.ofport)


def _endpoint(name: str) -> model.Endpoint:
    ofport, _, vid = name.partition(".")
    return model.Endpoint(int(ofport), int(vid or 0))


def _host_memory(raw: Any) -> HostMemory:
    address, address6 = str(IPv4Address(str(raw["address"]))), str(raw["address6"])
    if address6:
        IPv6Address(address6)
    networks = [str(raw[name]) for name in ("network", "network6")]
    for network in filter(None, networks):
        ip_network(network)
    return HostMemory(str(raw["device"]), address, int(raw["table"]), address6, *networks)


def _unusable(folder: Path, error: OSError) -> errors.StartError:
    return errors.StartError(
        cause=f"[df_metadata] state_path = {str(folder)!r} cannot be used: {error.strerror}",
        remedy="Name a directory that the daemon may write to, or create it for the daemon's user",
    )
