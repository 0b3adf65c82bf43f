"""Sets up the log of the daemons and workers: to stderr, one line for each record."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Iterable

from dfmeta.errors import DfmetaError

LOG = logging.getLogger(__name__)


def warn(errors: Iterable[DfmetaError]) -> None:
    """Log errors that do not stop the program, one line each."""
    for error in errors:
        LOG.warning("%s", error.line)


class NamingFormatter(logging.Formatter):
    """Appends the name of a dfmeta error to its line, as commands do."""

    def format(self, record: logging.LogRecord) -> str:
        """Format *record*; a traceback follows the line."""
        given = record.args if isinstance(record.args, tuple) else ()
        names = [f" [{one.name}]" for one in given if isinstance(one, DfmetaError)]
        if not names:
            return super().format(record)
        named = copy.copy(record)
        named.msg, named.args = record.getMessage() + names[-1], None
        return super().format(named)


def set_up_logging(*, debug: bool) -> None:
    """Log from level INFO on; with *debug*, from DEBUG on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(NamingFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    level = logging.DEBUG if debug else logging.INFO
    logging.basicConfig(handlers=[handler], level=level, force=True)
    # These libraries log each message and each transaction with its contents.
    loud = ("os_ken", "ofp_event", "ovsdbapp", "pyroute2", "asyncio", "alembic", "sqlalchemy")
    for name in (*loud, "keystoneauth", "urllib3", "stevedore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # It logs a line for each connection error; dfmeta handles these itself, or ends with them.
    logging.getLogger("os_ken.controller.controller").setLevel(logging.CRITICAL)
    logging.captureWarnings(True)
