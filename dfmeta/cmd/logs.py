"""How the daemon and its workers log: to stderr, one line each."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable

from dfmeta.exceptions import DfmetaError

LOG = logging.getLogger(__name__)


def warn(errors: Iterable[DfmetaError]) -> None:
    """Log what is wrong and stops nothing, a line each."""
    for error in errors:
        LOG.warning("%s", error.line)


def set_up_logging(*, debug: bool) -> None:
    """Log from INFO on, or everything of ours."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if debug else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        force=True,
    )
    # They log each message and each transaction, with its contents.
    loud = ("os_ken", "ofp_event", "ovsdbapp", "pyroute2", "asyncio", "alembic", "sqlalchemy")
    for name in (*loud, "keystoneauth", "urllib3", "stevedore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Five times a second for as long as OVSDB is away; dfmeta says so itself.
    logging.getLogger("ovsdbapp.backend.ovs_idl.idlutils").setLevel(logging.CRITICAL)
    logging.captureWarnings(True)
