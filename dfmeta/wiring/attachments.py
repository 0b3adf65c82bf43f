"""Construction of the engine of attachments and of its API from the configuration."""

import hmac
import logging
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Any, Final
from uuid import UUID

from oslo_config import cfg

from dfmeta.attach import api, choice, engine, records
from dfmeta.attach.drivers.local import LocalDriver
from dfmeta.attach.drivers.networks import Chosen, NeutronNetworks
from dfmeta.attach.drivers.neutron import NeutronDriver
from dfmeta.attach.drivers.wired import WiredPorts
from dfmeta.attach.model import AttachmentLimits, Network
from dfmeta.conf import attachments as options
from dfmeta.conf.metadata import keys_of
from dfmeta.errors import AttachDriverError, AttachError, ConfigError, DfmetaError
from dfmeta.identity.registry import Registry
from dfmeta.model import Endpoint, Port, PortKind
from dfmeta.neutron.client import NeutronTrunks
from dfmeta.ovsdb.idl import Ovsdb
from dfmeta.ovsdb.vswitchd import Vswitchd, run_folder
from dfmeta.proxy import rate, tokens
from dfmeta.proxy.attachments import LocalAttachments
from dfmeta.runtime import clock, threads
from dfmeta.runtime.throttle import FIRST_PAUSE, LogThrottle
from dfmeta.store.db.attachments import AttachmentTables
from dfmeta.store.db.database import Database
from dfmeta.wiring import services, store

LOG = logging.getLogger("dfmeta.attachments")

Confirm = Callable[[Endpoint, float], None]
OTHER_REQUESTS: Final = 10
"""Requests of the API in a second, for each new attachment in a second."""
_KEY: Final = b"attachments"
_SEEDS: Final = b"records of containers"


class AttachmentService:
    """The engine and its API, in the daemon.

    :param key: the key that signs guests' tokens; the API signs with a key that is made of it.
    :param confirm: waits until the switch has confirmed the flows of an endpoint, for so many
        seconds; raises DfmetaError if it has not.
    :param ovsdb: carries out transactions.
    :raises ConfigError: when the database's URL cannot work.
    :raises StoreError: when the database cannot be opened.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        registry: Registry,
        key: bytes,
        *,
        confirm: Confirm,
        ovsdb: Ovsdb,
    ) -> None:
        self._registry, self._confirm = registry, confirm
        self._settings, self._large = make_settings(conf), frozenset[str]()
        self._present: tuple[int, frozenset[str]] = (-1, frozenset())
        neutron = options.uses_neutron(conf)
        self._plane: _Local | _Neutron = (
            _Neutron(conf, ovsdb, self._parents)
            if neutron
            else _Local(conf, ovsdb, self._await_checks)
        )
        attachments = AttachmentTables(_open_database(conf.attachments.connection))
        self.records = records.ContainerRecords(
            attachments, self._plane.known, hmac.digest(key, _SEEDS, "sha256")
        )
        """The records of containers for the store."""
        self.engine = engine.AttachmentEngine(
            attachments,
            self._plane.driver,
            self._plane.networks,
            self._settings,
            host=services.neutron_host(conf),
            present=lambda port_id: port_id in self._parents(),
            name=str if neutron else engine.name_of_port,
            # Neutron takes longer for a single request.
            burst=FIRST_PAUSE if neutron else 0.0,
        )
        self._rates = rate.RateLimiter(_rates(conf))
        self._api = api.AttachmentApi(
            self.engine,
            tokens.AttachmentTokens(hmac.digest(key, _KEY, "sha256")),
            self._plane.networks,
            access=make_access(conf),
            quota=conf.attachments.quota,
            wait=self._wait,
            apart=threads.call_in_thread,
        )
        registry.subscribe(self._rates.forget)
        self.local = LocalAttachments(self._api, registry)
        """The API for the application."""

    def run(self) -> None:
        """Bring tables and data plane together, now and then in an endless loop."""
        seldom = LogThrottle()
        step: Callable[[], None] = self.engine.resume
        while True:
            self._plane.refresh()
            self._warn_of_large_shares()
            try:
                step()
            except AttachError as error:
                seldom.warn(LOG, "Attachments: %s", error.line)
            step = self.engine.tidy
            threads.sleep(clock.FULL_CHECK_INTERVAL)

    def reload(self, conf: cfg.ConfigOpts) -> None:
        """Apply the networks, ``allow``, ``quota`` and ``rate`` of another configuration."""
        self._plane.choose(conf)
        self._settings = make_settings(conf)
        self.engine.take(self._settings)
        self._rates.settings = _rates(conf)
        self._api.access = make_access(conf)
        self._api.quota = conf.attachments.quota

    def _warn_of_large_shares(self) -> None:
        """Log the networks of which one VM may take half, each once."""
        large = large_shares(self._plane.known.values(), self._settings)
        for name in sorted(large - self._large):
            LOG.warning(
                "one VM may take half of the addresses of the network %s: set quota in "
                "[attachment_network:%s]",
                *(name, name),
            )
        self._large = large

    def _wait(self, port: Port) -> int:
        endpoint = port.endpoint
        return self._rates.ask(endpoint, 4).retry_after if endpoint is not None else 0

    def _await_checks(self, names: Sequence[str]) -> None:
        """Wait until the switch checks the sources of ports' frames.

        :raises AttachDriverError: when it does not in time.
        """
        deadline = clock.now() + clock.ANSWER_TIMEOUT
        if not threads.wait_until(
            lambda: len(self._bound(names)) == len(names), clock.ANSWER_TIMEOUT
        ):
            raise AttachDriverError(cause="dfmeta-agent does not see the new ports")
        try:
            for endpoint in self._bound(names):
                self._confirm(endpoint, max(0.0, deadline - clock.now()))
        except DfmetaError as error:
            raise AttachDriverError(cause=f"the switch has no flows: {error}") from error

    def _bound(self, names: Sequence[str]) -> list[Endpoint]:
        """Return the endpoints of those ports whose flows check the sources."""
        wanted = frozenset(names)
        return [
            port.endpoint
            for port in self._registry.ports()
            if port.name in wanted and port.binding is not None and port.endpoint is not None
            if self._registry.port_at(port.endpoint) == port
        ]

    def _parents(self) -> frozenset[str]:
        """Return the iface-ids of the ports of this host's VMs."""
        version, iface_ids = self._present
        if version != self._registry.version:
            iface_ids = frozenset(
                port.iface_id
                for port in self._registry.ports()
                # The patch of a trunk stays when its VM ends, and has no instance then.
                if port.instance_id and port.kind is not PortKind.SUBPORT and not port.vid
            )
            self._present = (self._registry.version, iface_ids)
        return iface_ids


class _Local:
    """The driver ``local``, and the networks of the configuration; see :class:`_Neutron`."""

    def __init__(
        self, conf: cfg.ConfigOpts, ovsdb: Ovsdb, await_checks: Callable[[Sequence[str]], None]
    ) -> None:
        group = conf.df_metadata
        self.networks = self.known = make_networks(conf)
        keys = keys_of(conf)
        self.driver = LocalDriver(
            ovsdb,
            Vswitchd(run_folder(group.ovsdb_connection)),
            group.integration_bridge,
            self.networks,
            is_meta_mac=lambda mac: keys.labelled(mac) is not None,
            await_checks=await_checks,
        )

    def refresh(self) -> None:
        """Do nothing: the networks change with the configuration alone."""

    def choose(self, conf: cfg.ConfigOpts) -> None:
        """Take the networks of another configuration."""
        now = make_networks(conf)
        # In place: engine and driver have the same object.
        for gone in self.networks.keys() - now.keys():
            del self.networks[gone]
        self.networks.update(now)


class _Neutron:
    """The driver ``neutron``, and the networks of Neutron.

    :param parents: returns the iface-ids of the ports of this host's VMs.
    :raises ConfigError: when the account for Neutron is wrong.
    """

    def __init__(
        self, conf: cfg.ConfigOpts, ovsdb: Ovsdb, parents: Callable[[], frozenset[str]]
    ) -> None:
        group = conf.df_metadata
        self._trunks = NeutronTrunks(
            services.make_neutron_client(conf),
            host=services.neutron_host(conf),
            connect=conf.neutron.timeout,
        )
        self.networks = NeutronNetworks(self._trunks, make_chosen(conf))
        self.known = self.networks.known
        """The networks that are known now."""
        wired = WiredPorts(ovsdb, group.integration_bridge, self._trunks.statuses)
        self.driver = NeutronDriver(self._trunks, self.networks, wired, parents)

    def refresh(self) -> None:
        """Read the networks of Neutron, which may have changed. Does not raise."""
        self.networks.refresh()

    def choose(self, conf: cfg.ConfigOpts) -> None:
        """Take the networks of another configuration."""
        self.networks.choose(make_chosen(conf))


def make_chosen(conf: cfg.ConfigOpts) -> dict[str, Chosen]:
    """Return the configured networks of Neutron by name."""
    return {
        name: Chosen(
            network_id=_id(group.neutron_network),
            subnet_id=_id(group.neutron_subnet),
            groups=tuple(map(_id, group.security_groups)),
            quota=group.quota,
        )
        for name, group in options.networks(conf).items()
    }


def _id(text: str) -> str:
    """Return an id as Neutron writes it."""
    return str(UUID(text))


def make_networks(conf: cfg.ConfigOpts) -> dict[str, Network]:
    """Return the configured networks by name."""
    return {
        name: Network(
            name=name,
            subnet=IPv4Network(group.subnet),
            gateway=IPv4Address(group.gateway) if group.gateway else None,
            local_vlan=group.local_vlan,
            mtu=group.mtu,
            dns=tuple(group.dns),
            quota=group.quota,
        )
        for name, group in options.networks(conf).items()
    }


def make_access(conf: cfg.ConfigOpts) -> api.Access:
    """Return which VMs get attachments, and on which networks."""
    lists = {
        name: options.allowed(group)
        for name, group in options.networks(conf).items()
        if group.allow is not None
    }
    return api.Access(options.allowed(conf.attachments), lists)


def make_settings(conf: cfg.ConfigOpts) -> AttachmentLimits:
    """Return the limits of the engine."""
    group: Any = conf.attachments
    common = conf.df_metadata
    return AttachmentLimits(
        vids=options.vids(group),
        quota=group.quota,
        rate=group.rate,
        rest=group.rest,
        rest_unknown=group.rest_unknown,
        grace=group.grace,
        gc_min_age=group.gc_min_age,
        # Nova knows no instances of dfmeta.
        instances=common.backend == "store" and common.subport_identity == "own",
    )


def large_shares(networks: Iterable[Network], limits: AttachmentLimits) -> frozenset[str]:
    """Return the networks of which one VM may take half of the addresses."""
    most = min(limits.quota, len(limits.vids))
    return frozenset(
        network.name
        for network in networks
        if 2 * min(most, network.quota or most) >= choice.capacity(network)
    )


def _rates(conf: cfg.ConfigOpts) -> rate.RateSettings:
    window = rate.Window(max(1, round(conf.attachments.rate * OTHER_REQUESTS)), 1.0)
    return rate.RateSettings(enabled=True, base=window, burst=window, delay_max=0.0, tolerated=0)


def _open_database(url: str) -> Database:
    try:
        return Database(url, apart=store.make_threads(url))
    except ConfigError as error:
        raise ConfigError(**{**error.fields, "option": "[attachments] connection"}) from error
