"""A program: Neutron's own API server, with ML2 and the trunk plugin, on SQLite.

It is run by the Python of the environment that tools/setup.sh makes for Neutron::

    neutron_api_program.py FOLDER PORT

FOLDER has neutron.conf; :mod:`tests.harness.neutron_api` writes it. The migrations do not run on
SQLite, so that the tables are made from the models. One thread answers one request after the other.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import sqlalchemy
from neutron_lib.db.model_base import BASEV2


class Handler(WSGIRequestHandler):
    """A connection."""

    def log_message(self, *_arguments: object) -> None:
        """Log nothing: Neutron does."""


class Server(WSGIServer):
    """A server that starts beside connections of its predecessor, and takes many at once."""

    request_queue_size = 256


def main() -> None:
    """Serve until killed."""
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    del sys.argv[1:]
    database = folder / "neutron.db"
    if not database.exists():
        importlib.import_module("neutron.db.migration.models.head")  # it has all tables
        new = folder / "new.db"
        engine = sqlalchemy.create_engine(f"sqlite:///{new}")
        BASEV2.metadata.create_all(engine)
        engine.dispose()
        new.rename(database)
    os.environ["OS_NEUTRON_CONFIG_DIR"] = str(folder)
    os.environ["OS_NEUTRON_CONFIG_FILES"] = "neutron.conf"
    from neutron.wsgi.api import application

    with make_server("127.0.0.1", port, application, Server, Handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
