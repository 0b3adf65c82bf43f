"""The part of OVSDB's schema that a daemon reads should be as ovsdbapp reads it."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from ovsdbapp.backend.ovs_idl import idlutils

from dfmeta.ports.idl import schema_helper
from dfmeta.ports.ovsdb import COLUMNS
from tests.harness.ovs import OpenvSwitch


def described(helper: Any) -> dict[str, Any]:
    """Return the tables of an IDL's schema, with the columns of their indexes."""
    tables = helper.get_idl_schema().tables
    return {
        name: (
            {column: kind.to_json() for column, kind in table.columns.items()},
            [[column.name for column in index] for index in table.indexes],
            table.is_root,
            table.max_rows,
        )
        for name, table in tables.items()
    }


def test_the_part_of_the_schema_is_that_of_ovsdbapp(shared_host: OpenvSwitch) -> None:
    whole = idlutils.get_schema_helper(shared_host.ovsdb_connection, "Open_vSwitch")
    for table, columns in COLUMNS.items():
        whole.register_columns(table, list(columns))
    expected = described(whole)
    for remote in ("{}", "unix:/none/such, {}"):
        part = schema_helper(remote.format(shared_host.ovsdb_connection), COLUMNS)
        assert described(part) == expected
    # An index of columns that are left out is left out.
    kept = described(schema_helper(shared_host.ovsdb_connection, {"Interface": ("ofport",)}))
    assert kept["Interface"][1] == []


def test_a_column_that_the_server_has_not_is_an_error(shared_host: OpenvSwitch) -> None:
    helper = schema_helper(shared_host.ovsdb_connection, {"Interface": ("name", "odd")})
    with pytest.raises(AssertionError):
        helper.get_idl_schema()


@pytest.mark.parametrize(
    "answer", [{"error": "unknown database", "result": None}, None], ids=["refusal", "end"]
)
def test_a_server_without_the_schema_is_named(
    tmp_path: Path, answer: dict[str, Any] | None
) -> None:
    place = tmp_path / "db.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen()

        def serve() -> None:
            connection, _address = listener.accept()
            with connection:
                request = json.loads(connection.recv(1 << 16))
                if answer is not None:
                    connection.sendall(json.dumps({"id": request["id"], **answer}).encode())
                    connection.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ConnectionError, match=f"Could not retrieve schema from unix:{place}"):
            schema_helper(f"unix:{place}", COLUMNS)
        thread.join()
