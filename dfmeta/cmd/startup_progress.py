"""Reports a daemon's waiting at its start: log lines, and requests to systemd for more time."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Final

from dfmeta.cmd.fd_store import notify
from dfmeta.conf.haproxy import HAPROXY
from dfmeta.errors import StartError
from dfmeta.runtime import clock

LOG = logging.getLogger(__name__)

BEGIN: Final = 1.0
"""Seconds of waiting before the first log line."""
LINES: Final = 5.0
"""Seconds between two log lines."""
EXTENSION: Final = 60.0
"""Seconds that systemd is requested to wait for the next extension or for readiness."""


class Waiting:
    """Logs the reason of a wait.

    :param deadline: end of the wait, monotonic seconds.
    :param clock: monotonic seconds.
    """

    def __init__(self, deadline: float, *, clock: Callable[[], float] = clock.now) -> None:
        self._clock = clock
        self._begun = clock()
        self._deadline = deadline
        self._next = self._begun + BEGIN

    def say(self, why: Callable[[], str]) -> None:
        """Log a line if the next one is due, and request more time from systemd.

        systemd ends a service that is not ready after TimeoutStartSec= (90 s), regardless of
        ``startup_timeout``, unless the service requests more time (sd_notify(3),
        EXTEND_TIMEOUT_USEC=).

        :param why: returns the missing requirement in words.
        """
        now = self._clock()
        if now < self._next:
            return
        self._next = now + LINES
        notify(os.environ, f"EXTEND_TIMEOUT_USEC={EXTENSION * 1e6:.0f}")
        left = self._deadline - now
        ends = f"giving up in {left:.0f} s" if left > 0 else "still making progress"
        LOG.info("Waiting for %.0f s so far: %s; %s", now - self._begun, why(), ends)


def no_ovsdb(remote: str) -> StartError:
    """Return the error of a start without OVSDB: it does not answer, or the host is too slow."""
    return StartError(
        cause=f"no answer from OVSDB at {remote} has been read",
        remedy="Start Open vSwitch, or correct [df_metadata] ovsdb_connection; on a slow "
        "host, raise [df_metadata] startup_timeout",
    )


def no_bridge(bridge: str) -> StartError:
    """Return the error of a start without the integration bridge."""
    return StartError(
        cause=f"there is no bridge {bridge} in OVSDB",
        remedy="Create it, or correct [df_metadata] integration_bridge",
    )


def no_tap(tap: str, error: str) -> StartError:
    """Return the error of a start without tap-metadata.

    :param error: the cause.
    """
    return StartError(
        cause=f"{tap} is not ready: {error}",
        remedy="Check that ovs-vswitchd runs, and that the daemon has CAP_NET_ADMIN",
    )


def no_switch(bridge: str) -> StartError:
    """Return the error of a start without a switch that accepts flows."""
    return StartError(
        cause=f"the switch has not confirmed the flows of {bridge}",
        remedy="Check that ovs-vswitchd runs, that the bridge speaks OpenFlow13, and that "
        "[df_metadata] openflow_connection is correct",
    )


def no_engine(engine: str) -> StartError:
    """Return the error of a start at which no process has begun to answer guests."""
    if engine == HAPROXY:
        return StartError(
            cause="haproxy has not started",
            remedy="Read the log lines above, and check that [haproxy] user may run "
            "[haproxy] binary",
        )
    return StartError(
        cause="no worker of [df_metadata] proxy_workers has started",
        remedy="Read the log lines above, and check that proxy_worker_user may run Python",
    )
