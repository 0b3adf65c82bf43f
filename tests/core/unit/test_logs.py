"""A daemon's line about an error should end with the error's name."""

from __future__ import annotations

import logging
import sys

import pytest

from dfmeta.cmd.logs import NamingFormatter
from dfmeta.exceptions import HostError

ERROR = HostError(what="route add", device="tap-metadata", cause="Operation not permitted")
FORMATTER = NamingFormatter("%(levelname)s %(message)s")


def record(message: str, *args: object, exc_info: object = None) -> logging.LogRecord:
    return logging.LogRecord(
        *("dfmeta", logging.WARNING, __file__, 1, message, args, exc_info)  # type: ignore[arg-type]  # as sys.exc_info() gives it
    )


def test_an_error_in_a_line_is_named() -> None:
    line = FORMATTER.format(record("Not restored: %s; again in %d s", ERROR, 2))
    assert line == f"WARNING Not restored: {ERROR}; again in 2 s [{ERROR.name}]"


@pytest.mark.parametrize("args", [(), ("50 % [x]",), (OSError("gone"),)])
def test_other_lines_stay_as_they_are(args: tuple[object, ...]) -> None:
    message = "%s" if args else "50 % is plain"
    assert FORMATTER.format(record(message, *args)) == f"WARNING {args[0] if args else message}"


def test_record_stays_as_it_is_and_the_traceback_follows() -> None:
    try:
        raise ERROR
    except HostError:
        one = record("Lost: %s", ERROR, exc_info=sys.exc_info())
    first, *rest = FORMATTER.format(one).splitlines()
    assert first == f"WARNING Lost: {ERROR} [{ERROR.name}]"
    assert rest[0].startswith("Traceback")
    assert one.args == (ERROR,)
