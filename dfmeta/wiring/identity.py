"""Construction of the identity sources from the configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oslo_config import cfg

from dfmeta.model import Port, PortId
from dfmeta.ovsdb.external_ids import NEUTRON
from dfmeta.sources.resolver import Resolver
from dfmeta.sources.source import Source
from dfmeta.sources.stages import Handover, Subports
from dfmeta.wiring.services import make_neutron_client

if TYPE_CHECKING:
    from dfmeta.sources.next_hops import NextHops
    from dfmeta.sources.trunk_details import TrunkDetails


@dataclass(frozen=True, slots=True)
class IdentitySources:
    """The identity sources, and what else they know of a guest's port."""

    resolver: Resolver
    next_hops: NextHops | None
    """None: Neutron is not among the sources."""
    trunks: TrunkDetails | None
    """None: Neutron is not among the sources."""

    def update(self, port: Port) -> None:
        """Process the current row of a port in OVSDB. Never waits."""
        (self.trunks or self.resolver).update(port)

    def forget(self, port_id: PortId) -> None:
        """Drop a port that OVSDB no longer has."""
        (self.trunks or self.resolver).forget(port_id)

    def start(self) -> None:
        """Begin to query what is queried regularly."""
        for part in (self.resolver, self.next_hops, self.trunks):
            if part is not None:
                part.start()


def make_identities(
    conf: cfg.ConfigOpts, deliver: Callable[[Port], None], drop: Callable[[PortId], None]
) -> IdentitySources:
    """Build the sources and their resolver; send no query yet.

    :param deliver: called with a port whenever more of its identity is known.
    :param drop: called with the id of each port that was removed.
    :raises ConfigError: when Neutron's options are wrong, or keystoneauth1 is not installed.
    :raises StoreError: when the store cannot be opened.
    """
    make = {"libvirt": _libvirt, "neutron": _neutron, "store": _store}
    order = conf.df_metadata.identity_sources
    sources = [make[name](conf) for name in order if name in make]
    hops: NextHops | None = None
    trunks: TrunkDetails | None = None
    handover = Handover(deliver, drop)
    deliver, drop = handover.put, handover.forget
    if NEUTRON in order:
        from dfmeta.sources.next_hops import NextHops

        hops = NextHops(make_neutron_client(conf), deliver, drop, timeout=conf.neutron.timeout)
        deliver, drop = hops.put, hops.forget
    independent = conf.df_metadata.subport_identity == "own"
    subports = Subports(deliver, drop, independent=independent)
    resolver = Resolver(order, sources, subports.put, drop=subports.forget)
    if NEUTRON in order:
        from dfmeta.sources.trunk_details import TrunkDetails

        trunks = TrunkDetails(
            make_neutron_client(conf),
            resolver.update,
            resolver.forget,
            timeout=conf.neutron.timeout,
        )
    return IdentitySources(resolver, hops, trunks)


def _libvirt(conf: cfg.ConfigOpts) -> Source:
    from dfmeta.sources.domain import Folders
    from dfmeta.sources.libvirt import LibvirtSource

    return LibvirtSource(Folders([Path(path) for path in conf.df_metadata.libvirt_xml_path]))


def _neutron(conf: cfg.ConfigOpts) -> Source:
    from dfmeta.sources.neutron import NeutronSource

    return NeutronSource(make_neutron_client(conf), timeout=conf.neutron.timeout)


def _store(conf: cfg.ConfigOpts) -> Source:
    # Imported only when needed, since the import of SQLAlchemy takes a third of a second.
    from dfmeta.sources.records import StoreSource
    from dfmeta.wiring.store import open_repository

    return StoreSource(open_repository(conf.store.connection).get)
