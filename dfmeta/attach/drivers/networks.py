"""The networks of containers as Neutron has them: subnet, gateway, MTU, name servers, addresses.

The configuration gives a network its name and the ids of Neutron's network and subnet. All else is
Neutron's, so that both cannot differ. What Neutron has told stays in force while it is away.

Other ports may be on the same subnet. Their addresses are read with the network, and again when
Neutron refuses an address, so that containers get others.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import AddressValueError, IPv4Address, IPv4Network, NetmaskValueError
from typing import Any, Final

from dfmeta.attach.model import Network
from dfmeta.errors import AttachDriverError, ConfigError, DfmetaError, SourceError
from dfmeta.neutron.client import NeutronTrunks, Row, attachment_of
from dfmeta.runtime import clock
from dfmeta.runtime.clock import ANSWER_TIMEOUT
from dfmeta.runtime.throttle import LONGEST_PAUSE, LogThrottle

LOG = logging.getLogger(__name__)

ADDRESSES: Final = 600.0
"""Seconds after which the addresses of other ports are read again; a subnet may have thousands."""
_READABLE: Final = (AddressValueError, NetmaskValueError, ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A network of the configuration."""

    network_id: str
    subnet_id: str
    groups: tuple[str, ...] = ()
    """Ids of the security groups of the containers' ports; empty: Neutron's default."""
    quota: int | None = None
    """See :attr:`dfmeta.attach.model.Network.quota`."""


class NeutronNetworks(Mapping[str, Network]):
    """The networks by name; a lookup may block.

    A name of the configuration that Neutron has told nothing about raises AttachDriverError.

    :param chosen: the networks of the configuration; :meth:`choose` replaces them.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        trunks: NeutronTrunks,
        chosen: Mapping[str, Chosen],
        *,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self._trunks, self._clock = trunks, clock
        self._chosen = dict(chosen)
        self.known: dict[str, Network] = {}
        """Those that Neutron has told; a lookup here does not block."""
        self._asked: dict[str, float] = {}
        self._taken: dict[str, tuple[float, frozenset[IPv4Address]]] = {}
        """Id of a subnet → the addresses of other ports, and when they were read."""
        self._first = threading.Lock()
        """Held by the start or the request that asks first; other requests wait for its answer."""
        self._throttle: dict[str, LogThrottle] = {}

    def __getitem__(self, name: str) -> Network:
        """Return a network.

        :raises KeyError: if the configuration has none of that name.
        :raises AttachDriverError: if Neutron has told nothing about it.
        """
        if name not in self.known and name in self._chosen:
            if self._first.acquire(timeout=ANSWER_TIMEOUT):
                try:
                    late = self._clock() >= self._asked.get(name, float("-inf")) + LONGEST_PAUSE
                    if name not in self.known and late:
                        self._read(name)
                finally:
                    self._first.release()
            if name not in self.known:
                raise AttachDriverError(cause=f"Neutron has not told the network {name!r} yet")
        return self.known[name]

    def __iter__(self) -> Iterator[str]:
        """Return the names of the networks that Neutron has told."""
        return iter(list(self.known))

    def __len__(self) -> int:
        """Return how many networks Neutron has told."""
        return len(self.known)

    def chosen(self, name: str) -> Chosen:
        """Return the network of the configuration.

        :raises AttachDriverError: if it has none of that name, as after a reload.
        """
        if name not in self._chosen:
            raise AttachDriverError(cause=f"the network {name!r} is no longer configured")
        return self._chosen[name]

    def choose(self, chosen: Mapping[str, Chosen]) -> None:
        """Take the networks of another configuration."""
        changed = {name for name, current in self._chosen.items() if chosen.get(name) != current}
        self._chosen = dict(chosen)
        for name in changed:
            self.known.pop(name, None)
            self._asked.pop(name, None)

    def refresh(self) -> None:
        """Ask Neutron for all networks; one that cannot be used is logged."""
        for name in list(self._chosen):
            with self._first:
                self._read(name)

    def read_again(self, name: str) -> None:
        """Ask Neutron for a network, because another port has one of its addresses."""
        if name in self._chosen:
            self._taken.pop(self._chosen[name].subnet_id, None)
            self._read(name)

    def _read(self, name: str) -> None:
        self._asked[name] = self._clock()
        try:
            network = self._ask(name, self._chosen[name])
        except ConfigError as error:
            # The operator's networks in Neutron have changed, or never were as configured.
            self.known.pop(name, None)
            self._warn(name, error)
        except SourceError as error:
            self._warn(name, error)
        else:
            self.known[name] = network
            self._throttle.pop(name, None)

    def _ask(self, name: str, chosen: Chosen) -> Network:
        network = _get(name, "neutron_network", chosen.network_id, self._trunks.network)
        subnet = _get(name, "neutron_subnet", chosen.subnet_id, self._trunks.subnet)
        if subnet.get("network_id") != chosen.network_id:
            raise _wrong(
                name, "neutron_subnet", chosen.subnet_id, "it is no subnet of neutron_network"
            )
        try:
            gateway = subnet.get("gateway_ip")
            return Network(
                name=name,
                subnet=IPv4Network(subnet["cidr"]),
                gateway=IPv4Address(gateway) if gateway else None,
                mtu=int(network["mtu"]),
                dns=tuple(map(str, subnet.get("dns_nameservers") or ())),
                taken=self._addresses(chosen.subnet_id),
                quota=chosen.quota,
            )
        except _READABLE as error:
            raise _wrong(
                name, "neutron_subnet", chosen.subnet_id, "it is no subnet of IPv4"
            ) from error

    def _addresses(self, subnet_id: str) -> frozenset[IPv4Address]:
        now = self._clock()
        read, taken = self._taken.get(subnet_id, (float("-inf"), frozenset()))
        if now >= read + ADDRESSES:
            taken = _addresses(self._trunks.ports_of_subnet(subnet_id), subnet_id)
            self._taken[subnet_id] = (now, taken)
        return taken

    def _warn(self, name: str, error: DfmetaError) -> None:
        seldom = self._throttle.setdefault(name, LogThrottle(clock=self._clock))
        seldom.warn(LOG, "containers get no attachments to %s: %s", name, error.line)


def _get(
    name: str, option: str, value: str, ask: Callable[[str], Mapping[str, Any]]
) -> Mapping[str, Any]:
    try:
        return ask(value)
    except SourceError as error:
        if error.fields.get("status") != HTTPStatus.NOT_FOUND:
            raise
        raise _wrong(name, option, value, "Neutron does not know it") from error


def _wrong(name: str, option: str, value: str, cause: str) -> ConfigError:
    return ConfigError(
        option=f"[attachment_network:{name}] {option}",
        value=value,
        cause=cause,
        remedy="Give the id of an IPv4 subnet of that network, as `openstack subnet list` shows it",
    )


def _addresses(ports: list[Row], subnet_id: str) -> frozenset[IPv4Address]:
    """Return the addresses of a subnet that ports have which are no containers'."""
    return frozenset(
        IPv4Address(address["ip_address"])
        for port in ports
        if not attachment_of(port)
        for address in port.get("fixed_ips") or ()
        if address.get("subnet_id") == subnet_id
    )
