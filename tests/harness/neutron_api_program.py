"""A program: Neutron's own API server, with ML2 and the trunk plugin, on SQLite.

It is run by the Python of the environment that tools/setup.sh makes for Neutron::

    neutron_api_program.py FOLDER PORT

FOLDER has neutron.conf, whose paths are relative to it; :mod:`tests.harness.neutron_api` writes it.
The migrations do not run on SQLite, so that the tables are made from the models. One thread answers
one request after the other.

As a fork of ``nursery.py`` it begins with the application loaded, in a state that no request of the
tests has changed: see :func:`prepare`.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from unittest import mock
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.util import setup_testing_defaults

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
_PROJECT: Final = "00000000000000000000000000000000"
"""That of the requests which are served before a fork."""

Application = Callable[[dict[str, Any], Callable[..., object]], Iterable[bytes]]
_loaded: Loaded | None = None
"""Set by :func:`prepare`."""


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
        if _loaded is None:
            make_tables(new)
        else:
            new.write_bytes(_loaded.database)
        new.rename(DATABASE)
    application = load() if _loaded is None else _loaded.application
    with make_server("127.0.0.1", int(port), application, Server, Handler) as server:
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


def load() -> Application:
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
        application: Application = importlib.import_module("neutron.wsgi.api").application
        api.get_context_manager().writer.get_engine()
    return application


# As a fork


@dataclass(frozen=True)
class Loaded:
    """What a fork begins with."""

    application: Application
    database: bytes
    """As the application has it after its load."""


def prepare() -> None:
    """Load the application, have it serve a few requests, and close its database.

    The first request of a kind takes up to a second: modules are imported, and statements compiled.
    """
    global _loaded
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as said:
        os.chdir(folder)
        try:
            with _output_to(said.fileno()):
                make_tables(DATABASE)
                application = load()
                _loaded = Loaded(application, DATABASE.read_bytes())
                _warm(application)
            # Each of the up to 100 checks of a request would look for files with rules again.
            mock.patch("oslo_policy.policy.Enforcer.load_rules", _nothing).start()
        except Exception:
            said.seek(0)
            sys.stderr.write(said.read()[-4000:])
            raise
        finally:
            os.chdir(here)
    # A connection of SQLite must not be used by two processes.
    api.get_context_manager().writer.get_engine().dispose()


def _nothing(*_arguments: object) -> None:
    """Do nothing."""


@contextlib.contextmanager
def _output_to(file: int) -> Iterator[None]:
    """Have the descriptors of output be another one for a while: the log keeps Python's streams."""
    kept = [os.dup(number) for number in (1, 2)]
    for number in (1, 2):
        os.dup2(file, number)
    try:
        yield
    finally:
        for number, before in enumerate(kept, 1):
            os.dup2(before, number)
            os.close(before)


def _warm(application: Application) -> None:
    """Send the requests of the tests, as a project of its own."""
    network = _create(application, "network", mtu=1500)
    subnet = _create(application, "subnet", network_id=network, cidr="192.0.2.0/24", ip_version=4)
    group = _create(application, "security-group", name="warming")
    parent = _create(application, "port", network_id=network)
    trunk = _create(application, "trunk", port_id=parent)
    bound = {"binding:host_id": HOSTS[0], "device_owner": "compute:nova", "device_id": parent}
    _ask(application, "PUT", f"ports/{parent}", {"port": bound})
    address = {"subnet_id": subnet, "ip_address": "192.0.2.9"}
    port = {
        "network_id": network,
        "project_id": _PROJECT,
        "mac_address": "fa:16:3e:00:00:01",
        "fixed_ips": [address],
        "security_groups": [group],
        "name": "warming",
        "description": "warming",
    }
    made = _ask(application, "POST", "ports", {"ports": [port]})["ports"][0]["id"]
    entry = {"port_id": made, "segmentation_type": "vlan", "segmentation_id": 100}
    _ask(application, "PUT", f"trunks/{trunk}/add_subports", {"sub_ports": [entry]})
    for path in (
        *(f"networks/{network}", f"subnets/{subnet}", f"trunks/{trunk}", "ports"),
        *(f"ports?id={made}&fields=id&fields=status", f"trunks?port_id={parent}"),
        *("ports?name=warming&fields=id", "ports?description=warming&fields=id"),
        *("ports?fixed_ips=ip_address%3D192.0.2.9&fields=id", "ports?limit=1&fields=id"),
        *(f"ports?binding%3Ahost_id={HOSTS[0]}&fields=id", "trunks?fields=id"),
    ):
        _ask(application, "GET", path)
    _ask(application, "PUT", f"trunks/{trunk}/remove_subports", {"sub_ports": [{"port_id": made}]})
    _ask(application, "DELETE", f"ports/{made}")


def _create(application: Application, kind: str, **values: Any) -> str:
    """Create a resource; return its id."""
    name = kind.replace("-", "_")
    body = {name: {"project_id": _PROJECT, **values}}
    return str(_ask(application, "POST", f"{kind}s", body)[name]["id"])


def _ask(application: Application, method: str, target: str, body: Any = None) -> Any:
    """Return the answer's document."""
    path, _mark, query = target.partition("?")
    data = b"" if body is None else json.dumps(body).encode()
    environment: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": f"/v2.0/{path}",
        "QUERY_STRING": query,
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(data)),
        "wsgi.input": io.BytesIO(data),
    }
    setup_testing_defaults(environment)
    statuses = list[str]()

    def start(status: str, _headers: object, _error: object = None) -> None:
        statuses.append(status)

    answer = b"".join(application(environment, start))
    if not statuses[0].startswith("2"):
        raise RuntimeError(f"{method} {target}: {statuses[0]}: {answer.decode()}")
    return json.loads(answer) if answer else None


if __name__ == "__main__":
    main()
