"""Construction of the engine of attachments and of its API from the configuration."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network
from typing import Any, Final

import eventlet
from oslo_config import cfg

from dfmeta import hub
from dfmeta.attach.api import Api
from dfmeta.attach.engine import Engine
from dfmeta.attach.model import Network
from dfmeta.attach.records import Records
from dfmeta.attach.settings import Settings
from dfmeta.conf import attachments as options
from dfmeta.exceptions import AttachError, ConfigError
from dfmeta.model import Port, PortKind
from dfmeta.ports.attachments import LocalDriver
from dfmeta.proxy.attachments import Local
from dfmeta.proxy.rate import RateLimiter, RateSettings, Window
from dfmeta.proxy.tokens import AttachmentTokens
from dfmeta.quiet import Seldom
from dfmeta.registry import Registry
from dfmeta.store.db.attachments import Attachments
from dfmeta.store.db.database import Database
from dfmeta.wiring import neutron_client
from dfmeta.wiring.database import READERS, WRITERS

LOG = logging.getLogger("dfmeta.attachments")

TIDY: Final = 15.0
"""Seconds between two comparisons of the tables with the data plane."""
OTHER_REQUESTS: Final = 10
"""Requests of the API in a second, for each new attachment in a second."""
_KEY: Final = b"attachments"
_SEEDS: Final = b"records of containers"


class Attaching:
    """The engine and its API, in the daemon.

    :param key: the key that signs guests' tokens; the API signs with a key that is made of it.
    :raises ConfigError: when the database's URL cannot work.
    :raises StoreError: when the database cannot be opened.
    """

    def __init__(self, conf: cfg.ConfigOpts, registry: Registry, key: bytes) -> None:
        self._registry = registry
        self._networks = networks(conf)
        self._present: tuple[int, frozenset[str]] = (-1, frozenset())
        group = conf.df_metadata
        attachments = Attachments(_database(conf.attachments.connection))
        self.records = Records(attachments, self._networks, hmac.digest(key, _SEEDS, "sha256"))
        """The records of containers for the store."""
        self.engine = Engine(
            attachments,
            LocalDriver(group.ovsdb_connection, group.integration_bridge, self._networks),
            self._networks,
            settings(conf),
            host=neutron_client.host(conf),
            present=self._is_present,
        )
        self._rates = RateLimiter(_rates(conf))
        self._api = Api(
            self.engine,
            AttachmentTokens(hmac.digest(key, _KEY, "sha256")),
            self._networks,
            allow=options.allowed(conf.attachments),
            quota=conf.attachments.quota,
            wait=self._wait,
        )
        registry.subscribe(self._rates.forget)
        self.local = Local(self._api, registry)
        """The API for the application."""

    def run(self) -> None:
        """Bring tables and data plane together, now and then in an endless loop."""
        seldom = Seldom()
        step: Callable[[], None] = self.engine.resume
        while True:
            try:
                step()
            except AttachError as error:
                seldom.warn(LOG, "Attachments: %s", error.line)
            step = self.engine.tidy
            eventlet.sleep(TIDY)

    def reload(self, conf: cfg.ConfigOpts) -> None:
        """Apply the networks, ``allow``, ``quota`` and ``rate`` of another configuration."""
        now = networks(conf)
        # In place: engine and driver have the same object.
        for gone in self._networks.keys() - now.keys():
            del self._networks[gone]
        self._networks.update(now)
        self.engine.take(settings(conf))
        self._rates.settings = _rates(conf)
        self._api.allow = options.allowed(conf.attachments)
        self._api.quota = conf.attachments.quota

    def _wait(self, port: Port) -> int:
        endpoint = port.endpoint
        return self._rates.ask(endpoint, 4).retry_after if endpoint is not None else 0

    def _is_present(self, port_id: str) -> bool:
        version, there = self._present
        if version != self._registry.version:
            there = frozenset(
                one.iface_id
                for one in self._registry.ports()
                # The patch of a trunk stays when its VM ends, and has no instance then.
                if one.instance_id and one.kind is not PortKind.SUBPORT and not one.vid
            )
            self._present = (self._registry.version, there)
        return port_id in there


def networks(conf: cfg.ConfigOpts) -> dict[str, Network]:
    """Return the configured networks by name."""
    return {
        name: Network(
            name=name,
            subnet=IPv4Network(group.subnet),
            gateway=IPv4Address(group.gateway) if group.gateway else None,
            local_vlan=group.local_vlan,
            mtu=group.mtu,
            dns=tuple(group.dns),
        )
        for name, group in options.networks(conf).items()
    }


def settings(conf: cfg.ConfigOpts) -> Settings:
    """Return the limits of the engine."""
    group: Any = conf.attachments
    common = conf.df_metadata
    return Settings(
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


def _rates(conf: cfg.ConfigOpts) -> RateSettings:
    window = Window(max(1, round(conf.attachments.rate * OTHER_REQUESTS)), 1.0)
    return RateSettings(enabled=True, base=window, burst=window, delay_max=0.0, tolerated=0)


def _database(url: str) -> Database:
    kind = url.partition(":")[0].partition("+")[0]
    threads = hub.Threads(readers=READERS.get(kind, 1), writers=WRITERS.get(kind, 1))
    try:
        return Database(url, apart=threads)
    except ConfigError as error:
        raise ConfigError(**{**error.fields, "option": "[attachments] connection"}) from error
