"""Starts os-ken and keeps a connection to the bridge."""

from __future__ import annotations

from os_ken.base.app_manager import AppManager

from dfmeta.apps.controller import Controller
from dfmeta.apps.dial import Refusals, accept, dial, listen
from dfmeta.apps.metadata import Handshake, MetadataApp
from dfmeta.ovsdb.vswitchd import management_socket
from dfmeta.runtime import hub


def connect(controller: Controller, connection: str, ovsdb_connection: str) -> None:
    """Have *controller* drive its bridges from now on.

    :param connection: the option openflow_connection; a second bridge is always connected to at its
        management socket.
    :param ovsdb_connection: the option ovsdb_connection.
    :raises StartError: when the daemon cannot listen on the address.
    """
    bridge = controller.channel.bridge
    manager, refusals = AppManager.get_instance(), Refusals(bridge)
    for app in (
        manager.instantiate(Handshake, numbers=controller.numbers, refusals=refusals),
        manager.instantiate(MetadataApp, controller=controller),
    ):
        app.start()
        for thread in app.threads:
            hub.VITAL.watch_greenthread(f"os-ken's {app.name}", thread)
    kind, _, where = connection.partition(":")
    if kind == "listen":
        host, _, port = where.rpartition(":")
        listener = listen(host.strip("[]"), int(port))
        hub.VITAL.spawn("OpenFlow listener", accept, listener, refusals)
    else:
        path = management_socket(connection, ovsdb_connection, bridge)
        hub.VITAL.spawn("OpenFlow connection", dial, path, refusals)
    hub.VITAL.spawn("watch over the flows", controller.watch)
    if controller.meta is not None:
        bridge = controller.meta.channel.bridge
        path = management_socket("auto", ovsdb_connection, bridge)
        hub.VITAL.spawn(f"OpenFlow connection to {bridge}", dial, path, refusals)
        hub.VITAL.spawn(f"watch over the flows of {bridge}", controller.meta.watch)
