"""The proxy, built from the configuration: backend, application and engine."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oslo_config import cfg

import dfmeta.conf
from dfmeta.cmd import privileges, state_path
from dfmeta.conf import haproxy, store
from dfmeta.identity.registry import Registry
from dfmeta.model import Endpoint, Identity
from dfmeta.ovsdb.idl import Ovsdb
from dfmeta.proxy import application, rate, tokens
from dfmeta.proxy.backends import network_data, nova
from dfmeta.proxy.engines.engine import Engine, EngineSettings, InProcess
from dfmeta.proxy.engines.haproxy import engine, handover
from dfmeta.proxy.engines.workers import calls, workers
from dfmeta.runtime import hub, saved_state, throttle
from dfmeta.wiring import backends
from dfmeta.wiring.haproxy import make_setup

if TYPE_CHECKING:
    from dfmeta.attach.engine import AttachmentEngine as AttachEngine
    from dfmeta.wiring.attachments import AttachmentService


class Proxy:
    """The proxy, with either engine.

    :param drain_switch_messages: see :class:`~dfmeta.proxy.application.Application`.
    :param confirm, ovsdb: see :class:`~dfmeta.wiring.attachments.AttachmentService`.
    :raises StoreError, StartError: when a file or database that it needs cannot be opened.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        registry: Registry,
        *,
        ovsdb: Ovsdb,
        drain_switch_messages: Callable[[], object] = lambda: None,
        confirm: Callable[[Endpoint, float], None] = lambda _endpoint, _seconds: None,
    ) -> None:
        self._conf = conf
        self._registry = registry
        self._drain_switch_messages = drain_switch_messages
        self.key = state_path.TokenKey(Path(conf.df_metadata.state_path))
        self._tokens = tokens.Tokens(self.key.usable)
        self._attachments: AttachmentService | None = None
        if conf.attachments.enabled:
            # Imported only where it is needed: the import of SQLAlchemy takes a third of a second.
            from dfmeta.wiring.attachments import AttachmentService

            self._attachments = AttachmentService(
                conf, registry, self.key.value, confirm=confirm, ovsdb=ovsdb
            )
        backend = self._backend(conf)
        self.backend_name = backend.name
        local = self._attachments.local if self._attachments is not None else None
        complaints = throttle.Complaints(logging.getLogger("dfmeta.proxy"))
        self._rates = rate.RateLimiter(backends.make_rates(conf))
        self._application = application.Application(
            registry,
            backend,
            backends.make_app_settings(conf),
            tokens=self._tokens,
            rates=self._rates,
            complaints=complaints,
            attachments=local,
            drain_switch_messages=drain_switch_messages,
        )
        self._answers = calls.WorkerAnswers(backend, self._subports, self._rates, complaints, local)
        self.engine: Engine | None = None
        """The engine that answers guests; None before :meth:`serve`."""
        self._haproxy: engine.Haproxy | None = None
        self._setup: engine.Setup | None = None
        """The part of the configuration in force that haproxy's depends on; None: another engine.
        Made now, so that a wrong program ends the start before the host is changed."""
        if conf.df_metadata.engine == haproxy.HAPROXY:
            self._setup = make_setup(conf, registry)
        self.listeners: saved_state.Listeners | None = None
        """The listening sockets; None before :meth:`serve`."""

    def serve(self, sockets: Mapping[int, Any]) -> Engine:
        """Begin to serve; return the engine.

        :param sockets: version of IP → listening socket; 4 is always there.
        """
        inodes = {version: os.fstat(sock.fileno()).st_ino for version, sock in sockets.items()}
        port = int(sockets[4].getsockname()[1])
        self.listeners = saved_state.Listeners(port, inodes[4], inodes.get(6, 0))
        self.engine = self._build(list(sockets.values()))
        self.engine.start()
        self.key.follow(self._use_key)
        if self._attachments is not None:
            hub.VITAL.spawn("attachments", self._attachments.run)
        if self._conf.df_metadata.proxy_workers:
            privileges.go_first()
        return self.engine

    def _use_key(self) -> None:
        """Issue tokens from now on; workers get the key as their successors do at a reload."""
        self._tokens.key = self.key.usable
        if self.engine is not None and self._conf.df_metadata.proxy_workers:
            self.engine.reload(self._terms(), lambda: None)

    def _build(self, sockets: list[Any]) -> Engine:
        group, terms = self._conf.df_metadata, self._terms()
        if group.engine == haproxy.HAPROXY:
            self._haproxy = self._make_haproxy(sockets, terms)
            return self._haproxy
        if group.proxy_workers:
            return workers.Workers(
                sockets,
                self._registry,
                count=group.proxy_workers,
                settings=self._settings,
                answers=self._answers,
                device=group.metadata_interface,
                drain_switch_messages=self._drain_switch_messages,
            )
        server = application.guest_server(
            sockets,
            self._registry,
            self._application.answer,
            device=group.metadata_interface,
            limits=terms.limits,
            hold_timeout=terms.hold_timeout,
        )
        return InProcess(server)

    def _make_haproxy(self, sockets: list[Any], terms: EngineSettings) -> engine.Haproxy:
        setup = self._setup or make_setup(self._conf, self._registry)
        # A disk may be full; the other place is in memory.
        entrance = handover.listen(self._conf.df_metadata.state_path, "/dev/shm")  # noqa: S108
        return engine.Haproxy(
            sockets,
            self._registry,
            handover=lambda peers: handover.handover_server(
                entrance.listener,
                self._registry,
                self._application.answer,
                peers=peers,
                hold_timeout=terms.hold_timeout,
                limits=terms.limits,
            ),
            entrance=entrance.descriptor,
            setup=lambda: self._setup or setup,
            remark=lambda claim, status: self._application.report_fault(
                claim, status, nova.explain_status(status)
            ),
        )

    def reload(self, conf: cfg.ConfigOpts, done: Callable[[], None]) -> None:
        """Apply the options of another configuration that can change without a restart.

        :param done: called when the new configuration is in force.
        :raises DfmetaError: when its backend cannot be built; nothing is changed then.
        """
        backend = self._backend(conf)
        if self._haproxy is not None:
            self._setup = make_setup(conf, self._registry)
        self._conf = conf
        self._rates.settings = backends.make_rates(conf)
        self._application.replace(backend, backends.make_app_settings(conf))
        self._answers.backend = backend
        if self._attachments is not None:
            self._attachments.reload(conf)
        if self.engine is None:
            done()
        else:
            self.engine.reload(self._terms(), done)

    def report(self, *, thorough: bool = True) -> dict[str, Any] | None:
        """See :meth:`~dfmeta.proxy.engines.haproxy.engine.Haproxy.report`; None with another
        engine."""
        return None if self._haproxy is None else self._haproxy.report(thorough=thorough)

    @property
    def attachments(self) -> AttachEngine | None:
        """The engine of attachments; None: they are off."""
        return None if self._attachments is None else self._attachments.engine

    def _backend(self, conf: cfg.ConfigOpts) -> application.Backend:
        containers = self._attachments.records.get if self._attachments is not None else None
        return backends.with_subports(
            conf,
            backends.make_backend(conf, containers),
            lambda identity, _deadline: self._subports(identity),
        )

    def _subports(self, identity: Identity) -> list[network_data.Vlan]:
        return network_data.subport_vlans(self._registry, identity)

    def _terms(self) -> EngineSettings:
        return EngineSettings(self._conf.df_metadata.hold_timeout, backends.make_limits(self._conf))

    def _settings(self) -> dict[str, Any]:
        options = dfmeta.conf.freeze(self._conf)
        # Workers get no secrets of the store: the daemon queries store and upstream for them.
        options["store"] |= {option.dest: "" for option in store.OPTS if option.secret}
        options["attachments"]["connection"] = ""
        return {"options": options, "key": self.key.usable.hex()}
