"""How the daemon and its workers log: to stderr, one line each."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Iterable

from dfmeta.exceptions import DfmetaError

LOG = logging.getLogger(__name__)


def warn(errors: Iterable[DfmetaError]) -> None:
    """Log what is wrong and stops nothing, a line each."""
    for error in errors:
        LOG.warning("%s", error.line)


class NamingFormatter(logging.Formatter):
    """Ends a line that tells of one of our errors with the error's name, as commands do."""

    def format(self, record: logging.LogRecord) -> str:
        """Write *record*; a traceback, where there is one, stays after the line."""
        given = record.args if isinstance(record.args, tuple) else ()
        names = [f" [{one.name}]" for one in given if isinstance(one, DfmetaError)]
        if not names:
            return super().format(record)
        named = copy.copy(record)
        named.msg, named.args = record.getMessage() + names[-1], None
        return super().format(named)


def set_up_logging(*, debug: bool) -> None:
    """Log from INFO on, or everything of ours."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(NamingFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    level = logging.DEBUG if debug else logging.INFO
    logging.basicConfig(handlers=[handler], level=level, force=True)
    # They log each message and each transaction, with its contents.
    loud = ("os_ken", "ofp_event", "ovsdbapp", "pyroute2", "asyncio", "alembic", "sqlalchemy")
    for name in (*loud, "keystoneauth", "urllib3", "stevedore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Five times a second for as long as OVSDB is away; dfmeta says so itself.
    logging.getLogger("ovsdbapp.backend.ovs_idl.idlutils").setLevel(logging.CRITICAL)
    # A line for each connection whose exception dfmeta handles itself, or ends with.
    logging.getLogger("os_ken.controller.controller").setLevel(logging.CRITICAL)
    logging.captureWarnings(True)
