"""Construction of the client of Neutron's API from the configuration.

It does not use the hub, so that commands can use it too.
"""

from __future__ import annotations

import socket

from oslo_config import cfg

from dfmeta.conf import neutron as neutron_options
from dfmeta.neutron.client import NeutronApi


def build(conf: cfg.ConfigOpts) -> NeutronApi:
    """Build the client of ``[neutron]``; send nothing yet.

    :raises ConfigError: when its options are wrong, or keystoneauth1 is not installed.
    """
    group = conf.neutron
    return NeutronApi(
        neutron_options.session(conf),
        host=host(conf),
        where={"interface": group.valid_interfaces, "region_name": group.region_name},
        endpoint=group.endpoint_override,
    )


def host(conf: cfg.ConfigOpts) -> str:
    """Return the name of this host in Neutron's ``binding:host_id``."""
    return str(conf.neutron.host or socket.gethostname())
