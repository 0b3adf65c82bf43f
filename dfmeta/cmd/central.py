"""The central store, one service for many hosts: no switch, no guests' ports, no privileges.

It has two listeners: one for guests (``[store] guest_listen``), which identifies them by their
address, and the admin listener.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from oslo_config import cfg

import dfmeta.conf
from dfmeta import errors, metrics
from dfmeta.admin import history, status
from dfmeta.admin import listener as admin
from dfmeta.admin.server import AdminServer
from dfmeta.cmd import keepers, state_path, status_page
from dfmeta.cmd.service import (
    Signals,
    log_readiness,
    report_ready,
    reported_reload,
    run_service,
)
from dfmeta.conf import unknown_options, values
from dfmeta.http.sockets import keep_room, listen_to_all
from dfmeta.proxy import addresses, rate
from dfmeta.proxy.application import Application, AppSettings, guest_server
from dfmeta.proxy.tokens import Tokens
from dfmeta.runtime import clock, hub, threads, throttle
from dfmeta.store.db.record import parse_network
from dfmeta.store.db.repository import Repository
from dfmeta.store.guest import dialects, requests
from dfmeta.wiring import process, store
from dfmeta.wiring.backends import make_answer_settings, make_app_settings, make_limits, make_rates
from dfmeta.wiring.logs import set_up_logging

LOG = logging.getLogger("dfmeta.store")

PROG = "dfmeta-store"


def run(argv: Sequence[str]) -> int:
    """Run ``dfmeta-store``; return its exit status: 0, 2, or 1 for an error in dfmeta."""

    def start() -> int:
        conf = _load(argv)
        set_up_logging(debug=conf.debug, use_json=conf.use_json)
        process.warn(unknown_options(conf))
        return Central(conf, argv).run()

    return run_service(PROG, start)


class Central:
    """The parts of the central store.

    :raises DfmetaError: for an error that only an operator can fix.
    """

    def __init__(self, conf: cfg.ConfigOpts, argv: Sequence[str]) -> None:
        self.conf = conf
        self._argv = list(argv)
        self._health = hub.Health()
        self._api = store.StoreApi(conf)
        self._repository: Repository | None = None
        self._guests: Guests | None = None
        self._admin: AdminServer | None = None
        self._history = history.History(metrics.REGISTRY.collect)
        self._bell = hub.Bell()
        """Rung when the main loop has something to do."""
        self._signals = Signals(self._bell)
        self._refused = ""
        """Why the last reload was refused, for the status; empty: it was not."""

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; return the exit status.

        :raises DfmetaError: when it cannot start, or when a required thread has ended.
        """
        self._signals.start()
        LOG.info("%s %s starts", PROG, version("dfmeta"))
        self._start_admin()
        # In its own greenthread, so that signals still work while the database does not answer.
        starting = threads.spawn(self._try_to_start)
        starting.link(lambda _thread: self._bell.ring())
        try:
            while not self._signals.ending:
                self._bell.wait(clock.CHECK_INTERVAL)
                hub.VITAL.check()
                self._history.look()
                if starting.dead and (error := starting.wait()) is not None:
                    raise error
                if self._repository is not None and self._signals.take_reload():
                    with reported_reload():
                        self._reload()
        finally:
            self._stop()
        return 0

    def _start_admin(self) -> None:
        self._health.watch("threads", lambda: hub.VITAL.alive)
        self._health.watch("store", lambda: not self._store_fault())
        self._health.watch("disk", lambda: not self._disk_fault())
        if self.conf.store.guest_listen:
            self._health.watch("proxy", lambda: self._guests is not None)
        application = admin.AdminApplication(
            self._health, metrics.REGISTRY.collect, {}, api=self._api, page=self._make_page()
        )
        place = self.conf.df_metadata.admin_listen
        sock = keepers.activated(f"{PROG}-admin", keepers.ADMIN_OPTION, place=place)
        self._admin = admin.serve(place, application, sock=sock)

    def _make_page(self) -> status.StatusPage:
        sources = status_page.Sources(
            program=PROG,
            health=self._health,
            history=self._history,
            facts=lambda: status_page.facts_of_store(
                self.conf, status_page.count_records(self._repository)
            ),
            failures=lambda _rows: status_page.failures_of_addresses(),
        )
        return status_page.page(self.conf.df_metadata.admin_listen, sources)

    def _try_to_start(self) -> errors.DfmetaError | None:
        try:
            self._start()
        except errors.DfmetaError as error:
            # Returned, not raised: eventlet prints a traceback of a raised exception.
            return error
        return None

    def _start(self) -> None:
        listen = self.conf.store.guest_listen
        sock = keepers.activated(f"{PROG}-guests", "[store] guest_listen", place=listen)
        if sock is not None:
            keep_room(sock)
        elif listen:
            sock = _listen(listen)
        repository = store.open_repository(self.conf.store.connection)
        self._api.open(repository)
        if sock is not None:
            self._guests = Guests(sock, self.conf, repository)
        self._repository = repository
        hub.resume_collection()
        report_ready()
        LOG.info("Serving %s", self._places())
        why = {"store": self._store_fault, "disk": self._disk_fault}
        log_readiness(
            self._health,
            why,
            lambda: f"{self._places()}{self._refused}",
            lambda: self._signals.ending,
        )

    def _places(self) -> str:
        guests = self.conf.store.guest_listen or "no address"
        return f"guests at {guests}, the admin API at {self.conf.df_metadata.admin_listen}"

    def _store_fault(self) -> str:
        if self._repository is None:
            return "it is not open yet"
        return store.store_fault(self.conf.store.connection)

    def _disk_fault(self) -> str:
        return self._guests.key.fault if self._guests is not None else ""

    def _stop(self) -> None:
        LOG.info("%s ends", PROG)
        hub.VITAL.release()
        keepers.notify(os.environ, "STOPPING=1\nSTATUS=")
        grace = self._signals.grace
        servers = (self._admin, self._guests)
        # Each stops accepting connections and ends after its last running request.
        ending = [threads.spawn(server.stop, grace) for server in servers if server is not None]
        for thread in ending:
            thread.wait()

    def _reload(self) -> None:
        try:
            conf = _load(self._argv)
            changes = values.keep_running_values(conf, self.conf, daemon=PROG)
            replace_api = self._api.prepare(conf)
        except errors.DfmetaError as error:
            LOG.warning("Not reloaded, the configuration in force stays: %s", error)
            self._refused = f"; not reloaded: {error}"
            return
        self._refused = ""
        process.warn(unknown_options(conf))
        self.conf = conf
        replace_api()
        if self._guests is not None:
            self._guests.reload(conf)
        set_up_logging(debug=conf.debug, use_json=conf.use_json)
        changes.log(LOG)


class Guests:
    """Serves guests.

    :raises StartError: when the key that signs tokens cannot be loaded.
    """

    def __init__(self, sock: Any, conf: cfg.ConfigOpts, repository: Repository) -> None:
        self._repository = repository
        self._addresses = addresses.Addresses(_find(conf, repository), _trusted(conf))
        self._rates = rate.RateLimiter(make_rates(conf))
        self.key = state_path.TokenKey(Path(conf.df_metadata.state_path))
        tokens = Tokens(self.key.usable)
        self.key.follow(lambda: setattr(tokens, "key", self.key.usable))
        self._application = Application(
            self._addresses,
            addresses.AddressStore(repository, make_answer_settings(conf)),
            _settings(conf),
            tokens=tokens,
            rates=self._rates,
            complaints=throttle.SharedComplaints(logging.getLogger("dfmeta.proxy")),
        )
        answering = addresses.AddressApplication(
            self._application, self._addresses, lambda: self._server.service.limits
        )
        self._server = guest_server(
            [sock],
            self._addresses,
            answering.answer,
            limits=make_limits(conf),
            hold_timeout=conf.df_metadata.hold_timeout,
        )
        self._server.start()

    def reload(self, conf: cfg.ConfigOpts) -> None:
        """Apply the options of another configuration that can change without a restart."""
        self._addresses.find = _find(conf, self._repository)
        self._addresses.trusted = _trusted(conf)
        answering = addresses.AddressStore(self._repository, make_answer_settings(conf))
        self._application.replace(answering, _settings(conf))
        self._rates.settings = make_rates(conf)
        service = self._server.service
        service.hold_timeout, service.limits = conf.df_metadata.hold_timeout, make_limits(conf)

    def stop(self, grace: float) -> None:
        """Stop accepting, answer running requests, and close the rest after *grace* seconds."""
        self._server.stop(grace)


def _load(argv: Sequence[str]) -> cfg.ConfigOpts:
    conf = dfmeta.conf.load((), prog=PROG, args=argv)
    if conf.store.trusted_proxies and conf.df_metadata.refuse_forwarded:
        raise errors.ConfigError(
            option="[df_metadata] refuse_forwarded",
            value=True,
            cause="it refuses every request that the proxies in [store] trusted_proxies forward",
            remedy="Set only one of the two options",
        )
    return conf


def _settings(conf: cfg.ConfigOpts) -> AppSettings:
    # A guest here either has a record or is unknown; there is no port whose project may be missing.
    return replace(make_app_settings(conf), needs_project=False)


def _find(conf: cfg.ConfigOpts, repository: Repository) -> addresses.Find:
    upstream, answers = store.open_puller(conf), make_answer_settings(conf)
    if upstream is None:
        return lambda address, _path: repository.find(address)
    return lambda address, path: upstream.find(address, dialects.need(path, answers))


def _trusted(conf: cfg.ConfigOpts) -> requests.TrustedProxies:
    return requests.TrustedProxies(parse_network(text) for text in conf.store.trusted_proxies)


def _listen(address: str) -> Any:
    host, _, port = address.rpartition(":")
    try:
        return listen_to_all(host.strip("[]"), int(port))
    except OSError as error:
        raise errors.StartError(
            cause=f"cannot listen on [store] guest_listen = {address}: {error.strerror}",
            remedy="Give an address of this host and a port that no other program uses; a port "
            "below 1024 needs CAP_NET_BIND_SERVICE",
        ) from error
