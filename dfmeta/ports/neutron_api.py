"""Neutron's ports, over keystoneauth1. No eventlet: ``dfmeta doctor`` uses it too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dfmeta.exceptions import SourceError

FIELDS_ASKED: Final = ("id", "device_id", "device_owner", "project_id", "tenant_id")
DHCP_FIELDS: Final = ("id", "network_id", "mac_address", "fixed_ips")
_DHCP: Final = "network:dhcp"
"""``device_owner`` of a DHCP port, whether or not an agent has it at this moment."""

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
        """See :class:`~dfmeta.ports.neutron.Ports`.

        :raises SourceError: when there is no readable answer.
        """
        return self.ask([("binding:host_id", self._host)], fields)

    def by_id(self, ids: Sequence[str], fields: Sequence[str] = FIELDS_ASKED) -> list[Row]:
        """See :class:`~dfmeta.ports.neutron.Ports`.

        :raises SourceError: when there is no readable answer.
        """
        return self.ask([("id", port_id) for port_id in ids], fields)

    def dhcp_ports(self, networks: Sequence[str]) -> list[Row]:
        """See :class:`~dfmeta.ports.next_hops.Networks`.

        :raises SourceError: when there is no readable answer.
        """
        filters = [("device_owner", _DHCP), *(("network_id", one) for one in networks)]
        return self.ask(filters, DHCP_FIELDS)

    def ask(
        self, filters: Sequence[tuple[str, str]], fields: Sequence[str] = FIELDS_ASKED
    ) -> list[Row]:
        """Request *fields* of the ports that match *filters*.

        :raises SourceError: when there is no readable answer; its field ``status`` is Keystone's or
            Neutron's HTTP status, 0 when neither has answered.
        """
        from keystoneauth1.exceptions import ClientException

        asked = [("fields", name) for name in fields]
        try:
            base = self._endpoint or self._session.get_endpoint(
                service_type="network", **self._where
            )
            if not base:
                raise SourceError(source="neutron", cause="Neutron is not in Keystone's catalogue")
            url = base.rstrip("/").removesuffix("/v2.0") + "/v2.0/ports"
            answer = self._session.get(url, params=[*filters, *asked]).json()
        except ClientException as error:
            cause = " ".join(str(error).split()) or type(error).__name__
            status = getattr(error, "http_status", 0)
            raise SourceError(source="neutron", cause=cause, status=status) from error
        except (ValueError, RecursionError) as error:
            raise SourceError(source="neutron", cause="its answer is not JSON") from error
        rows = answer.get("ports") if isinstance(answer, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise SourceError(source="neutron", cause="its answer has no list of ports")
        return rows
