"""The columns of a record that a write changes. Pure, except for the time of writing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dfmeta.runtime import clock
from dfmeta.store.db.record import (
    KEEP,
    Kind,
    Record,
    Whole,
    dump_document,
    is_older,
    merge_patch,
    parse_document,
)


def changes(
    before: Record, *, patch: Mapping[str, object] | Whole, columns: Mapping[str, object]
) -> tuple[dict[str, Any], list[str]]:
    """Return the columns to write, and the names of the members and columns that change."""
    old = parse_document(before.id, before.metadata)
    if isinstance(patch, Whole):
        new = dict(patch.document)
        named: Mapping[str, object] = {**new, **old}
    else:
        new, named = merge_patch(old, patch), patch
    changed = [name for name in named if old.get(name) != new.get(name)]
    values: dict[str, Any] = {}
    if changed or before.empty:
        values |= {"metadata": dump_document(new), "metadata_fetched_at": None}
    for name, value in columns.items():
        if value is not KEEP and value != getattr(before, name):
            values[name] = value
            changed.append(name)
    if "userdata" in values:
        values["userdata_fetched_at"] = None
    return values, changed


def half(
    before: Record, *, kind: Kind, content: Mapping[str, object] | bytes, fetched: bool
) -> dict[str, Any] | None:
    """Return the columns that replace a half of a record; None if the stored half is newer."""
    if isinstance(content, bytes):
        value: str | bytes = content
    elif before.metadata is not None and is_older(content, before.metadata):
        return None
    else:
        value = dump_document(content)
    now = stamp()
    return {kind.value: value, f"{kind}_fetched_at": now if fetched else None, "updated_at": now}


def stamp() -> datetime:
    """Return the time of writing."""
    return datetime.fromtimestamp(clock.wall(), UTC)
