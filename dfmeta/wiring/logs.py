"""The log of a daemon on stderr: lines with a time, lines for systemd's journal, or JSON objects.

The journal has the time of each line itself, and takes a line's priority from its beginning
(sd-daemon(3)). It stores the lines of a traceback one by one, so each has its record's priority.
JSON objects have the names of oslo.log's formatter.
"""

import copy
import json
import logging
import os
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from dfmeta.errors import DfmetaError
from dfmeta.wiring.process import unexpected_error

STDERR: Final = 2
"""The file descriptor."""
_LAYOUT: Final = "%(levelname)s %(name)s %(message)s"
_PRIORITIES: Final = {
    logging.CRITICAL: 2,
    logging.ERROR: 3,
    logging.WARNING: 4,
    logging.INFO: 6,
    logging.DEBUG: 7,
}
"""Level → priority of syslog(3)."""


def stderr_is_journal(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether stderr leads to systemd's journal (systemd.exec(5), ``JOURNAL_STREAM``).

    The variable stays after a redirection of stderr, and then names another file.
    """
    try:
        status = os.fstat(STDERR)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class DaemonFormatter(logging.Formatter):
    """Formats records; the name of a dfmeta error follows its message, as in commands.

    :param journal: whether the journal reads the lines.
    :param use_json: whether each record is a JSON object.
    """

    def __init__(self, *, journal: bool, use_json: bool = False) -> None:
        super().__init__(_LAYOUT if journal else f"%(asctime)s {_LAYOUT}")
        self._journal, self._use_json = journal, use_json

    def format(self, record: logging.LogRecord) -> str:
        """Format *record*; a traceback follows the line, or is in the object."""
        given = record.args if isinstance(record.args, tuple) else ()
        names = [f" [{value.name}]" for value in given if isinstance(value, DfmetaError)]
        named = copy.copy(record)
        named.msg, named.args = record.getMessage() + "".join(names[-1:]), None
        text = _json_of(named) if self._use_json else super().format(named)
        return self._with_priority(text, record.levelno)

    def last(self, prog: str, error: Exception) -> str:
        """Return the line of the error that ends a daemon; an unexpected one has its traceback."""
        reported = error if isinstance(error, DfmetaError) else unexpected_error(error)
        unexpected = error if reported is not error else None
        if self._use_json:
            fields = {"name": prog, "msg": reported.line, "levelname": "ERROR"}
            info = (type(error), error, error.__traceback__) if unexpected else None
            text = _json_of(logging.makeLogRecord({**fields, "exc_info": info}))
        else:
            trace = "".join(traceback.format_exception(unexpected)) if unexpected else ""
            text = f"{trace}{prog}: {reported.line}"
        return self._with_priority(text, logging.ERROR)

    def _with_priority(self, text: str, level: int) -> str:
        if not self._journal:
            return text
        priority = f"<{_PRIORITIES.get(level, _PRIORITIES[logging.INFO])}>"
        return priority + text.replace("\n", f"\n{priority}")


def _json_of(record: logging.LogRecord) -> str:
    fields: dict[str, Any] = {
        "asctime": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "levelname": record.levelname,
        "name": record.name,
        "process": record.process,
        "message": record.getMessage(),
    }
    if record.exc_info and record.exc_info[1] is not None:
        fields["traceback"] = traceback.format_exception(record.exc_info[1])
    return json.dumps(fields)


_formatter: DaemonFormatter | None = None
"""The formatter in force; None before the configuration is read."""


def set_up_logging(*, debug: bool, use_json: bool) -> None:
    """Log from level INFO on; with *debug*, from DEBUG on; with *use_json*, as JSON objects."""
    global _formatter
    _formatter = DaemonFormatter(journal=stderr_is_journal(), use_json=use_json)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter)
    level = logging.DEBUG if debug else logging.INFO
    logging.basicConfig(handlers=[handler], level=level, force=True)
    # These libraries log each message and each transaction with its contents.
    loud = ("os_ken", "ofp_event", "ovsdbapp", "pyroute2", "asyncio", "alembic", "sqlalchemy")
    for name in (*loud, "keystoneauth", "urllib3", "stevedore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # It logs a line for each connection error; dfmeta handles these itself, or ends with them.
    logging.getLogger("os_ken.controller.controller").setLevel(logging.CRITICAL)
    logging.captureWarnings(True)


def print_last(prog: str, error: Exception) -> None:
    """Write the last line of a daemon to stderr: the error that ends it, in the log's form."""
    form = _formatter or DaemonFormatter(journal=stderr_is_journal())
    sys.stderr.write(f"{form.last(prog, error)}\n")
