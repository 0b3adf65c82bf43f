"""Choice of VLAN ids: the next one after the last, so that a freed one rests for a round. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Set


def next_vid(vids: range, last: int, taken: Set[int]) -> int | None:
    """Return the first free VLAN id after *last*, and from the beginning after the end.

    :param vids: the VLAN ids that may be given, in steps of 1.
    :param last: the one that was given last; one outside of *vids* starts at their beginning.
    :param taken: VLAN ids that are in use, rest, or belong to others.
    :returns: None if none is free.
    """
    start = last + 1 if last in vids else vids.start
    round_robin = itertools.chain(range(start, vids.stop), range(vids.start, start))
    return next((vid for vid in round_robin if vid not in taken), None)
