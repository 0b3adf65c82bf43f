"""Logs the result of a SIGHUP."""

from __future__ import annotations

import logging

from dfmeta.conf.daemons import Changes


def tell(log: logging.Logger, changes: Changes) -> None:
    """Log which options have changed: one line for those in force, one for those not in force yet.

    Only names are logged, since a value may be a secret.
    """
    if changes.taken:
        log.info("Reloaded, with changed options: %s", ", ".join(changes.taken))
    else:
        log.info("Reloaded, and no option that can be reloaded has changed")
    if changes.waiting:
        log.warning(
            "Not changed until a restart, the values in force stay: %s", ", ".join(changes.waiting)
        )
