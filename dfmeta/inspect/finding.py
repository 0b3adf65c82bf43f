"""What a check of ``dfmeta doctor`` has come to."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace


class Status(enum.StrEnum):
    """How a check ended."""

    OK = "ok"
    WRONG = "wrong"
    UNKNOWN = "unknown"
    """It could not be made, because of something that another line names or that is no fault."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, what is the matter, and what to do about it."""

    check: str
    status: Status
    text: str
    remedy: str = ""
    """What to do, in words; commands stand between backticks. Empty unless something is wrong."""


def ok(check: str, text: str) -> Finding:
    """All is well."""
    return Finding(check, Status.OK, text)


def wrong(check: str, text: str, remedy: str) -> Finding:
    """Guests are not served, or not well, until *remedy* is applied."""
    return Finding(check, Status.WRONG, text, remedy)


def unknown(check: str, text: str) -> Finding:
    """It could not be looked at."""
    return Finding(check, Status.UNKNOWN, text)


def by_files(finding: Finding, options: Iterable[str]) -> Finding:
    """Say of a check that it was made with secrets of the files, which are not the daemon's.

    What is right by the files' secret may be wrong by the daemon's: it is unknown then.

    :param options: the secrets, as ``[group] option``; none: the daemon has the same.
    """
    names = listed(options)
    if not names:
        return finding
    text = f"{finding.text}, by the files' {names}; the daemon has another one"
    if finding.status is Status.OK:
        return Finding(finding.check, Status.UNKNOWN, text)
    return replace(finding, text=text)


def healthy(findings: Iterable[Finding]) -> bool:
    """Whether nothing is wrong. What is unknown is not a fault: its cause has its own line."""
    return all(finding.status is not Status.WRONG for finding in findings)


SHOWN = 8
"""Names in a line; with a thousand ports the rest is a number."""


def listed(names: Iterable[str]) -> str:
    """Write *names* in a sentence, the first few by name."""
    names = list(names)
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")
