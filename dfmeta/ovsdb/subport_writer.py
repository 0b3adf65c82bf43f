"""Changes the list of subports in a row of OVSDB, once, for a command.

The change is one transaction, which OVSDB refuses if another program has changed the row's
external_ids since they were read (RFC 7047, 5.2.6): then they are read again. Only the key of the
list is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dfmeta.errors import OvsdbError
from dfmeta.ovsdb.subport_list import KEY
from dfmeta.ovsdb.transactions import (
    Operation,
    as_map,
    as_set,
    external_ids,
    mutate,
    repeat,
    unchanged,
)


def change_list(remote: str, row: str, change: Callable[[str], str]) -> bool:
    """Change the list of subports of an interface; return whether it differs now.

    :param remote: OVSDB's address, ``unix:PATH`` or ``tcp:HOST:PORT``.
    :param row: UUID of the Interface row.
    :param change: returns the new list for the present one, both empty for none; it is called
        again after a conflict.
    :raises OvsdbError: when OVSDB does not answer, refuses the change or no longer has the row.
    """

    def build() -> list[Operation]:
        pairs = external_ids(remote, row)
        if pairs is None:
            cause = "the port was removed meanwhile"
            raise OvsdbError(connection=remote, cause=cause, remedy="Run `dfmeta ports`")
        before = pairs.get(KEY, "")
        after = change(before)
        return replacing(row, pairs, after) if after != before else []

    return repeat(remote, build, busy="external_ids of the port all the time")


def replacing(row: str, present: Mapping[str, str], text: str) -> list[Operation]:
    """Return the operations that write the list of an interface; empty: they remove it.

    :param present: its external_ids: OVSDB refuses the change if they differ meanwhile.
    """
    changes: list[Any] = [["external_ids", "delete", as_set([KEY])]]
    if text:
        changes.append(["external_ids", "insert", as_map({KEY: text})])
    return [
        unchanged("Interface", row, "external_ids", as_map(present)),
        mutate("Interface", row, *changes),
    ]
