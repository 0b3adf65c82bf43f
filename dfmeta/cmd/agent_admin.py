"""The admin listener of ``dfmeta-agent``: readiness, listings, the status page, the store's API."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from oslo_config import cfg
from prometheus_client import Metric

from dfmeta import metrics
from dfmeta.admin import browsers, history, listener
from dfmeta.admin.attachments import AttachmentsApi
from dfmeta.cmd import keepers, status_page
from dfmeta.cmd.parts import Parts
from dfmeta.conf import values
from dfmeta.host.listeners import client_user
from dfmeta.runtime import hub

if TYPE_CHECKING:
    from dfmeta.apps.controller import Controller
    from dfmeta.attach.engine import AttachmentEngine
    from dfmeta.flows.integration_bridge import Tap
    from dfmeta.wiring.store import StoreApi

PROG: Final = "dfmeta-agent"


class AgentAdmin:
    """The admin listener, and the store's API on it while ``backend = store``.

    :raises StartError: when the API's options are invalid.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._api: StoreApi | None = None
        if parts.conf.df_metadata.backend == "store":
            self._api = _store_api(parts.conf)
        self._place: str = parts.conf.df_metadata.admin_listen
        self._record_names = status_page.RecordNames(
            lambda: self._api.repository if self._api else None
        )
        self._watch_health()
        listings: dict[str, listener.Listing] = {
            "/ports": parts.ports.rows,
            "/service": self._service,
            "/probe": lambda: probe_row(parts.controller),
            "/haproxy": self._haproxy,
            "/names": self._names,
            "/options": lambda: values.document(parts.conf, parts.read_at),
        }
        self.history = history.History(self._metrics)
        sources = status_page.Sources(
            program=PROG,
            health=parts.health,
            history=self.history,
            bridge=parts.conf.df_metadata.integration_bridge,
            facts=lambda: status_page.facts_of_host(
                parts.conf, self._service(), self._haproxy(thorough=False)
            ),
            failures=partial(status_page.failures_of_ports, backend=parts.conf.df_metadata.backend),
            ports=parts.ports.rows,
            names=self._record_names,
            others=lambda: parts.update.others,
        )
        self.application = listener.AdminApplication(
            parts.health,
            self._metrics,
            listings,
            api=self._api,
            more=[AttachmentsApi(self._attachments, browsers.own_names(self._place), client_user)],
            page=status_page.page(self._place, sources),
            listen=self._place,
        )

    def serve(self) -> None:
        """Begin to serve, on the service manager's listener or on ``admin_listen``.

        :raises StartError: when it cannot listen on the address.
        """
        sock = keepers.activated(f"{PROG}-admin", keepers.ADMIN_OPTION, place=self._place)
        listener.serve(self._place, self.application, sock=sock)

    def open_store(self) -> None:
        """Open the database of the store's API, if ``backend = store``.

        :raises StoreError: when it cannot be opened.
        """
        if self._api is not None:
            from dfmeta.wiring.store import open_repository

            self._api.open(open_repository(self._parts.conf.store.connection))

    def prepare(self, conf: cfg.ConfigOpts) -> Callable[[], None]:
        """Prepare for another configuration; the returned function applies it.

        :raises DfmetaError: when its API cannot be built; the current API stays in use.
        """
        if conf.df_metadata.backend != "store":
            return partial(setattr, self.application, "api", None)
        api = self._api = self._api or _store_api(conf)
        replace = api.prepare(conf)

        def mount() -> None:
            replace()
            self.application.api = api

        return mount

    def _watch_health(self) -> None:
        parts, probe = self._parts, self._parts.controller.probe
        parts.health.watch("threads", lambda: hub.VITAL.alive)
        parts.health.watch("ovsdb", lambda: parts.update.connected)
        parts.health.watch("bridge", lambda: parts.update.bridge is not None)
        parts.health.watch("flows", lambda: parts.controller.all_ready)
        parts.health.watch("proxy", self._listening)
        parts.health.watch("flow-restore-wait", lambda: not self._restoring())
        # The path is not reported while a part before it is missing.
        parts.health.watch(
            "path", lambda: probe.passes or not self._listening() or self._restoring()
        )
        parts.health.watch("store", lambda: not self.store_fault())
        parts.health.watch("disk", lambda: not self.disk_fault())

    def _service(self) -> dict[str, Any]:
        parts = self._parts
        return service_row(parts.controller.bridge.reconciler.tap, parts.tap.host.ipv6_fault)

    def _names(self) -> dict[str, list[str]]:
        """Return instance → the names in its record, of the instances of this host."""
        instances = [port.instance_id for port in self._parts.registry.ports()]
        return {name: [*names] for name, names in self._record_names(instances).items()}

    def _haproxy(self, *, thorough: bool = True) -> dict[str, Any] | None:
        proxy = self._parts.proxy
        return None if proxy is None else proxy.report(thorough=thorough)

    def _attachments(self) -> AttachmentEngine | None:
        proxy = self._parts.proxy
        return None if proxy is None else proxy.attachments

    def _listening(self) -> bool:
        parts = self._parts
        return bool(parts.serving and parts.engine and parts.engine.serving and parts.tap.in_place)

    def _restoring(self) -> bool:
        """Return whether ovs-vswitchd forwards nothing.

        It reads the setting at its start, so that an answered probe shows that it forwards.
        """
        return self._parts.update.restore_wait and not self._parts.controller.probe.answered

    def store_fault(self) -> str:
        """Return why the store's database does not answer; empty: it does, or is not needed."""
        conf = self._parts.conf
        if self._parts.proxy is None or conf.df_metadata.backend != "store":
            return ""
        from dfmeta.wiring.store import store_fault

        return store_fault(conf.store.connection)

    def disk_fault(self) -> str:
        """Return what the disk of state_path has no room for; empty if nothing waits for room."""
        proxy = self._parts.proxy
        return proxy.key.fault if proxy is not None else ""

    def _metrics(self) -> Iterable[Metric]:
        engine = self._parts.engine
        return metrics.REGISTRY.collect() if engine is None else engine.collect()


def service_row(tap: Tap | None, ipv6_fault: str = "") -> dict[str, Any]:
    """Return the addresses at which guests are served at this moment: ``GET /service``.

    :param tap: the target of the flows; None while there is none.
    :param ipv6_fault: see :class:`~dfmeta.host.sides.HostSides`.
    """
    ip, ip6 = (tap.guest_ip, list(tap.guest_ip6)) if tap is not None else (None, [])
    return {"ip": ip, "ip6": ip6, "ip6_fault": ipv6_fault}


def probe_row(controller: Controller) -> dict[str, Any]:
    """Probe the path to the proxy, and return the results: ``GET /probe``. Waits.

    The members are those of IPv4, and ``ip6`` has the same members for IPv6; it is None if guests
    are served over IPv4 only.
    """
    tap = controller.bridge.reconciler.tap
    served = tap is not None and bool(tap.guest_ip6)
    return {
        **controller.probe.report(),
        "ip6": controller.probe6.report() if served else None,
    }


def _store_api(conf: cfg.ConfigOpts) -> StoreApi:
    # Importing SQLAlchemy takes a third of a second; with backend = nova it is not needed.
    from dfmeta.wiring.store import StoreApi

    return StoreApi(conf)
