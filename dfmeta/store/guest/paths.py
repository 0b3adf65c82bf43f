"""Decode the paths of guests' requests. Imports no database."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes


def split_path(path: str) -> list[str] | None:
    """Return the segments of an origin-form path, percent-decoded once; None for an invalid path.

    Doubled slashes and slashes at the end make no difference. A path is invalid if it has a segment
    ``.`` or ``..``, has control characters or is not UTF-8: it names nothing, even if another
    server would resolve it.
    """
    if not path.startswith("/") or not path.isascii():
        return None
    try:
        # Nearly every path needs no decoding.
        decoded = unquote_to_bytes(path).decode() if "%" in path else path
    except UnicodeDecodeError:
        return None
    segments = [segment for segment in decoded.split("/") if segment]
    if not decoded.isprintable() or not {".", ".."}.isdisjoint(segments):
        return None
    return segments
