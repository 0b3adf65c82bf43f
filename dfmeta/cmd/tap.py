"""Creates and maintains tap-metadata: port, device, addresses and listeners."""

import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any

from dfmeta.apps.controller import Controller
from dfmeta.cmd import keepers, listeners
from dfmeta.errors import DfmetaError, HostError, StartError
from dfmeta.flows import integration_bridge, meta_bridge
from dfmeta.flows.family import IPV4, IPV6, Family
from dfmeta.host import changes, device
from dfmeta.host.netlink import WantedSide
from dfmeta.host.sides import HostSides
from dfmeta.identity.key import IN_PORT, Keys, MetaKeys
from dfmeta.model import TAP_MAC, MetaNames
from dfmeta.ovsdb import bridge_reader, external_ids
from dfmeta.ovsdb.watcher import OvsdbWatcher
from dfmeta.runtime import clock, threads, throttle
from dfmeta.runtime.clock import CHECK_INTERVAL, FULL_CHECK_INTERVAL
from dfmeta.runtime.saved_state import HostMemory, SavedState

LOG = logging.getLogger(__name__)

NOT_THERE = "it is not in OVSDB yet"


class TapKeeper:
    """Brings tap-metadata into its configured state and keeps it there.

    :param group: the options ``[df_metadata]``.
    :param state: has the TCP port of the previous run, and records changes of the host.
    :param keeper: keeps the listeners during a restart.
    :param keys: the key scheme.
    :param meta: names of the second bridge, on which the device is a port; None: there is none.
    :param vlan: VLAN id of answers on the second bridge.
    :param made_anew: called when the device has been created again, before a frame arrives on it.
    """

    def __init__(
        self,
        group: Any,
        state: SavedState,
        keeper: keepers.Keeper,
        *,
        keys: Keys = IN_PORT,
        meta: MetaNames | None = None,
        vlan: int = 0,
        made_anew: Callable[[], object] = lambda: None,
    ) -> None:
        self._group = group
        self._keys, self._meta, self._vlan = keys, meta, vlan
        self._state = state
        self.listeners = listeners.GuestListeners(group, state, keeper)
        self._guest_ip6 = tuple(str(IPv6Address(text)) for text in group.ip6)
        self._host_ip6 = str(IPv6Address(group.host_ip6)) if group.ip6 else ""
        wanted = wanted_side(group, IPV4, keys, meta)
        self.host = HostSides(wanted, wanted_side(group, IPV6, keys, meta) if group.ip6 else None)
        self._family = wanted.family
        self._made_anew = made_anew
        self.in_place = False
        self.last_error = NOT_THERE
        self._next_look = self._next_full_look = 0.0
        self._known = False
        """Whether the host's side has been in place. From then on only the reports of the kernel
        count, until the port is missing."""
        self._number_due: float | None = None
        """Time of the next request for the missing numbers of ports; None: none is missing."""
        self._changes = changes.KernelChanges(wanted.route_table)
        self._made: set[str] = set()
        """Objects that this process has created or changed: "port", "arp_ignore"."""

    @property
    def fault(self) -> str:
        """Return the fault of the device; empty when there is none."""
        return "" if self.in_place else f"{self._group.metadata_interface}: {self.last_error}"

    def listen_early(self) -> None:
        """Open the listeners if the device exists from an earlier run.

        Flows of that run already lead guests to them.
        """
        if not self._present():
            return
        try:
            # Before the device is up, so that no connection is refused.
            self.listeners.open_now()
            self._changes.take(self._follow())
            self._ensure_host()
        except (HostError, StartError, OSError) as error:
            LOG.debug("Not listening yet: %s", error)

    def recheck(self) -> None:
        """Make the next :meth:`ensure` check at once whether the kernel reports a change.

        Without one the host's side is not read: that takes longer than a request, and OVSDB reports
        each guest that comes or goes.
        """
        self._next_look = 0.0

    def _present(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(socket.if_nametoindex(self._group.metadata_interface))
        return False

    def ensure(self, watcher: OvsdbWatcher, update: bridge_reader.Update) -> bool:
        """Check port, device, address, rules and route, and create those that are missing.

        :return: whether all are in place.
        :raises DfmetaError: when OVSDB or the kernel refuses.
        """
        if not update.connected or update.bridge is None:
            return self.in_place
        if not self._is_sound(update):
            self.last_error = NOT_THERE
            self.in_place = self._known = False
            self._ensure_port(watcher, update)
            return False
        if not self._has_numbers(update):
            self.last_error = "Open vSwitch has not given it a port number"
            self.in_place = self._known = False
            self._ask_for_numbers(watcher)
            return False
        self._number_due = None
        if self.in_place and clock.now() < self._next_look:
            return True
        self._next_look = clock.now() + CHECK_INTERVAL
        try:
            self._put_in_place()
        except HostError:
            self.in_place = False
            raise
        # Not set earlier, and not cleared during a check: other greenthreads wait for it.
        self.in_place = True
        return True

    def _is_sound(self, update: bridge_reader.Update) -> bool:
        """Return whether OVSDB has the device's port, and the second bridge, as they should be."""
        if self._meta is None:
            return update.tap is not None and update.tap.sound
        return update.meta is not None and update.meta.sound

    def _has_numbers(self, update: bridge_reader.Update) -> bool:
        """Return whether Open vSwitch has given the ports their numbers, and the device its MAC."""
        if self._meta is None:
            return update.tap is not None and bool(update.tap.ofport and update.tap.mac)
        rows = update.meta
        return rows is not None and bool(
            rows.tap and rows.tap_mac and rows.patch_int and rows.patch_meta
        )

    def _ensure_port(self, watcher: OvsdbWatcher, update: bridge_reader.Update) -> None:
        if self._meta is not None:
            watcher.ensure_meta(self._meta)
            if update.meta is None or not update.meta.tap_mac:
                self._made.add("port")
            return
        watcher.ensure_tap()
        if update.tap is None:
            self._made.add("port")

    def _ask_for_numbers(self, watcher: OvsdbWatcher) -> None:
        """Let Open vSwitch report the numbers again when they have been missing for a while."""
        now = clock.now()
        if self._number_due is not None and now >= self._number_due:
            LOG.debug("%s; asking for it again", self.fault)
            watcher.reconfigure()
        elif self._number_due is not None:
            return
        self._number_due = now + throttle.LONGEST_PAUSE

    def _put_in_place(self) -> None:
        # Before the device has an address, so that no packet arrives without a listener.
        index = self._follow()
        # Taken before the check, so that a change during the check causes another one.
        changed = self._changes.take(index)
        done, wanting = self.host.look()
        if changed or wanting or not self._known or clock.now() >= self._next_full_look:
            done += self._ensure_host()
        if device.disable_tx_checksum(self._group.metadata_interface):
            done.append("TX checksum offload off")
        before = device.raise_arp_ignore() if self._family.arp else None
        if before is not None:
            self._state.arp_ignore = before
            self._made.add("arp_ignore")
            done.append(f"arp_ignore {device.RAISED} for all devices (it was {before})")
        self._log_done(done)

    def follow_rules(self) -> None:
        """Keep the routing rules before others', in an endless loop; run it in its own greenthread.

        The rule of a VPN takes answers to guests until dfmeta's rules have moved, and
        :meth:`ensure` may be late by a second.
        """
        while True:
            try:
                with closing(changes.NewRules()) as rules:
                    while True:
                        threads.wait_for_io(rules.fileno(), read=True)
                        rules.take()
                        self._lead()
            except OSError as error:
                LOG.debug("New routing rules are noticed late: %s", error)
                threads.sleep(FULL_CHECK_INTERVAL)

    def _lead(self) -> None:
        if not self._known:
            return
        try:
            self._log_done(self.host.lead())
        except HostError as error:
            LOG.debug("The routing rules are checked again later: %s", error)

    def _log_done(self, done: Sequence[str]) -> None:
        if done:
            LOG.info("Configured %s: %s", self._group.metadata_interface, ", ".join(done))

    def _ensure_host(self) -> list[str]:
        """Put the host's side in place, and return a description of each change."""
        self._known = False
        done = self.host.ensure()
        self._known = True
        self._next_full_look = clock.now() + FULL_CHECK_INTERVAL
        return done

    def remove_former(self, watcher: OvsdbWatcher) -> None:
        """Remove objects that the previous run created for another device, address or table.

        No flow of that run is left.
        """
        self.listeners.close_former()
        group, former = self._group, self._state.host
        address = str(group.host_ip)
        name, table = group.metadata_interface, group.route_table
        now = HostMemory(name, address, table, self._host_ip6, *self._networks())
        if former is None or former == now:
            self._state.host = now
            return
        wanted = _of_former(former, former.address, IPV4, former.network)
        try:
            wanted6 = _of_former(former, former.address6, IPV6, former.network6)
            done = self.host.remove_former(wanted, wanted6)
            has_meta_ips = bool(former.network)
            if former.device != now.device or has_meta_ips != (self._meta is not None):
                done += self._remove_port(watcher, former.device, has_meta_ips=has_meta_ips)
        except DfmetaError as error:
            # The next start tries again, and so does --cleanup.
            LOG.warning("Leftovers of the former configuration could not be removed: %s", error)
            return
        self._state.host = now
        if done:
            LOG.info("Removed leftovers of the former configuration: %s", ", ".join(done))

    def _networks(self) -> tuple[str, str]:
        """Return the networks of the routes in the main table; empty where there is none."""
        if self._meta is None:
            return "", ""
        six = str(self._keys.network(6)) if self._host_ip6 else ""
        return str(self._keys.network(4)), six

    def _remove_port(self, watcher: OvsdbWatcher, name: str, *, has_meta_ips: bool) -> list[str]:
        """Remove a device's port, or the second bridge with its ports and the Meta IPs in OVSDB.

        :return: a description of each removed object.
        :raises OvsdbError: when OVSDB refuses.
        """
        if has_meta_ips:
            watcher.remove_keys(external_ids.META_KEYS)
            return [f"port {port}" for port in watcher.remove_meta()]
        return [f"port {port}" for port in watcher.remove_taps(name)]

    def undo(self, watcher: OvsdbWatcher, controller: Controller) -> None:
        """Remove everything that a failed start has created, and nothing that existed before.

        A port that existed before may serve guests through flows and listener of an earlier run.
        """
        done = []
        try:
            if "port" in self._made:
                controller.withdraw()
            self.listeners.undo()
            done += self.host.undo()
            before = self._state.arp_ignore
            if "arp_ignore" in self._made and before is not None:
                device.restore_arp_ignore(before)
                self._state.arp_ignore = None
                done.append("arp_ignore")
            if "port" in self._made:
                name, has_meta_ips = self._group.metadata_interface, self._meta is not None
                done += self._remove_port(watcher, name, has_meta_ips=has_meta_ips)
        except DfmetaError as error:
            LOG.warning("Some changes of this failed start could not be removed: %s", error)
        if done:
            LOG.info("Removed the changes of this failed start: %s", ", ".join(done))

    def _follow(self) -> int:
        """Attach listeners and connections to the current device.

        :return: its index.
        :raises HostError: when the kernel refuses.
        """
        name = self._group.metadata_interface
        try:
            index, anew = self.listeners.follow()
            if anew:
                self._made_anew()
                LOG.info("%s was created again; listening on it", name)
        except OSError as error:
            raise HostError(what="listening", device=name, cause=error.strerror or error) from error
        return index

    def flow_target(self, update: bridge_reader.Update, sock: Any) -> integration_bridge.Tap | None:
        """Return the target of the flows; None while the port does not exist.

        With a second bridge, that is the patch port that leads there.
        """
        if not self._has_numbers(update):
            return None
        serves_ipv6 = self._serves_ipv6
        ofport, mac = 0, TAP_MAC
        if update.meta is not None:
            ofport = update.meta.patch_int or 0
        elif update.tap is not None:
            ofport, mac = update.tap.ofport or 0, update.tap.mac
        return integration_bridge.Tap(
            ofport=ofport,
            mac=mac,
            port=int(sock.getsockname()[1]),
            ip=self._group.host_ip,
            guest_ip=self._group.ip,
            ip6=self._host_ip6 if serves_ipv6 else "",
            guest_ip6=self._guest_ip6 if serves_ipv6 else (),
            keys=self._keys,
        )

    @property
    def _serves_ipv6(self) -> bool:
        return self.host.serves_ipv6 and 6 in self.listeners.sockets

    def meta_tap(self, update: bridge_reader.Update, sock: Any) -> meta_bridge.MetaTap | None:
        """Return the target of the flows of the second bridge; None while a port is missing."""
        rows = update.meta
        if rows is None or not self._has_numbers(update) or not isinstance(self._keys, MetaKeys):
            return None
        return meta_bridge.MetaTap(
            ofport=rows.tap or 0,
            patch=rows.patch_meta or 0,
            mac=rows.tap_mac,
            port=int(sock.getsockname()[1]),
            vlan=self._vlan,
            guest_ip=self._group.ip,
            keys=self._keys,
            guest_ip6=self._guest_ip6 if self._serves_ipv6 else (),
        )


def wanted_side(
    group: Any, family: Family, keys: Keys, meta: MetaNames | None, *, device: str = ""
) -> WantedSide:
    """Return the configured state of the host's side for one version of IP.

    :param group: the options ``[df_metadata]``.
    :param device: name of the device; empty: that of the options.
    """
    network = keys.network(family.version)
    return WantedSide(
        device or group.metadata_interface,
        ip_address(group.host_ip if family is IPV4 else group.host_ip6),
        group.route_table,
        family,
        keys.next_hop(family.version),
        network if meta is not None else None,
        network,
    )


def _of_former(former: HostMemory, address: str, family: Family, network: str) -> WantedSide | None:
    """Return one side of a former configuration; None for an empty address.

    Its next hop does not matter: the removal of a route does not need it.
    """
    if not address:
        return None
    return WantedSide(
        former.device,
        ip_address(address),
        former.table,
        family,
        IN_PORT.next_hop(family.version),
        ip_network(network) if network else None,
    )
