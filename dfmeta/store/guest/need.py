"""The halves of a record that an answer depends on. Values.

A dialect says for each of its paths which of these it is, so that upstream is asked for no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dfmeta.store.db.record import Kind


@dataclass(frozen=True, slots=True)
class Need:
    """What has to be known of a record before a path can be answered."""

    halves: tuple[Kind, ...] = ()
    """Those whose contents, or absence, the answer shows, in the order to ask for them."""
    record: bool = False
    """Whether the path is there for every record: with none of ``halves`` there, the answer still
    depends on whether there is the other half."""


HERE: Final = Need()
"""What is here will do."""
ANY_HALF: Final = Need(record=True)
"""Of a path that shows neither half: that there is a record is enough."""
METADATA: Final = Need((Kind.METADATA,), record=True)
USERDATA: Final = Need((Kind.USERDATA,), record=True)
METADATA_ALONE: Final = Need((Kind.METADATA,))
"""Of a path that is not there for a record without metadata."""
USERDATA_ALONE: Final = Need((Kind.USERDATA,))
BOTH: Final = Need((Kind.METADATA, Kind.USERDATA))
