"""The faults that keep the daemon from serving, at its start and later, with their remedies."""

import logging
import os
import shlex
from collections.abc import Callable, Sequence
from typing import Any, Final

from dfmeta.apps.probe import Probe
from dfmeta.cmd import keepers, service
from dfmeta.conf import haproxy, metadata
from dfmeta.doctor.checks_switch import CLEAR_RESTORE_WAIT, FORWARDS_NOTHING, set_secure
from dfmeta.errors import AlreadyRunningError, DfmetaError, StartError
from dfmeta.ovsdb import meta_bridge, rows
from dfmeta.runtime import clock
from dfmeta.runtime.clock import CHECK_INTERVAL
from dfmeta.runtime.throttle import PROGRESS
from dfmeta.wiring.process import BridgeLock

LOG = logging.getLogger(__name__)

EXTENSION: Final = 60.0
"""Seconds that systemd is requested to wait for the next extension or for readiness."""


class StartupProgress:
    """Reports a wait at the start: log lines, and requests to systemd for more time.

    :param deadline: end of the wait, monotonic seconds.
    :param clock: monotonic seconds.
    """

    def __init__(self, deadline: float, *, clock: Callable[[], float] = clock.now) -> None:
        self._clock = clock
        self._begun = clock()
        self._deadline = deadline
        self._next = self._begun + CHECK_INTERVAL

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
        self._next = now + PROGRESS
        left, cause = self._deadline - now, why()
        status = service.status_message(f"Waiting: {cause}")
        keepers.notify(os.environ, f"EXTEND_TIMEOUT_USEC={EXTENSION * 1e6:.0f}\n{status}")
        ends = f"giving up in {left:.0f} s" if left > 0 else "still making progress"
        LOG.info("Waiting for %.0f s so far: %s; %s", now - self._begun, cause, ends)


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
    if engine == haproxy.HAPROXY:
        return StartError(
            cause="haproxy has not started",
            remedy="Read the log lines above, and check that [haproxy] user may run "
            "[haproxy] binary",
        )
    return StartError(
        cause="no worker of [df_metadata] proxy_workers has started",
        remedy="Read the log lines above, and check that proxy_worker_user may run Python",
    )


def refuse_elsewhere(error: DfmetaError, group: Any, argv: Sequence[str]) -> None:
    """End the start if *error* means that a port of dfmeta is on another bridge: waiting does not
    help.

    The port is not moved, since dfmeta's flows would stay on the other bridge and lead
    nowhere.

    :param group: the options ``[df_metadata]``.
    :param argv: arguments of the daemon.
    :raises StartError: names the bridge, and the command that removes dfmeta's leftovers there.
    """
    tap = error.__cause__
    if not isinstance(tap, meta_bridge.TapElsewhereError):
        return
    where = f"{tap.tap} is a port of {tap.bridge}"
    has_meta_ips = group.identity_scheme == metadata.META_IP
    owner = tap.owner or tap.bridge
    # The daemon itself holds the lock on its own bridge.
    if owner != group.integration_bridge and _is_served(group.ovsdb_connection, owner):
        names = "metadata_interface, host_ip, host_ip6, route_table and admin_listen"
        in_port = "identity_scheme = in_port and " if has_meta_ips else ""
        raise StartError(
            cause=f"{where}, which another dfmeta-agent serves",
            remedy=f"Stop that daemon, or give this one {in_port}its own [df_metadata] {names}",
        ) from error
    if tap.owner is None:
        remedy = f"Delete the port: ovs-vsctl del-port {tap.bridge} {tap.tap}"
        if not has_meta_ips or tap.tap != metadata.TAP:  # no option names tap-meta
            option = "meta_bridge" if has_meta_ips else "metadata_interface"
            remedy = f"Set another [df_metadata] {option}, or d{remedy[1:]}"
        raise StartError(cause=f"{where}, and dfmeta did not create it", remedy=remedy) from error
    command = shlex.join(["dfmeta-agent", *argv, "--cleanup"])
    raise StartError(
        cause=f"{where}, which dfmeta has served before, and [df_metadata] integration_bridge is "
        f"{group.integration_bridge} now",
        remedy=f"Remove dfmeta's leftovers from {tap.owner}: "
        f"OS_DF_METADATA__INTEGRATION_BRIDGE={shlex.quote(tap.owner)} {command}",
    ) from error


def _is_served(ovsdb_connection: str, bridge: str) -> bool:
    try:
        with BridgeLock(ovsdb_connection, bridge):
            return False
    except AlreadyRunningError:
        return True


def path_fault(bridge: rows.Bridge | None, probe: Probe) -> str:
    """Return why guests' SYNs do not reach the proxy, as far as OVSDB and the probe show it."""
    if bridge is None or not bridge.fails_open:
        return probe.fault()
    name = probe.bridge
    return (
        f"no controller of {name} is connected, and without fail_mode secure Open vSwitch's own "
        f"flow takes all packets then: {set_secure(name)}; {service.DOCTOR}"
    )


def make_reasons(group: Any, fault: Callable[[], str]) -> dict[str, Callable[[], str]]:
    """Return the functions that explain missing parts of the agent.

    :param group: the options ``[df_metadata]``.
    :param fault: returns the fault of tap-metadata; empty when there is none.
    """
    bridge, refused = group.integration_bridge, "guests' connections are not accepted"
    flows = (
        f"the switch has not confirmed the flows of {bridge}. Check that ovs-vswitchd runs and "
        f"answers: ovs-ofctl -O OpenFlow13 show {bridge}"
    )
    return {
        "flow-restore-wait": lambda: f"{FORWARDS_NOTHING}: {CLEAR_RESTORE_WAIT}",
        "ovsdb": lambda: f"{group.ovsdb_connection} does not answer. Check that ovsdb-server runs",
        "bridge": lambda: f"OVSDB has no bridge {bridge}. Create it: ovs-vsctl add-br {bridge}",
        # Without the device, flows have no target.
        "flows": lambda: fault() or flows,
        "proxy": lambda: f"{fault() or refused}; {service.DOCTOR}",
    }
