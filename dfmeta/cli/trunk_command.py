"""``dfmeta trunk``: a trunk's bridge for a VM, in OVSDB."""

from __future__ import annotations

import click

from dfmeta.cli.common import Group, config_before, config_options, ending, load_config
from dfmeta.cli.port_argument import parent_of
from dfmeta.ovsdb import trunk_bridge


@click.group("trunk", cls=Group)
@config_before
def trunk() -> None:
    """Give a VM a trunk, so that its containers can have ports of their own.

    With Neutron, create the trunk there instead.
    """


@trunk.command(
    "enable",
    epilog=ending("dfmeta trunk enable tap3f1a9c22-5e", failed="OVSDB does not answer"),
)
@config_options
@click.argument("port")
def enable(config_files: tuple[str, ...], *, port: str) -> None:
    """Move the interface of the VM's PORT to a bridge of its own, the bridge of its trunk.

    PORT is the name, iface-id, MAC or instance of the VM's port. A pair of patch ports connects the
    new bridge to the integration bridge, where the VM gets another port number; its device stays.
    Tagged frames of the VM no longer reach the integration bridge.
    """
    conf = load_config(config_files)
    parent, _snapshot = parent_of(conf, port)
    done = trunk_bridge.enable(
        conf.df_metadata.ovsdb_connection, conf.df_metadata.integration_bridge, parent.name
    )
    already = "" if done.changed else " already"
    click.echo(f"{done.interface}: is{already} on {done.bridge}, connected by {done.parent}")


@trunk.command(
    "disable",
    epilog=ending("dfmeta trunk disable tap3f1a9c22-5e", failed="OVSDB does not answer"),
)
@config_options
@click.argument("port")
def disable(config_files: tuple[str, ...], *, port: str) -> None:
    """Move the interface of the VM's PORT back to the integration bridge, and delete its trunk.

    It fails while the trunk has subports.
    """
    conf = load_config(config_files)
    parent, _snapshot = parent_of(conf, port)
    bridge = conf.df_metadata.integration_bridge
    done = trunk_bridge.disable(conf.df_metadata.ovsdb_connection, bridge, parent.name)
    if done.changed:
        click.echo(f"{done.interface}: is on {bridge}; {done.bridge} is deleted")
    else:
        click.echo(f"{done.interface}: has no trunk")
