"""From the configuration to the identity sources that it names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from oslo_config import cfg

from dfmeta.model import Port, PortId
from dfmeta.ports.resolver import Resolver
from dfmeta.ports.sources import Source
from dfmeta.wiring import neutron_client


def build(
    conf: cfg.ConfigOpts, deliver: Callable[[Port], None], drop: Callable[[PortId], None]
) -> Resolver:
    """Build the sources and what asks them; asks nothing yet.

    :param deliver: takes each port, as far as it is known, whenever more is.
    :param drop: takes the id of each port that is gone.
    :raises ConfigError: when Neutron's options are wrong, or what it takes is not installed.
    :raises StoreError: when the store cannot be opened.
    """
    make = {"libvirt": _libvirt, "neutron": _neutron, "store": _store}
    order = conf.df_metadata.identity_sources
    sources = [make[name](conf) for name in order if name in make]
    return Resolver(order, sources, deliver, drop=drop)


def _libvirt(conf: cfg.ConfigOpts) -> Source:
    from dfmeta.ports.folders import Folders
    from dfmeta.ports.libvirt import LibvirtSource

    return LibvirtSource(Folders([Path(path) for path in conf.df_metadata.libvirt_xml_path]))


def _neutron(conf: cfg.ConfigOpts) -> Source:
    from dfmeta.ports.neutron import NeutronSource

    return NeutronSource(neutron_client.build(conf), timeout=conf.neutron.timeout)


def _store(conf: cfg.ConfigOpts) -> Source:
    # SQLAlchemy takes a third of a second to import: only where it is needed.
    from dfmeta.ports.records import StoreSource
    from dfmeta.wiring.database import repository

    return StoreSource(repository(conf.store.connection).get)
