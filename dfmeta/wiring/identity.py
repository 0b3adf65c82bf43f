"""Construction of the identity sources from the configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from oslo_config import cfg

from dfmeta.model import Port, PortId
from dfmeta.ovsdb.external_ids import NEUTRON
from dfmeta.sources.added_subports import AddedSubports, TrunkDetails
from dfmeta.sources.ovn import OvnSource
from dfmeta.sources.resolver import Resolver
from dfmeta.sources.source import Source
from dfmeta.sources.stages import Handover, Subports
from dfmeta.wiring.services import make_neutron_client, southbound

if TYPE_CHECKING:
    from dfmeta.sources.next_hops import NextHops


@dataclass(frozen=True, slots=True)
class IdentitySources:
    """The identity sources, and what else they know of a guest's port."""

    resolver: Resolver
    next_hops: NextHops | None
    """None: Neutron is not among the sources."""
    feed: OvnSource | TrunkDetails | None
    """Knows subports; None: neither OVN nor Neutron is among the sources."""
    stage: AddedSubports | Resolver
    """The first stage, which takes the ports of OVSDB."""

    def update(self, port: Port) -> None:
        """Process the current row of a port in OVSDB. Never waits."""
        self.stage.update(port)

    def forget(self, port_id: PortId) -> None:
        """Drop a port that OVSDB no longer has."""
        self.stage.forget(port_id)

    def redirect(self, remote: str) -> None:
        """Take the address of OVN's southbound database in OVSDB; empty: there is none."""
        if isinstance(self.feed, OvnSource):
            self.feed.southbound.redirect(remote)

    def start(self) -> None:
        """Begin to query what is queried regularly."""
        for part in (self.resolver, self.next_hops, self.feed):
            if part is not None:
                part.start()

    def stop(self) -> None:
        """End the thread of OVN's southbound database."""
        if isinstance(self.feed, OvnSource):
            self.feed.southbound.stop()


def make_identities(
    conf: cfg.ConfigOpts, deliver: Callable[[Port], None], drop: Callable[[PortId], None]
) -> IdentitySources:
    """Build the sources and their resolver; send no query yet.

    :param deliver: called with a port whenever more of its identity is known.
    :param drop: called with the id of each port that was removed.
    :raises ConfigError: when Neutron's options are wrong, or keystoneauth1 is not installed.
    :raises StoreError: when the store cannot be opened.
    """
    order = conf.df_metadata.identity_sources
    make: dict[str, Callable[[cfg.ConfigOpts], Source]]
    make = {"libvirt": _libvirt, "neutron": _neutron, "ovn": _ovn, "store": _store}
    sources = [make[name](conf) for name in order if name in make]
    ovn = next((source for source in sources if isinstance(source, OvnSource)), None)
    hops: NextHops | None = None
    handover = Handover(deliver, drop)
    deliver, drop = handover.put, handover.forget
    if NEUTRON in order:
        from dfmeta.sources.next_hops import NextHops

        hops = NextHops(make_neutron_client(conf), deliver, drop, timeout=conf.neutron.timeout)
        deliver, drop = hops.put, hops.forget
    independent = conf.df_metadata.subport_identity == "own"
    subports = Subports(deliver, drop, independent=independent)
    resolver = Resolver(order, sources, subports.put, drop=subports.forget)
    stage: AddedSubports | Resolver = resolver
    feed: OvnSource | TrunkDetails | None = ovn
    if ovn is not None:
        ovn.renew = partial(resolver.renew_named, ovn.name)
    elif NEUTRON in order:
        feed = TrunkDetails(make_neutron_client(conf), timeout=conf.neutron.timeout)
    if feed is not None:
        stage = feed.stage = AddedSubports(resolver.update, resolver.forget, feed.ring)
    return IdentitySources(resolver, hops, feed, stage)


def _libvirt(conf: cfg.ConfigOpts) -> Source:
    from dfmeta.sources.domain import Folders
    from dfmeta.sources.libvirt import LibvirtSource

    return LibvirtSource(Folders([Path(path) for path in conf.df_metadata.libvirt_xml_path]))


def _neutron(conf: cfg.ConfigOpts) -> Source:
    from dfmeta.sources.neutron import NeutronSource

    return NeutronSource(make_neutron_client(conf), timeout=conf.neutron.timeout)


def _ovn(conf: cfg.ConfigOpts) -> Source:
    return OvnSource(southbound(conf))


def _store(conf: cfg.ConfigOpts) -> Source:
    # Imported only when needed, since the import of SQLAlchemy takes a third of a second.
    from dfmeta.sources.records import StoreSource
    from dfmeta.wiring.store import open_repository

    return StoreSource(open_repository(conf.store.connection).get)
