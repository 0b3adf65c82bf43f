"""From the configuration to Neutron's API. Knows no hub: a command asks it too."""

from __future__ import annotations

import socket

from oslo_config import cfg

from dfmeta.conf import neutron as neutron_options
from dfmeta.ports.neutron_api import NeutronApi


def build(conf: cfg.ConfigOpts) -> NeutronApi:
    """Build the client of ``[neutron]``; sends nothing yet.

    :raises ConfigError: when its options are wrong, or what it takes is not installed.
    """
    group = conf.neutron
    return NeutronApi(
        neutron_options.session(conf),
        host=host(conf),
        where={"interface": group.valid_interfaces, "region_name": group.region_name},
        endpoint=group.endpoint_override,
    )


def host(conf: cfg.ConfigOpts) -> str:
    """This host, as Neutron has it in ``binding:host_id``."""
    return str(conf.neutron.host or socket.gethostname())
