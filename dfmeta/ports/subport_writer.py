"""Changes the list of subports in a row of OVSDB, once, for a command.

The change is one transaction, which OVSDB refuses if another program has changed the row's
external_ids since they were read (RFC 7047, 5.2.6): then they are read again. Only the key of the
list is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from dfmeta.exceptions import OvsdbError
from dfmeta.inspect.jsonrpc import RefusedError, call, why
from dfmeta.ports.one_change import Operation, as_map, as_set, by_uuid, mutate, unchanged
from dfmeta.ports.subport_list import KEY

TRIES: Final = 20
PAUSE: Final = 0.05
"""Seconds between two tries."""
_DATABASE: Final = "Open_vSwitch"
_TABLE: Final = "Interface"
_CONFLICT: Final = "timed out"
"""Error of a wait that is not true at once."""


def change_list(remote: str, row: str, change: Callable[[str], str]) -> bool:
    """Change the list of subports of an interface; return whether it differs now.

    :param remote: OVSDB's address, ``unix:PATH`` or ``tcp:HOST:PORT``.
    :param row: UUID of the Interface row.
    :param change: returns the new list for the present one, both empty for none; it is called
        again after a conflict.
    :raises OvsdbError: when OVSDB does not answer, refuses the change or no longer has the row.
    """
    try:
        for _try in range(TRIES):
            pairs = _read(remote, row)
            before = pairs.get(KEY, "")
            after = change(before)
            if after == before:
                return False
            if _write(remote, row, pairs, after):
                return True
            time.sleep(PAUSE)
    except (OSError, ValueError, KeyError, TypeError, RefusedError) as error:
        raise OvsdbError(connection=remote, cause=why(error)) from error
    raise OvsdbError(
        connection=remote,
        cause="another program changes external_ids of the port all the time",
        remedy="Try again",
    )


def replacing(row: str, external_ids: Mapping[str, str], text: str) -> list[Operation]:
    """Return the operations that write the list of an interface; empty: they remove it.

    :param external_ids: the present ones: OVSDB refuses the change if they differ meanwhile.
    """
    changes: list[Any] = [["external_ids", "delete", as_set([KEY])]]
    if text:
        changes.append(["external_ids", "insert", as_map({KEY: text})])
    before = as_map(external_ids)
    return [
        unchanged(_TABLE, row, "external_ids", before),
        mutate(_TABLE, row, *changes),
    ]


def _read(remote: str, row: str) -> dict[str, str]:
    """Return the row's external_ids.

    :raises OvsdbError: when there is no such row.
    """
    select = {"op": "select", "table": _TABLE, "where": by_uuid(row), "columns": ["external_ids"]}
    (answer,) = call(remote, "transact", [_DATABASE, select])
    if not answer["rows"]:
        cause = "the port was removed meanwhile"
        raise OvsdbError(connection=remote, cause=cause, remedy="Run `dfmeta ports`")
    kind, pairs = answer["rows"][0]["external_ids"]
    if kind != "map":
        raise ValueError("external_ids is not a map")
    return dict(pairs)


def _write(remote: str, row: str, pairs: Mapping[str, str], text: str) -> bool:
    """Write the list, unless external_ids differ from *pairs*; return whether it was written."""
    answers = call(remote, "transact", [_DATABASE, *replacing(row, pairs, text)])
    errors = [one for one in answers if one and one.get("error")]
    if not errors:
        return True
    if errors[0]["error"] == _CONFLICT:
        return False
    raise RefusedError(str(errors[0].get("details") or errors[0]["error"]))
