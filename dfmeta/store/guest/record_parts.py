"""The halves of a record that an answer depends on. Values.

A dialect names one of these for each of its paths, so that the upstream store is queried only for
the needed halves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dfmeta.store.db.record import Kind


@dataclass(frozen=True, slots=True)
class Need:
    """The parts of a record that have to be known before a path can be answered."""

    halves: tuple[Kind, ...] = ()
    """Halves of which the answer shows the contents or absence, in the order of lookups."""
    record: bool = False
    """Whether the path exists for every record: if the record has none of ``halves``, the answer
    still depends on the existence of the other half."""


HERE: Final = Need()
"""The parts that are here are sufficient."""
ANY_HALF: Final = Need(record=True)
"""Of a path that shows neither half: the existence of the record is sufficient."""
METADATA: Final = Need((Kind.METADATA,), record=True)
USERDATA: Final = Need((Kind.USERDATA,), record=True)
METADATA_ALONE: Final = Need((Kind.METADATA,))
"""Of a path that does not exist for a record without metadata."""
USERDATA_ALONE: Final = Need((Kind.USERDATA,))
BOTH: Final = Need((Kind.METADATA, Kind.USERDATA))
