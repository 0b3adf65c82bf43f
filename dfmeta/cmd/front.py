"""Who answers guests: the daemon itself, or its workers; built from the configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from oslo_config import cfg
from prometheus_client import Metric

import dfmeta.conf
from dfmeta import metrics
from dfmeta.cmd import backends
from dfmeta.cmd.limits import limits, rates
from dfmeta.cmd.privileges import go_first
from dfmeta.proxy.complaints import Complaints
from dfmeta.proxy.desk import Desk
from dfmeta.proxy.rate import RateLimiter
from dfmeta.proxy.server import GuestServer
from dfmeta.proxy.tokens import Tokens, load_key
from dfmeta.proxy.workers import Workers
from dfmeta.proxy.wsgi import Application
from dfmeta.registry import Registry


class Front:
    """The proxy, whoever runs it.

    :raises StoreError, StartError: when what it needs cannot be opened.
    """

    def __init__(self, conf: cfg.ConfigOpts, registry: Registry) -> None:
        self._conf = conf
        self._registry = registry
        backend = backends.build(conf)
        self.backend_name = backend.name
        self._key = load_key(Path(conf.df_metadata.state_path))
        complaints = Complaints(logging.getLogger("dfmeta.proxy"))
        self._rates = RateLimiter(rates(conf))
        self._application = Application(
            registry,
            backend,
            backends.settings(conf),
            tokens=Tokens(self._key),
            rates=self._rates,
            complaints=complaints,
        )
        self._desk = Desk(backend, self._rates, complaints)
        self._server: GuestServer | Workers | None = None

    def serve(self, sock: Any) -> None:
        """Serve on *sock* from now on."""
        group = self._conf.df_metadata
        if group.proxy_workers:
            workers = self._server = Workers(
                sock,
                self._registry,
                count=group.proxy_workers,
                settings=self._settings,
                desk=self._desk,
                device=group.metadata_interface,
            )
            workers.start()
            go_first()
            return
        server = self._server = GuestServer(
            sock,
            group.metadata_interface,
            self._registry,
            self._application,
            hold_timeout=group.hold_timeout,
            limits=limits(self._conf),
        )
        server.start()

    def settle(self) -> None:
        """Wait until every process that answers knows what the registry knows."""
        if isinstance(self._server, Workers):
            self._server.settle()

    @property
    def serving(self) -> bool:
        """Whether guests are answered."""
        return not isinstance(self._server, Workers) or self._server.serving

    @property
    def listener(self) -> tuple[int, int] | None:
        """TCP port and inode of the listener, once it is served on."""
        return (self._server.port, self._server.inode) if self._server is not None else None

    def rebind(self) -> None:
        """Go on over the device, which has been made anew."""
        if self._server is not None:
            self._server.rebind()

    def stop(self, grace: float) -> None:
        """Accept no more, answer what is running, and close the rest after *grace* seconds."""
        if self._server is not None:
            self._server.stop(grace)

    def reload(self, conf: cfg.ConfigOpts, done: Callable[[], None]) -> None:
        """Take what can be taken from another configuration, or nothing of it.

        :param done: called when it is in force.
        :raises DfmetaError: when its backend cannot be built.
        """
        backend = backends.build(conf)
        self._conf = conf
        self._rates.settings = rates(conf)
        self._application.replace(backend, backends.settings(conf))
        self._desk.backend = backend
        if isinstance(self._server, Workers):
            self._server.replace(done)
            return
        if self._server is not None:
            self._server.hold_timeout = conf.df_metadata.hold_timeout
            self._server.limits = limits(conf)
        done()

    def collect(self) -> Iterable[Metric]:
        """Every metric, with what workers have counted."""
        if isinstance(self._server, Workers):
            return self._server.collect()
        return metrics.REGISTRY.collect()

    def gather(self) -> None:
        """Have what workers have noted of requests in :data:`~dfmeta.proxy.recent.RECENT`."""
        if isinstance(self._server, Workers):
            self._server.gather()

    def _settings(self) -> dict[str, Any]:
        options = dfmeta.conf.freeze(self._conf)
        # The daemon reads the store for them, and asks upstream.
        for module in dfmeta.conf.STORE:
            options["store"] |= {option.dest: "" for option in module.OPTS if option.secret}
        return {"options": options, "key": self._key.hex()}
