"""The result of a check of ``dfmeta doctor``, and the words of its line."""

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final


class CheckStatus(enum.StrEnum):
    """The result of a check in one word."""

    OK = "ok"
    WARNING = "warning"
    """Guests are served, but not in every way that the configuration asks for."""
    WRONG = "wrong"
    UNKNOWN = "unknown"
    """The check could not be made, for a reason that another line names or that is not a fault."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of doctor: the status, the result as text, and the remedy."""

    status: CheckStatus
    text: str
    remedy: str = ""
    """Text with a command between backticks. Empty unless the status is ``wrong`` or ``warning``.
    """
    check: str = ""
    """Name of the check; :data:`~dfmeta.doctor.table.CHECKS` has it."""


def ok(text: str) -> Finding:
    """Return a finding without a fault."""
    return Finding(CheckStatus.OK, text)


def wrong(text: str, remedy: str) -> Finding:
    """Return a fault: guests are not served, or not well, until *remedy* is applied."""
    return Finding(CheckStatus.WRONG, text, remedy)


def warning(text: str, remedy: str) -> Finding:
    """Return a limitation that *remedy* ends; guests are served all the same."""
    return Finding(CheckStatus.WARNING, text, remedy)


def unknown(text: str) -> Finding:
    """Return the finding of a check that could not be made."""
    return Finding(CheckStatus.UNKNOWN, text)


def by_files(finding: Finding, options: Iterable[str]) -> Finding:
    """Note in *finding* that the check used secrets of files that the daemon has not read.

    A check that is ok with the secret of the files may be wrong with the daemon's, so ``ok``
    becomes ``unknown``.

    :param options: the secrets that may differ, as ``[group] option``; if there are none, *finding*
        is returned unchanged.
    """
    names = listed(options)
    if not names:
        return finding
    text = f"{finding.text}, with {names} of the files; the daemon may have another value"
    status = CheckStatus.UNKNOWN if finding.status is CheckStatus.OK else finding.status
    return Finding(status, text, finding.remedy)


_SUMMED: Final = {CheckStatus.OK: "ok", CheckStatus.WARNING: "warnings", CheckStatus.WRONG: "wrong"}


def summary(findings: Iterable[Finding]) -> str:
    """Return the numbers of findings by status in a line, such as ``50 ok, 1 warning, 0 wrong``."""
    counts = Counter(finding.status for finding in findings)
    words = [f"{counts[status]} {word}" for status, word in _SUMMED.items()]
    words += [f"{counts[CheckStatus.UNKNOWN]} not checked"] if counts[CheckStatus.UNKNOWN] else []
    return ", ".join(words).replace(" 1 warnings", " 1 warning")


def healthy(findings: Iterable[Finding]) -> bool:
    """Return whether no finding is ``wrong``.

    ``unknown`` is not a fault: its cause has a line of its own. Neither is ``warning``.
    """
    return all(finding.status is not CheckStatus.WRONG for finding in findings)


def first_fault(findings: Iterable[Finding]) -> Finding | None:
    """Return the first finding that is ``wrong``; None if none is."""
    return next((each for each in findings if each.status is CheckStatus.WRONG), None)


NEARLY_FULL: Final = 0.9
"""Part of a limit from which on a line names it."""
SHOWN: Final = 8
"""Maximum number of names in a line; the others are counted, since a host may have 1,000 ports."""


def listed(names: Iterable[str]) -> str:
    """Join *names* with commas: the first :data:`SHOWN` by name, the others as a number."""
    names = list(names)
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


_UNITS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def span(seconds: float) -> str:
    """Return *seconds* as text in the largest unit that fits; less than one second is ``0 s``."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "0 s"


def time_of_day(moment: datetime, now: datetime) -> str:
    """Return the time of day of *moment*, preceded by the date if that is not today's.

    :param moment: in UTC, like *now*.
    """
    day = "" if moment.date() == now.date() else f"{moment:%Y-%m-%d} "
    return f"{day}{moment:%H:%M:%S} UTC"


def make_guests(name: str) -> str:
    """Return the command that makes a port a guest's port."""
    return f"ovs-vsctl set Interface {name} external_ids:vm-uuid=<instance's UUID>"
