"""Neutron's ports, over keystoneauth1. No eventlet: ``dfmeta doctor`` uses it too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dfmeta.errors import SourceError

FIELDS_ASKED: Final = ("id", "device_id", "device_owner", "project_id", "tenant_id")
DHCP_FIELDS: Final = ("id", "network_id", "mac_address", "fixed_ips")
_NEXT_HOPS: Final = ("network:dhcp", "network:distributed")
"""``device_owner`` of the ports to which guests may have a route to the service: Neutron's DHCP
ports, whether or not an agent has them at this moment, and OVN's metadata ports."""

LIST_FROM: Final = 16
"""Number of ports from which on all ports of the host are requested in one call."""
IDS_AT_ONCE: Final = 32
"""Number of ids in one call: about 1,400 characters of its URL."""

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
    for start in range(0, len(values), IDS_AT_ONCE):
        yield values[start : start + IDS_AT_ONCE]
