"""Settings of the connection to Nova from the configuration.

The module does not use the hub, so that commands can use it too.
"""

from __future__ import annotations

from oslo_config import cfg

from dfmeta.conf import nova as nova_options
from dfmeta.proxy.backends.nova.request import NovaSettings


def build(conf: cfg.ConfigOpts) -> NovaSettings:
    """Read Nova's options.

    :raises ConfigError: for a list of hosts with an entry that is not a host.
    """
    return NovaSettings(
        hosts=tuple(nova_options.hosts(conf)),
        secret=conf.metadata_proxy_shared_secret.encode(),
        protocol=conf.nova_metadata_protocol,
        insecure=conf.nova_metadata_insecure,
        ca_cert=conf.auth_ca_cert,
        client_cert=conf.nova_client_cert,
        client_key=conf.nova_client_priv_key,
    )
