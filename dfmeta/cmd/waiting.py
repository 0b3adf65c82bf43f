"""A daemon's waiting at its start: the lines of its log, and more time from systemd."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Final

from dfmeta.cmd.keeping import notify
from dfmeta.exceptions import StartError

LOG = logging.getLogger(__name__)

BEGIN: Final = 1.0
"""Seconds of waiting that nobody has to know of."""
LINES: Final = 5.0
"""Seconds between two lines."""
EXTENSION: Final = 60.0
"""Seconds that systemd is asked to wait for the next line, or for readiness."""


class Waiting:
    """Says what is waited for.

    :param deadline: when it ends, monotonic seconds.
    :param clock: monotonic seconds.
    """

    def __init__(self, deadline: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = clock()
        self._deadline = deadline
        self._next = self._begun + BEGIN

    def say(self, why: Callable[[], str]) -> None:
        """Log a line, if it is time.

        systemd ends a service that is not ready after TimeoutStartSec= (90 s), however long
        ``startup_timeout`` is, unless it is asked for more time (sd_notify(3),
        EXTEND_TIMEOUT_USEC=).

        :param why: what is missing, for people.
        """
        now = self._clock()
        if now < self._next:
            return
        self._next = now + LINES
        notify(os.environ, f"EXTEND_TIMEOUT_USEC={EXTENSION * 1e6:.0f}")
        left = self._deadline - now
        ends = f"giving up in {left:.0f} s" if left > 0 else "it is at work, and waited for"
        LOG.info("Waiting for %.0f s: %s; %s", now - self._begun, why(), ends)


def no_ovsdb(remote: str) -> StartError:
    """Return the error of a start without OVSDB: it is away, or the host too slow to read it."""
    return StartError(
        cause=f"no answer of OVSDB at {remote} has been read",
        remedy="Start Open vSwitch, or mend [df_metadata] ovsdb_connection; on a slow "
        "host, raise [df_metadata] startup_timeout",
    )


def no_bridge(bridge: str) -> StartError:
    """Return the error of a start without the integration bridge."""
    return StartError(
        cause=f"there is no bridge {bridge} in OVSDB",
        remedy="Make it, or mend [df_metadata] integration_bridge",
    )


def no_tap(tap: str, error: str) -> StartError:
    """Return the error of a start without tap-metadata.

    :param error: why it does not come up.
    """
    return StartError(
        cause=f"{tap} does not come up: {error}",
        remedy="See that ovs-vswitchd runs, and that the daemon has CAP_NET_ADMIN",
    )


def no_switch(bridge: str) -> StartError:
    """Return the error of a start without a switch that takes flows."""
    return StartError(
        cause=f"the switch has not confirmed the flows of {bridge}",
        remedy="See that ovs-vswitchd runs, that the bridge speaks OpenFlow13, and "
        "[df_metadata] openflow_connection",
    )


def no_workers() -> StartError:
    """Return the error of a start without a worker."""
    return StartError(
        cause="no worker of [df_metadata] proxy_workers comes up",
        remedy="See what it says above, and that proxy_worker_user may run Python",
    )
