"""Open vSwitch's database and control sockets, asked without a program for each question.

A start of ovs-vsctl takes more CPU time than its transaction. What tests do most often, to plug a
guest and to remove it, is a transaction of this module, with the rows that ovs-vsctl would make.
"""

import contextlib
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.harness.poll import DEADLINE

_NAME: Final = "Open_vSwitch"


class OvsdbRefusalError(RuntimeError):
    """The server has refused a transaction, or a row that it needs does not exist."""


class Ovsdb:
    """A client of ovsdb-server (RFC 7047); each transaction has a connection of its own.

    :param path: the server's unix socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def transact(self, *operations: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Make a transaction; return the result of each operation (RFC 7047, 5.2).

        :raises OvsdbRefusalError: an operation has failed, and none was made.
        :raises OSError: the server does not answer.
        """
        results: list[Any] = ask(self._path, "transact", _NAME, *operations)
        for result in results:
            if result is not None and "error" in result:
                raise OvsdbRefusalError(f"{result['error']}: {result.get('details', '')}")
        return results

    def select(self, table: str, *columns: str, **where: str) -> list[dict[str, Any]]:
        """Return columns of the rows whose columns have these values, in OVSDB's notation.

        :param columns: none: all.
        """
        conditions = [[name, "==", value] for name, value in where.items()]
        operation: dict[str, Any] = {"op": "select", "table": table, "where": conditions}
        (result,) = self.transact(operation | ({"columns": list(columns)} if columns else {}))
        return list(result["rows"])

    def init(self) -> None:
        """Make the one row of the table Open_vSwitch."""
        self.transact({"op": "insert", "table": _NAME, "row": {}})

    def add_bridge(self, name: str, datapath_type: str) -> None:
        """Add a bridge with its local port, and wait for ovs-vswitchd."""
        self._change(
            _insert("Interface", name=name, type="internal"),
            _insert("Port", name=name, interfaces=["named-uuid", "Interface"]),
            _insert("Bridge", name=name, ports=["named-uuid", "Port"], datapath_type=datapath_type),
            _mutate(_NAME, [], "bridges", "insert", ["named-uuid", "Bridge"]),
            wait=True,
        )

    def add_port(
        self,
        bridge: str,
        name: str,
        *,
        external_ids: Mapping[str, str],
        ofport_request: int = 0,
        wait: bool = True,
    ) -> None:
        """Add a port with one interface of the same name.

        :param external_ids: of the interface.
        :param wait: until ovs-vswitchd has made the change.
        :raises OvsdbRefusalError: there is such a port, or no such bridge.
        """
        columns: dict[str, Any] = {
            "external_ids": ["map", [list(external_id) for external_id in external_ids.items()]]
        }
        if ofport_request:
            columns["ofport_request"] = ofport_request
        self._change(
            _insert("Interface", name=name, **columns),
            _insert("Port", name=name, interfaces=["named-uuid", "Interface"]),
            _mutate("Bridge", [["name", "==", bridge]], "ports", "insert", ["named-uuid", "Port"]),
            wait=wait,
        )

    def del_port(self, name: str, *, wait: bool = True) -> None:
        """Remove a port from its bridge.

        :raises OvsdbRefusalError: there is no such port.
        """
        for row in self.select("Port", "_uuid", name=name):
            port = ["set", [row["_uuid"]]]
            self._change(
                _mutate("Bridge", [["ports", "includes", port]], "ports", "delete", port), wait=wait
            )
            return
        raise OvsdbRefusalError(f"there is no port {name}")

    def ports(self, bridge: str) -> list[str]:
        """Return the names of a bridge's ports, without the local port.

        :raises OvsdbRefusalError: there is no such bridge.
        """
        bridges, ports = (
            result["rows"]
            for result in self.transact(
                {
                    "op": "select",
                    "table": "Bridge",
                    "where": [["name", "==", bridge]],
                    "columns": ["ports"],
                },
                {"op": "select", "table": "Port", "where": [], "columns": ["_uuid", "name"]},
            )
        )
        if not bridges:
            raise OvsdbRefusalError(f"there is no bridge {bridge}")
        kind, held = bridges[0]["ports"]
        present = held if kind == "set" else [[kind, held]]
        return sorted(
            row["name"] for row in ports if row["_uuid"] in present and row["name"] != bridge
        )

    def _change(self, *operations: Mapping[str, Any], wait: bool) -> None:
        """Make a transaction, of which each mutation has to find its row.

        :param wait: until ovs-vswitchd has made the change (ovs-vswitchd.conf.db(5), next_cfg).
        """
        counted = [
            {"op": "mutate", "table": _NAME, "where": [], "mutations": [["next_cfg", "+=", 1]]},
            {"op": "select", "table": _NAME, "where": [], "columns": ["next_cfg", "cur_cfg"]},
        ]
        results = self.transact(*operations, *(counted if wait else ()))
        for operation, result in zip(operations, results, strict=False):
            if operation["op"] == "mutate" and result["count"] == 0:
                raise OvsdbRefusalError(f"nothing is {operation['where']} in {operation['table']}")
        if wait:
            (row,) = results[-1]["rows"]
            self._await(row["next_cfg"], row["cur_cfg"])

    def _await(self, wanted: int, done: int) -> None:
        while done < wanted:
            _waited, result = self.transact(
                {
                    "op": "wait",
                    "table": _NAME,
                    "where": [],
                    "columns": ["cur_cfg"],
                    "until": "!=",
                    "rows": [{"cur_cfg": done}],
                    "timeout": int(DEADLINE * 1000),
                },
                {"op": "select", "table": _NAME, "where": [], "columns": ["cur_cfg"]},
            )
            done = result["rows"][0]["cur_cfg"]


def _insert(table: str, **row: Any) -> dict[str, Any]:
    """Return the insertion of a row, which later operations know by the name of its table."""
    return {"op": "insert", "table": table, "row": row, "uuid-name": table}


def _mutate(table: str, where: list[Any], column: str, how: str, what: Any) -> dict[str, Any]:
    values = what if what[0] == "set" else ["set", [what]]
    return {"op": "mutate", "table": table, "where": where, "mutations": [[column, how, values]]}


def ask(path: Path, method: str, *parameters: Any) -> Any:
    """Send a request to a daemon of Open vSwitch, and return its result.

    The sockets of the database and of ovs-appctl(8) speak JSON-RPC 1.0 (RFC 7047), without a
    delimiter.

    :raises OSError: the daemon does not answer.
    """
    request = {"id": 0, "method": method, "params": parameters}
    answer = b""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(DEADLINE + 1)
        connection.connect(str(path))
        connection.sendall(json.dumps(request).encode())
        while part := connection.recv(1 << 16):
            answer += part
            with contextlib.suppress(ValueError):
                return json.loads(answer)["result"]
    raise ConnectionResetError(f"{path} was closed")
