"""A program that runs parts of Neutron's metadata service with Neutron's own code.

Run by the Python of the environment that tools/setup.sh makes for Neutron::

    neutron_metadata.py agent SOCKET SECRET NOVA_PORT
    neutron_metadata.py ovn SOCKET SECRET NOVA_PORT
    neutron_metadata.py network PORT SOCKET (agent|ovn)
    neutron_metadata.py path PORT HOST:PORT < ADDRESSES

*agent* is the metadata agent, *ovn* that of OVN. The query for the port with an address is answered
in this process: without the time of a message queue to neutron-server, or of the agent's search in
its copy of OVN's southbound database. *network* prints the configuration of the haproxy of a
network, *path* that of metadata_path for one instance at each of the addresses.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from neutron.agent.l2.extensions.metadata import host_metadata_proxy
from neutron.agent.metadata import agent, driver, proxy_base
from neutron.agent.ovn.metadata import driver as ovn_driver
from neutron.agent.ovn.metadata import server_socket
from neutron.common.ovn import constants
from neutron.conf.agent.metadata import config
from neutron_lib.utils import host
from oslo_config import cfg
from oslo_log import log  # type: ignore[import-not-found]  # of that environment

METADATA_IP = "169.254.169.254"


def _id(*parts: object) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, " ".join(map(str, parts))))


class _Server:
    """The part of neutron-server that the agent queries."""

    def get_ports(self, context: Any, filters: dict[str, Any]) -> list[dict[str, str]]:
        """Return the one port with that address."""
        del context
        (address,) = filters["fixed_ips"]["ip_address"]
        return [{"device_id": _id("instance", address), "project_id": _id("project")}]


class _Southbound:
    """The part of OVN's southbound database that OVN's agent queries."""

    def get_network_port_bindings_by_ip(
        self, network: str, address: str, mac: str | None
    ) -> list[SimpleNamespace]:
        """Return the one port with that address."""
        del network, mac
        keys = constants.OVN_DEVID_EXT_ID_KEY, constants.OVN_PROJID_EXT_ID_KEY
        values = _id("instance", address), _id("project")
        return [SimpleNamespace(external_ids=dict(zip(keys, values, strict=True)))]


def _configure(secret: str, nova_port: str) -> None:
    for options in (
        config.SHARED_OPTS,
        config.UNIX_DOMAIN_METADATA_PROXY_OPTS,
        config.METADATA_PROXY_HANDLER_OPTS,
    ):
        config.register_meta_conf_opts(options)
    cfg.CONF([])
    cfg.CONF.set_override("metadata_proxy_shared_secret", secret)
    cfg.CONF.set_override("nova_metadata_port", int(nova_port))


def serve(socket: str, secret: str, nova_port: str) -> None:
    """Run the metadata agent."""
    _configure(secret, nova_port)
    # As in UnixDomainMetadataProxy.run if metadata_workers is not set.
    workers = host.cpu_count() // 2
    agent.MetadataPluginAPI = lambda topic: _Server()
    handler = agent.MetadataProxyHandler
    handler._conf = cfg.CONF
    proxy_base.MetadataProxyServer(workers, socket, handler).serve_forever()


def serve_ovn(socket: str, secret: str, nova_port: str) -> None:
    """Run OVN's metadata agent."""
    _configure(secret, nova_port)
    handler = server_socket.MetadataProxyHandler
    handler._conf, handler._sb_idl = cfg.CONF, _Southbound()
    # As in UnixDomainMetadataProxy.run if metadata_workers is not set: one request at a time.
    proxy_base.MetadataProxyServer(0, socket, handler).serve_forever()


def network(port: str, socket: str, kind: str) -> None:
    """Print the configuration of a network's haproxy."""
    groups = {
        "metadata_rate_limiting": config.METADATA_RATE_LIMITING_OPTS,
        "haproxy": config.METADATA_HAPROXY_OPTS,
    }
    for group, options in groups.items():
        config.register_meta_conf_opts(options, group=group)
    # The configurator reads the agent's log options.
    log.register_options(cfg.CONF)
    cfg.CONF([])
    made = (ovn_driver if kind == "ovn" else driver).HaproxyConfigurator(
        _id("network", port),
        None,
        socket,
        METADATA_IP,
        port,
        str(os.geteuid()),
        str(os.getegid()),
        tempfile.gettempdir(),
        f"{socket}.{port}.pid",
        cfg.CONF.metadata_rate_limiting,
        cfg.CONF.haproxy,
    )
    print(made.haproxy_cfg)


def path(port: str, nova: str) -> None:
    """Print metadata_path's configuration."""
    instances = [
        {
            "uuid": _id("instance", address),
            "provider_ip": address,
            "project_id": _id("project"),
            "signature": "0" * 64,
        }
        for address in sys.stdin.read().split()
    ]
    text = host_metadata_proxy._HOST_PATH_PROXY_TEMPLATE.render(
        log_level="debug",
        log_tag="haproxy-host_metadata_proxy",
        user="root",
        group="root",
        maxconn=1024,
        bind_port=port,
        instance_list=instances,
        meta_api=nova,
    )
    print(text)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    parts: dict[str, Callable[..., None]] = {
        "agent": serve,
        "ovn": serve_ovn,
        "network": network,
        "path": path,
    }
    parts[sys.argv[1]](*sys.argv[2:])
