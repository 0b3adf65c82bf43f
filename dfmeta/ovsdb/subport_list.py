"""Reads and changes the list of subports in the row of their parent's port. Pure.

The value of :data:`KEY` is a JSON array of objects ``{"vid", "port_id"?, "instance_id"?,
"project_id"?, "mac"?, "mtu"?, "attachment"?}``. Unknown members are kept and ignored. An entry with
``attachment`` is dfmeta's own, which goes with the attachment.

Trust: the host's operator, or a program of the host, writes the key. An invalid entry costs the
entry alone. Two entries of one VLAN id name two guests for it, so that neither of them counts, even
if one of them is invalid otherwise.
"""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from dfmeta.errors import SubportListError, short
from dfmeta.model import MTU, VID_MAX
from dfmeta.ovsdb.external_ids import instance_of, project_of, wrong_mac

KEY: Final = "dfmeta-subports"
"""Key in ``external_ids`` of a parent's Interface row."""
SIZE_MAX: Final = 1 << 20
"""Maximum number of characters of the list: 256 for each VLAN id."""
DIGITS_MAX: Final = 1000
"""Maximum number of digits of a number, in an entry of any program; Python reads 4300."""
FAULTS_MAX: Final = 8
"""Maximum number of faults that a port lists; more are counted."""
_PORT_ID: Final = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True, slots=True)
class ListEntry:
    """A subport of a parent's list; an empty field is not given."""

    vid: int
    port_id: str = ""
    """Id of its port, of Neutron or another program."""
    instance_id: str = ""
    """A UUID with dashes, lower case."""
    project_id: str = ""
    mac: str = ""
    """In lower case with colons."""
    mtu: int = 0
    """MTU of its network, in bytes."""
    attachment: str = ""
    """Id of its attachment, a UUID; empty: another program's subport."""

    def members(self) -> dict[str, Any]:
        """Return the entry as an object of the list."""
        names = ("vid", "port_id", "instance_id", "project_id", "mac", "mtu", "attachment")
        return {name: value for name in names if (value := getattr(self, name))}


class ListClaim(NamedTuple):
    """The VLAN id of an entry, whether the entry is valid or not, and its attachment."""

    vid: int
    """0: it has none."""
    attachment: str
    """Empty: the entry is another program's."""
    port_id: str


@dataclass(frozen=True, slots=True)
class SubportList:
    """A parent's list as it counts."""

    entries: Mapping[int, ListEntry]
    """VLAN id → its entry."""
    faults: tuple[str, ...] = ()
    """The entries that do not count, each with its cause."""


@lru_cache(maxsize=256)  # each subport of a trunk reads its parent's list
def parse(text: str) -> SubportList:
    """Read the value of :data:`KEY`; empty: no subports."""
    if not text.strip():
        return SubportList({})
    try:
        listed = read(text)
    except SubportListError as error:
        return SubportList({}, (f"external_ids:{KEY}: {error.fields['cause']}",))
    entries: dict[int, ListEntry] = {}
    faults: list[str] = []
    times = Counter(vid for vid in map(_vid, listed) if vid)
    for member in listed:
        vid = _vid(member)
        try:
            entry = entry_of(member)
        except SubportListError as error:
            faults.append(f"{_shown(member)}: {error.fields['cause']}")
            continue
        if times[vid] == 1:
            entries[vid] = entry
    for vid, count in times.items():
        if count > 1:
            faults.append(f"VID {vid} is there {count} times, so that no entry of it counts")
    if len(faults) > FAULTS_MAX:
        rest = len(faults) - FAULTS_MAX + 1
        faults[FAULTS_MAX - 1 :] = [f"{rest} more entries are wrong"]
    return SubportList(entries, tuple(f"external_ids:{KEY}: {fault}" for fault in faults))


def read(text: str) -> list[Any]:
    """Return the members of a list, valid or not.

    :raises SubportListError: with the cause, when the text is no JSON array or is too long.
    """
    if len(text) > SIZE_MAX:
        raise SubportListError(cause=f"it has {len(text)} characters; {SIZE_MAX} are possible")
    try:
        listed = json.loads(text, object_pairs_hook=_object, parse_constant=_Wrong, parse_int=_int)
    except (ValueError, RecursionError) as error:
        cause = error.msg if isinstance(error, json.JSONDecodeError) else "it cannot be read"
        raise SubportListError(cause=f"it is not JSON: {cause}") from None
    if not isinstance(listed, list):
        raise SubportListError(cause="it is not a JSON array")
    return listed


def entry_of(member: object) -> ListEntry:
    """Read a member of a list.

    :raises SubportListError: with the cause, when it is not a valid entry.
    """
    if isinstance(member, _Wrong):
        raise SubportListError(cause="a member has its name twice")
    if not isinstance(member, dict):
        raise SubportListError(cause="it is not an object")
    vid = _vid(member)
    if not vid:
        raise SubportListError(cause=f"vid is not a number from 1 to {VID_MAX}")
    names = ("port_id", "instance_id", "project_id", "mac", "attachment")
    port_id, instance, project, mac, attachment = (_text(member, name) for name in names)
    mac = mac.lower()
    if port_id and not _PORT_ID.fullmatch(port_id):
        raise SubportListError(cause="port_id is not of 1 to 255 printable ASCII characters")
    if instance and not instance_of(instance):
        raise SubportListError(cause="instance_id is not a UUID")
    if project and project_of(project) != project:
        raise SubportListError(cause="project_id is not of 1 to 255 printable ASCII characters")
    if mac and wrong_mac(mac):
        raise SubportListError(cause=wrong_mac(mac).replace("its MAC", "mac"))
    if attachment and not instance_of(attachment):
        raise SubportListError(cause="attachment is not a UUID")
    return ListEntry(
        *(vid, port_id, instance_of(instance), project, mac, _mtu(member), instance_of(attachment))
    )


def with_entry(text: str, entry: ListEntry) -> str:
    """Return the list *text* with *entry*, which replaces all entries of its VLAN id.

    Other members stay as they are, valid or not. The entry is that of the attachment which it
    replaces, so that it goes with it.

    :raises SubportListError: when *text* is no list, or the new one is too long.
    """
    before = (_attachment(member) for member in _members(text) if _vid(member) == entry.vid)
    attachment = entry.attachment or next(filter(None, before), "")
    return _write([*_others(text, entry.vid), replace(entry, attachment=attachment).members()])


def without(text: str, vid: int) -> str:
    """Return the list *text* without the entries of a VLAN id; empty when none is left.

    :raises SubportListError: when *text* is no list.
    """
    left = _others(text, vid)
    return _write(left) if left else ""


def claims(text: str) -> list[ListClaim]:
    """Return the claims of all entries; none when the list cannot be read."""
    with contextlib.suppress(SubportListError):
        return [
            ListClaim(_vid(member), _id(member, "attachment"), _id(member, "port_id"))
            for member in _members(text)
        ]
    return []


def with_attachments(text: str, entries: Iterable[ListEntry]) -> str:
    """Return the list *text* with the entries of attachments.

    An entry of another attachment for the same VLAN id is one that is over, and is replaced. An
    entry that exists gets the id of the port, and the members that it does not have.

    :raises SubportListError: when *text* is no list, or the new one is too long; with the field
        ``vid`` when the VLAN id of one has an entry of another program, which stands.
    """
    before = listed = _members(text)
    for entry in entries:
        present = [member for member in listed if _vid(member) == entry.vid]
        if not all(map(_attachment, present)):
            cause = f"VID {entry.vid} has an entry of another program"
            raise SubportListError(cause=cause, vid=entry.vid)
        former: dict[str, Any] = next(
            (member for member in present if _attachment(member) == entry.attachment), {}
        )
        given = {name: value for name, value in former.items() if value}
        new = {**entry.members(), **given, "port_id": entry.port_id}
        rest = [
            member
            for member in listed
            if _vid(member) != entry.vid and _attachment(member) != entry.attachment
        ]
        if new not in listed or len(rest) + 1 < len(listed):
            listed = [*rest, new]
    return text if listed is before else _write(listed)


def without_attachments(text: str, attachments: Collection[str]) -> str:
    """Return the list *text* without the entries of attachments; empty when none is left.

    A list that cannot be read has none.

    :raises SubportListError: when the new list cannot be written.
    """
    if not any(member.attachment in attachments for member in claims(text)):
        return text
    left = [member for member in _members(text) if _attachment(member) not in attachments]
    return _write(left) if left else ""


def write_list(row: Any, change: Callable[[str], str]) -> bool:
    """Change the list in an Interface row; return whether it differs now.

    Only the key of the list is written. The transaction is tried again if another program has
    changed external_ids meanwhile.

    :param row: a row of an IDL with a transaction.
    :param change: returns the new list for the present one, both empty for none.
    """
    before = row.external_ids.get(KEY, "")
    after = change(before)
    if after == before:
        return False
    row.verify("external_ids")
    if after:
        row.setkey("external_ids", KEY, after)
    else:
        row.delkey("external_ids", KEY)
    return True


def _members(text: str) -> list[Any]:
    return read(text) if text.strip() else []


def _attachment(member: object) -> str:
    """Return the attachment of a member of a list; empty when it has none."""
    return _id(member, "attachment")


def _id(member: object, name: str) -> str:
    """Return the UUID of that name in a member of a list; empty when it has none."""
    value = member.get(name) if isinstance(member, dict) else None
    return instance_of(value) if isinstance(value, str) else ""


def _others(text: str, vid: int) -> list[Any]:
    return [member for member in _members(text) if _vid(member) != vid]


def _write(listed: Sequence[Any]) -> str:
    try:
        text = json.dumps(listed, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        raise SubportListError(
            cause="an entry in it has a value that JSON readers do not read alike"
        ) from None
    if len(text) > SIZE_MAX:
        raise SubportListError(
            cause=f"it would have {len(text)} characters; {SIZE_MAX} are possible"
        )
    return text


class _Wrong:
    """A value that JSON readers do not read alike."""

    def __init__(self, value: object, vid: int = 0) -> None:
        self.value, self.vid = value, vid


def _object(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any] | _Wrong:
    pairs = list(pairs)
    members = dict(pairs)
    return members if len(members) == len(pairs) else _Wrong(members, _vid(members))


def _int(text: str) -> int | _Wrong:
    return int(text) if len(text) <= DIGITS_MAX else _Wrong(text)


def _vid(member: object) -> int:
    """Return the VLAN id of a member of a list; 0 when it has none."""
    if isinstance(member, _Wrong):
        return member.vid
    vid = member.get("vid") if isinstance(member, dict) else None
    return vid if type(vid) is int and 1 <= vid <= VID_MAX else 0


def _mtu(member: Mapping[str, Any]) -> int:
    """Return the MTU of an entry; 0 when it has none."""
    mtu = member.get("mtu")
    if mtu is None:
        return 0
    least, most = MTU
    if type(mtu) is not int or not least <= mtu <= most:
        raise SubportListError(cause=f"mtu is not a number from {least} to {most}")
    return mtu


def _text(member: Mapping[str, Any], name: str) -> str:
    value = member.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise SubportListError(cause=f"{name} is not a text")
    return value


def _shown(member: object) -> str:
    value = member.value if isinstance(member, _Wrong) else member
    return short(json.dumps(value, default=lambda _value: "?"))
