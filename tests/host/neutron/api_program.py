"""A program: Neutron's own API server, with ML2 and the trunk plugin, on SQLite.

It is run by the Python of the environment that tools/setup.sh makes for Neutron::

    api_program.py FOLDER PORT

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
# An engine has an absolute path, which is to be one of each process.
connection = sqlite:////proc/self/cwd/{database}
[oslo_concurrency]
lock_path = lock
[quotas]
default_quota = -1
[ml2]
type_drivers = local,flat,vlan
project_network_types = local
mechanism_drivers = openvswitch
extension_drivers = port_security
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
    folder, port = sys.argv[1:]
    os.chdir(folder)
    if not DATABASE.exists():
        new = DATABASE.with_suffix(".new")
        make_tables(new)
        new.rename(DATABASE)
    with make_server("127.0.0.1", int(port), load(), Server, Handler) as server:
        server.serve_forever()


def make_tables(place: Path) -> None:
    """Make a database in which the hosts have agents: a binding without one is tried ten times."""
    importlib.import_module("neutron.db.migration.models.head")  # it has all tables
    engine = sqlalchemy.create_engine(f"sqlite:///{place}")
    BASEV2.metadata.create_all(engine)
    now = datetime.now(UTC)
    agents = [
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
    ]
    with engine.begin() as connection:
        connection.execute(BASEV2.metadata.tables["agents"].insert(), agents)
    engine.dispose()


def load() -> Any:
    """Load the application, whose folder is the current one from now on.

    Each connection to SQLite reads the schema of all tables, and a request has up to ten sessions:
    they share connections. Messages for agents, for which objects are read again, are left out.
    """
    Path("neutron.conf").write_text(CONF.format(prefix=sys.prefix, database=DATABASE))
    os.environ["OS_NEUTRON_CONFIG_DIR"] = "."
    os.environ["OS_NEUTRON_CONFIG_FILES"] = "neutron.conf"
    del sys.argv[1:]
    with (
        mock.patch.object(sqlalchemy.pool, "NullPool", sqlalchemy.pool.QueuePool),
        mock.patch("neutron.plugins.ml2.ovo_rpc.OVOServerRpcInterface"),
    ):
        application = importlib.import_module("neutron.wsgi.api").application
        api.get_context_manager().writer.get_engine()
    return application


if __name__ == "__main__":
    main()
