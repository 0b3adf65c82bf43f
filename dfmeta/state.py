"""What outlives the daemon: a small file in state_path, replaced as a whole.

It is a memory, not an authority: a missing or unreadable one costs a packet-in for each address,
never a wrong answer.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field, fields
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from dfmeta.exceptions import StartError
from dfmeta.model import Endpoint

LOG = logging.getLogger(__name__)

FILE = "state.json"
VERSION = 1
UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""What reading a damaged state may raise."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Whom an endpoint belongs to."""

    port_id: str
    instance_id: str
    slots: tuple[int, ...] = ()
    """Slots whose keys it has been using."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """What rules, route and address were made for."""

    device: str
    address: str
    table: int


@dataclass(slots=True)
class State:
    """The memory's contents."""

    port: int = 0
    """TCP port that the proxy had last; matters with port = 0."""
    listener: int = 0
    """Inode of the proxy's listening socket, by which others know it."""
    holders: dict[Endpoint, Holder] = field(default_factory=dict)
    """Endpoint → whose it was when its flows were put in."""
    meters: dict[Endpoint, int] = field(default_factory=dict)
    """Endpoint → id of the meter of its first SYNs."""
    syn_meters: dict[Endpoint, int] = field(default_factory=dict)
    """Endpoint → id of the meter of all its SYNs."""
    arp_ignore: int | None = None
    """What the host's arp_ignore was before dfmeta raised it."""

    host: HostMemory | None = None
    """Where dfmeta's side of the host is; None is not known."""


_BY_ENDPOINT = ("holders", "meters", "syn_meters")
"""Fields that have an entry for each endpoint."""


class StateFile:
    """Reads and replaces the file.

    :param folder: state_path; made with mode 0700 when it is missing.
    :raises StartError: when it cannot be made or written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(folder, error) from error
        # Of both it is said that they may not be written: the disk needs another remedy.
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            raise _unusable(folder, OSError(errno.EROFS, os.strerror(errno.EROFS)))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise _unusable(folder, PermissionError(13, "Permission denied"))
        self._written = ""
        self._entries: dict[str, dict[Endpoint, str]] = {name: {} for name in _BY_ENDPOINT}

    def load(self) -> State:
        """Read the state; an empty one when there is none that can be read."""
        try:
            return read_state(self._path.parent)
        except FileNotFoundError:
            return State()
        except UNREADABLE as error:
            LOG.warning("%s cannot be read (%s): starting without a memory", self._path, error)
            return State()

    def save(
        self,
        state: State,
        changed: Collection[Endpoint] | None = None,
        *,
        give_way: Callable[[], object] = lambda: None,
        apart: Callable[[Callable[[str], None], str], object] = lambda write, text: write(text),
    ) -> None:
        """Replace the file if anything has changed; a failure is logged, not raised.

        :param changed: endpoints whose entries alone can differ from those of the last time: what
            is written is put together from the texts of all others. None: any may.
        :param give_way: lets others run, who do not change *state*.
        :param apart: writes where it keeps nobody waiting: a file system may take its time to put
            one file in the place of another (0.1 s and more were seen for 5,000 ports).
        """
        rest = {name: value for name, value in _values(state).items() if name not in _BY_ENDPOINT}
        parts = [json.dumps({"version": VERSION, **rest}, sort_keys=True)[1:-1]]
        for name in _BY_ENDPOINT:
            self._renew(name, getattr(state, name), changed, give_way)
            parts.append(f'"{name}": {{{", ".join(self._entries[name].values())}}}')
        text = f"{{{', '.join(parts)}}}"
        if text == self._written:
            return
        try:
            apart(self._replace, text)
            self._written = text
        except OSError as error:
            LOG.warning("%s cannot be written: %s", self._path, error)
            with contextlib.suppress(OSError):
                self._new.unlink(missing_ok=True)

    @property
    def _new(self) -> Path:
        # One writer holds the bridge's lock, so that one name for the new file will do.
        return self._path.with_suffix(".new")

    def _replace(self, text: str) -> None:
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
                plain = asdict(entry) if isinstance(entry, Holder) else entry
                texts[endpoint] = f'"{_name(endpoint)}": {json.dumps(plain)}'
            give_way()


def _values(state: State) -> dict[str, Any]:
    values = {one.name: getattr(state, one.name) for one in fields(state)}
    return values | {"host": asdict(state.host) if state.host is not None else None}


def read_state(folder: Path) -> State:
    """Read the state that is in *folder*.

    :raises UNREADABLE: one of these, when there is none that can be read.
    """
    raw = json.loads((folder / FILE).read_text(encoding="utf-8"))
    if raw["version"] != VERSION:
        raise ValueError(f"it has format {raw['version']!r}, this dfmeta knows {VERSION}")
    return State(
        port=int(raw["port"]),
        listener=int(raw["listener"]),
        holders={
            _endpoint(name): Holder(
                str(one["port_id"]), str(one["instance_id"]), tuple(map(int, one["slots"]))
            )
            for name, one in raw["holders"].items()
        },
        meters={_endpoint(k): int(v) for k, v in raw["meters"].items()},
        # A state of before there were such meters has none.
        syn_meters={_endpoint(k): int(v) for k, v in raw.get("syn_meters", {}).items()},
        arp_ignore=None if raw["arp_ignore"] is None else int(raw["arp_ignore"]),
        host=_host_memory(raw.get("host")),
    )


def _name(endpoint: Endpoint) -> str:
    """An endpoint as the file has it: its ofport; with a VID, both."""
    return f"{endpoint.ofport}.{endpoint.vid}" if endpoint.vid else str(endpoint.ofport)


def _endpoint(name: str) -> Endpoint:
    ofport, _, vid = name.partition(".")
    return Endpoint(int(ofport), int(vid or 0))


def _host_memory(raw: Any) -> HostMemory | None:
    """Read where the host's side is; a state of before it was remembered has none."""
    if raw is None:
        return None
    address = str(IPv4Address(str(raw["address"])))
    return HostMemory(str(raw["device"]), address, int(raw["table"]))


def _unusable(folder: Path, error: OSError) -> StartError:
    return StartError(
        cause=f"[df_metadata] state_path = {str(folder)!r} cannot be used: {error.strerror}",
        remedy="Name a folder that the daemon may write, or make it for the daemon's user",
    )
