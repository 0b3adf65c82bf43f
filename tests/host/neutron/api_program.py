"""A program: Neutron's own API server, with ML2 and the trunk plugin.

It is run by the Python of the environment that tools/setup.sh makes for Neutron::

    api_program.py FOLDER PORT [OVN URL]

OVN is the connection method of OVN's databases, whose driver then binds the ports. It has threads
of its own, for which SQLite is no database: URL is that of another.
FOLDER has neutron.conf, whose paths are relative to it; :mod:`tests.host.neutron.api` writes it.
The migrations do not run on SQLite, so that the tables are made from the models. One thread answers
one request after the other.
"""

from __future__ import annotations

import importlib
import os
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from unittest import mock
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import sqlalchemy
from neutron_lib.db import api
from neutron_lib.db.model_base import BASEV2

DATABASE: Final = Path("neutron.db")
URL: Final = f"sqlite:////proc/self/cwd/{DATABASE}"
"""Absolute, as an engine demands, but one of each process."""
HOSTS: Final = ("compute-1", "compute-2")
CONF: Final = """\
[DEFAULT]
core_plugin = ml2
service_plugins = trunk
auth_strategy = noauth
transport_url = fake://
state_path = .
api_paste_config = {prefix}/etc/neutron/api-paste.ini
global_physnet_mtu = 1500
path_mtu = 1500
# There is neither a Nova nor an agent for DHCP that could be told.
notify_nova_on_port_status_changes = false
notify_nova_on_port_data_changes = false
dhcp_agent_notification = false
# No messages of the hosts' agents arrive.
agent_down_time = 1000000
[database]
connection = {url}
[oslo_concurrency]
lock_path = lock
[quotas]
default_quota = -1
[ml2]
type_drivers = local,flat,vlan,geneve
project_network_types = {network}
mechanism_drivers = {driver}
extension_drivers = port_security
[ml2_type_geneve]
vni_ranges = 1:1000
max_header_size = 38
[ovn]
ovn_nb_connection = {ovn}
ovn_sb_connection = {ovn}
ovn_metadata_enabled = true
"""


class Handler(WSGIRequestHandler):
    """A connection."""

    def log_message(self, *_arguments: object) -> None:
        """Log nothing: Neutron does."""


class Server(WSGIServer):
    """A server that starts beside connections of its predecessor, and takes many at once."""

    request_queue_size = 256


def main() -> None:
    """Serve until killed."""
    folder, port, *ovn = sys.argv[1:]
    os.chdir(folder)
    if ovn:
        make_tables(ovn[1], agents=False)
    elif not DATABASE.exists():
        new = DATABASE.with_suffix(".new")
        make_tables(f"sqlite:///{new}")
        new.rename(DATABASE)
    with make_server("127.0.0.1", int(port), load(*ovn), Server, Handler) as server:
        server.serve_forever()


def make_tables(url: str, *, agents: bool = True) -> None:
    """Make the tables of a database.

    :param agents: of the hosts, which OVN does without; a binding without one is tried ten times.
    """
    importlib.import_module("neutron.db.migration.models.head")  # it has all tables
    engine = sqlalchemy.create_engine(url)
    BASEV2.metadata.create_all(engine)
    now = datetime.now(UTC)
    rows = [
        {
            "agent_type": "Open vSwitch agent",
            "binary": "neutron-openvswitch-agent",
            "id": str(uuid.uuid4()),
            "topic": "N/A",
            "host": host,
            "admin_state_up": True,
            "created_at": now,
            "started_at": now,
            "heartbeat_timestamp": now,
            "load": 0,
            "configurations": "{}",
        }
        for host in HOSTS
        if agents
    ]
    with engine.begin() as connection:
        if rows:
            connection.execute(BASEV2.metadata.tables["agents"].insert(), rows)
    engine.dispose()


def load(ovn: str = "", url: str = URL) -> Any:
    """Load the application, whose folder is the current one from now on.

    Each connection to SQLite reads the schema of all tables, and a request has up to ten sessions:
    they share connections. Messages for agents, for which objects are read again, are left out.
    """
    network, driver = ("geneve", "ovn") if ovn else ("local", "openvswitch")
    values = {"prefix": sys.prefix, "url": url, "network": network, "driver": driver, "ovn": ovn}
    Path("neutron.conf").write_text(CONF.format(**values))
    os.environ["OS_NEUTRON_CONFIG_DIR"] = "."
    os.environ["OS_NEUTRON_CONFIG_FILES"] = "neutron.conf"
    del sys.argv[1:]
    with (
        mock.patch.object(sqlalchemy.pool, "NullPool", sqlalchemy.pool.QueuePool),
        mock.patch("neutron.plugins.ml2.ovo_rpc.OVOServerRpcInterface"),
        mock.patch("neutron.common.wsgi_utils.get_api_worker_count", return_value=1),
    ):
        application = importlib.import_module("neutron.wsgi.api").application
        api.get_context_manager().writer.get_engine()
    return application


if __name__ == "__main__":
    main()
