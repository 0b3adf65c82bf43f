"""Neutron's ports and trunks, over keystoneauth1. No eventlet: ``dfmeta doctor`` uses it too."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dfmeta.errors import SourceError
from dfmeta.runtime import clock, throttle

FIELDS_ASKED: Final = ("id", "device_id", "device_owner", "project_id", "tenant_id")
DHCP_FIELDS: Final = ("id", "network_id", "mac_address", "fixed_ips")
_NEXT_HOPS: Final = ("network:dhcp", "network:distributed")
"""``device_owner`` of the ports to which guests may have a route to the service: Neutron's DHCP
ports, whether or not an agent has them at this moment, and OVN's metadata ports."""

LIST_FROM: Final = 16
"""Number of ports from which on all ports of the host are requested in one call."""
AT_ONCE: Final = 32
"""Ports that one call creates, and ids in one call: about 1,400 characters of its URL."""
MARK: Final = "dfmeta:"
"""Beginning of the name and of the description of a container's port."""
TIMEOUT: Final = 15.0
"""Seconds for an answer about many ports, and to a change: they take Neutron some seconds."""
_PORT_FIELDS: Final = (
    *("id", "name", "description", "network_id", "project_id", "mac_address", "fixed_ips"),
)
_TRUNK_FIELDS: Final = ("id", "port_id", "project_id", "status", "admin_state_up", "sub_ports")

Row = Mapping[str, Any]


class NeutronApi:
    """Neutron's ports, over a session of keystoneauth1, which gets and renews its tokens.

    :param session: a ``keystoneauth1.session.Session`` with its authentication.
    :param host: this host's name in Neutron's ``binding:host_id``.
    :param where: ``interface`` (a list), ``region_name`` of Neutron in Keystone's catalogue.
    :param endpoint: Neutron's URL; None takes it from the catalogue.
    """

    def __init__(
        self, session: Any, *, host: str, where: Mapping[str, Any], endpoint: str | None = None
    ) -> None:
        self._session = session
        self._host = host
        self._where = dict(where)
        self._endpoint = endpoint

    def on_host(self, fields: Sequence[str] = FIELDS_ASKED) -> list[Row]:
        """Return all ports of this host.

        :raises SourceError: when there is no readable answer.
        """
        return self.ask([("binding:host_id", self._host)], fields)

    def by_id(self, ids: Sequence[str], fields: Sequence[str] = FIELDS_ASKED) -> list[Row]:
        """Return the existing ports among *ids*.

        :raises SourceError: when there is no readable answer.
        """
        return self.ask([("id", port_id) for port_id in ids], fields)

    def dhcp_ports(self, networks: Sequence[str]) -> list[Row]:
        """Return the DHCP ports of *networks*, and OVN's metadata ports.

        :raises SourceError: when there is no readable answer.
        """
        owners = [("device_owner", value) for value in _NEXT_HOPS]
        filters = [*owners, *(("network_id", value) for value in networks)]
        return self.ask(filters, DHCP_FIELDS)

    def ask(
        self, filters: Sequence[tuple[str, str]], fields: Sequence[str] = FIELDS_ASKED
    ) -> list[Row]:
        """Request *fields* of the ports that match *filters*.

        :raises SourceError: see :meth:`listed`.
        """
        return self.listed("ports", filters, fields)

    def listed(
        self,
        kind: str,
        filters: Sequence[tuple[str, str]],
        fields: Sequence[str],
        **limits: object,
    ) -> list[Row]:
        """Request *fields* of the resources of a kind that match *filters*.

        :param kind: for example ``ports``.
        :param limits: see :meth:`call`.
        :raises SourceError: when there is no readable answer, see :meth:`call`.
        """
        params = [*filters, *(("fields", field) for field in fields)]
        answer = self.call("GET", kind, params=params, **limits)
        rows = answer.get(kind) if isinstance(answer, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise SourceError(source="neutron", cause=f"its answer has no list of {kind}")
        return rows

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Sequence[tuple[str, str]] = (),
        body: object = None,
        **limits: object,
    ) -> Any:
        """Send a request of the Networking API v2.0; return the document, None if it is empty.

        :param path: below ``/v2.0/``.
        :param limits: ``timeout``, the seconds for the connection and for the answer; without it
            the session's.
        :raises SourceError: when there is no readable answer. Its field ``status`` is Keystone's or
            Neutron's HTTP status, 0 when neither has answered; ``kind`` is the type of Neutron's
            own error, empty if there is none.
        """
        from keystoneauth1.exceptions import ClientException

        try:
            base = self._endpoint or self._session.get_endpoint(
                service_type="network", **self._where
            )
            if not base:
                raise SourceError(source="neutron", cause="Neutron is not in Keystone's catalogue")
            url = f"{base.rstrip('/').removesuffix('/v2.0')}/v2.0/{path}"
            sent = {} if body is None else {"json": body}
            answer = self._session.request(url, method, params=list(params), **sent, **limits)
            return answer.json() if answer.content else None
        except ClientException as error:
            kind, message = _neutron_error(error)
            cause = message or " ".join(str(error).split()) or type(error).__name__
            status = getattr(error, "http_status", 0)
            raise SourceError(source="neutron", cause=cause, status=status, kind=kind) from error
        except (ValueError, RecursionError) as error:
            raise SourceError(source="neutron", cause="its answer is not JSON") from error


def _neutron_error(error: Any) -> tuple[str, str]:
    """Return type and message of Neutron's own error; both are empty if there is none."""
    answer = getattr(error, "response", None)
    try:
        details = answer.json()["NeutronError"] if answer is not None else {}
        return str(details.get("type", "")), " ".join(str(details.get("message", "")).split())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return "", ""


def portions(values: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield *values* in portions for one call each."""
    for start in range(0, len(values), AT_ONCE):
        yield values[start : start + AT_ONCE]


@dataclass(frozen=True, slots=True)
class Trunk:
    """A trunk, as Neutron has it."""

    id: str
    parent: str
    """Id of its parent's port."""
    project_id: str
    status: str
    up: bool
    """``admin_state_up``."""
    subports: Mapping[str, int]
    """Id of a port → VLAN id."""


@dataclass(frozen=True, slots=True)
class VmPort:
    """The port of a VM."""

    id: str
    project_id: str
    here: bool
    """It is bound to this host; while a VM moves, its port is on two hosts, and bound to one."""


class NeutronTrunks:
    """Requests about trunks. All methods block, and raise SourceError.

    :param api: the client.
    :param host: this host's name in ``binding:host_id``.
    :param connect: seconds for a connection, and for the answer to a query about one resource.
    """

    def __init__(
        self,
        api: NeutronApi,
        *,
        host: str,
        connect: float,
    ) -> None:
        self._api, self._host, self._connect = api, host, connect
        self._away = float("-inf")

    def network(self, network_id: str) -> Mapping[str, Any]:
        """Return a network."""
        return dict(self._call("GET", f"networks/{network_id}")["network"])

    def subnet(self, subnet_id: str) -> Mapping[str, Any]:
        """Return a subnet."""
        return dict(self._call("GET", f"subnets/{subnet_id}")["subnet"])

    def ports_of_subnet(self, subnet_id: str) -> list[Row]:
        """Return all ports with an address of a subnet."""
        filters = [("fixed_ips", f"subnet_id={subnet_id}")]
        return self._listed("ports", filters, _PORT_FIELDS, TIMEOUT)

    def trunks(self, parents: Iterable[str]) -> list[Trunk]:
        """Return the trunks of those ports that have one."""
        rows = self._by("trunks", "port_id", parents, _TRUNK_FIELDS)
        return [_trunk(row) for row in rows]

    def parents(self, ports: Iterable[str]) -> list[VmPort]:
        """Return the ports of VMs."""
        rows = self._by("ports", "id", ports, ("id", "project_id", "binding:host_id"))
        return [
            VmPort(
                id=str(row["id"]),
                project_id=str(row.get("project_id") or ""),
                here=row.get("binding:host_id") == self._host,
            )
            for row in rows
        ]

    def ports_of(self, parents: Iterable[str]) -> list[Row]:
        """Return the ports of all containers of VMs."""
        names = [name_of(parent) for parent in parents]
        rows = self._by("ports", "name", names, _PORT_FIELDS)
        return [row for row in rows if attachment_of(row)]

    def ports_for(self, attachments: Iterable[str]) -> list[Row]:
        """Return the ports of containers by the ids of their attachments."""
        wanted = [f"{MARK}{attachment}" for attachment in attachments]
        return list(self._by("ports", "description", wanted, _PORT_FIELDS))

    def statuses(self, ports: Iterable[str]) -> dict[str, str]:
        """Return the status of ports."""
        rows = self._by("ports", "id", ports, ("id", "status"))
        return {str(row["id"]): str(row.get("status")) for row in rows}

    def create(self, bodies: Sequence[Mapping[str, Any]]) -> list[Row]:
        """Create ports; those of each :data:`AT_ONCE` together, or none of them."""
        made: list[Row] = []
        for start in range(0, len(bodies), AT_ONCE):
            body = {"ports": list(bodies[start : start + AT_ONCE])}
            made += self._call("POST", "ports", body)["ports"]
        return made

    def add(self, trunk: str, subports: Mapping[str, int]) -> None:
        """Add subports to a trunk, all or none.

        :param subports: id of a port → VLAN id.
        """
        entries = [
            {"port_id": port, "segmentation_type": "vlan", "segmentation_id": vid}
            for port, vid in subports.items()
        ]
        self._call("PUT", f"trunks/{trunk}/add_subports", {"sub_ports": entries})

    def remove(self, trunk: str, ports: Iterable[str]) -> None:
        """Remove subports from a trunk, all or none."""
        entries = [{"port_id": port} for port in ports]
        self._call("PUT", f"trunks/{trunk}/remove_subports", {"sub_ports": entries})

    def delete(self, port: str) -> None:
        """Delete a port."""
        self._call("DELETE", f"ports/{port}")

    def _by(
        self, kind: str, name: str, values: Iterable[str], fields: Sequence[str]
    ) -> Iterator[Row]:
        """Return the resources of a kind, one of whose attributes has one of the values."""
        each = list(dict.fromkeys(values))
        # A query for one is a VM's, which waits for the answer.
        limit = TIMEOUT if len(each) > 1 else self._connect
        for part in portions(each):
            filters = [(name, value) for value in part]
            yield from self._listed(kind, filters, fields, limit)

    def _listed(
        self, kind: str, filters: Sequence[tuple[str, str]], fields: Sequence[str], limit: float
    ) -> list[Row]:
        timeout = (self._connect, limit)
        rows: list[Row] = self._guard(
            lambda: self._api.listed(kind, filters, fields, timeout=timeout)
        )
        return rows

    def _call(self, method: str, path: str, body: object = None) -> Any:
        timeout = (self._connect, self._connect if method == "GET" else TIMEOUT)
        return self._guard(lambda: self._api.call(method, path, body=body, timeout=timeout))

    def _guard(self, ask: Callable[[], Any]) -> Any:
        if clock.now() < self._away + throttle.LONGEST_PAUSE:
            raise SourceError(source="neutron", cause="it has just not answered", status=0)
        try:
            answer = ask()
        except SourceError as error:
            self._away = float("-inf") if error.fields.get("status") else clock.now()
            raise
        self._away = float("-inf")
        return answer


def name_of(parent: str) -> str:
    """Return the name of the ports of a VM's containers."""
    return f"{MARK}{parent}"


def parent_of(port: Row) -> str:
    """Return the parent that the name of a container's port tells; empty: none."""
    return _after_mark(port.get("name"))


def attachment_of(port: Row) -> str:
    """Return the attachment that the description of a container's port tells; empty: none."""
    return _after_mark(port.get("description"))


def _after_mark(text: object) -> str:
    words = str(text or "")
    return words.removeprefix(MARK) if words.startswith(MARK) else ""


def _trunk(row: Row) -> Trunk:
    return Trunk(
        id=str(row["id"]),
        parent=str(row["port_id"]),
        project_id=str(row.get("project_id") or ""),
        status=str(row.get("status")),
        up=bool(row.get("admin_state_up", True)),
        subports={
            str(subport["port_id"]): int(subport["segmentation_id"])
            for subport in row.get("sub_ports") or ()
        },
    )
