"""Which path a guest means, however it spells it. Imports no database."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes


def split_path(path: str) -> list[str] | None:
    """Return the parts of an origin-form path, percent-decoded once; None for none of ours.

    Slashes at the end or doubled make no difference. A path with ``.`` or ``..`` in it, with
    control characters or that is not UTF-8 is none of ours: it names nothing, whatever another
    server would make of it.
    """
    if not path.startswith("/") or not path.isascii():
        return None
    try:
        # Nearly always there is nothing to be decoded.
        decoded = unquote_to_bytes(path).decode() if "%" in path else path
    except UnicodeDecodeError:
        return None
    segments = [segment for segment in decoded.split("/") if segment]
    if not decoded.isprintable() or not {".", ".."}.isdisjoint(segments):
        return None
    return segments
