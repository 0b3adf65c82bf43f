"""Runs in Neutron's environment: prints what its own code registers for metadata, as JSON.

[[group, name, default], …], those of all agents; an option of several agents is repeated.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Container, Iterable, Iterator
from typing import Any

from neutron import opts
from neutron.conf.agent import dhcp
from neutron.conf.agent.l3 import config as l3
from neutron.conf.agent.metadata import config as meta
from neutron.conf.agent.ovn.metadata import config as ovn_meta
from neutron.conf.plugins.ml2.drivers.ovn import ovn_conf

OF_ROUTERS = ("metadata_port", "enable_metadata_proxy", "metadata_access_mark")
OF_DHCP = ("enable_isolated_metadata", "force_metadata", "enable_metadata_network")
OF_OVN = (
    "ovn_sb_connection",
    "ovn_sb_private_key",
    "ovn_sb_certificate",
    "ovn_sb_ca_cert",
    "ovsdb_connection_timeout",
    "ovsdb_retry_max_interval",
    "ovsdb_probe_interval",
    "ovn_metadata_enabled",
)


def rows(groups: Iterable[tuple[str, Iterable[Any]]]) -> Iterator[list[str]]:
    """Each option as group, name and default, as a sample file would show it."""
    for group, options in groups:
        for option in options:
            default = option.sample_default or option.default
            if isinstance(default, (list, tuple)):
                default = ",".join(map(str, default))
            yield [group, option.name, "" if default is None else str(default)]


def some(options: Iterable[Any], names: Container[str]) -> list[Any]:
    """Those with these names."""
    return [option for option in options if option.name in names]


PROXIES = [
    (meta.RATE_LIMITING_GROUP, meta.METADATA_RATE_LIMITING_OPTS),
    (meta.HAPROXY_GROUP, meta.METADATA_HAPROXY_OPTS),
]
AGENTS = itertools.chain(
    opts.list_metadata_agent_opts(),
    [("DEFAULT", some(l3.OPTS, OF_ROUTERS)), ("DEFAULT", some(dhcp.DHCP_AGENT_OPTS, OF_DHCP))],
    PROXIES,
    [("METADATA", many) for group, many in opts.list_ovs_opts() if group.upper() == "METADATA"],
    ovn_meta.list_metadata_agent_opts(),
    [("ovn", some(ovn_conf.ovn_opts, OF_OVN))],
)
json.dump(list(rows(AGENTS)), sys.stdout)
