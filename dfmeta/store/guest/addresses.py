"""The addresses of a guest in its document, whatever the form of its network. Pure functions.

Trust: a document comes from the operator; its members may be any JSON. What is no address counts as
absent, and so do members that :mod:`dfmeta.store.guest.netconfig` would refuse.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dfmeta.store.guest.values import list_of, object_of, text_of
from dfmeta.store.strict import parse_mapping

MEMBERS: Final = ("network", "network_data", "network_config")
"""Members of a document that have its network, each of them in any form."""
TEXT_MAX: Final = 16384
"""Characters of a YAML text that is read: a kilobyte takes 5 ms."""
_DEVICES: Final = ("ethernets", "wifis", "bonds", "bridges", "vlans", "tunnels")
"""Members of version 2 that have devices."""


@dataclass(frozen=True, slots=True)
class Address:
    """An address of the guest, from its document."""

    text: str
    version: int
    """4 or 6."""
    public: bool


def addresses(networks: Mapping[str, Mapping[str, Any]]) -> tuple[Address, ...]:
    """Return the static addresses of a document, in its order.

    They are those of ``network``, else those of ``network_data``, else those of
    ``network_config``. Only Equinix Metal's form says which ones are public.

    :param networks: the result of :func:`networks_in`.
    """
    for name in MEMBERS:
        values = _values(networks[name])
        if found := [one for value, public in values for one in _address(value, public=public)]:
            return tuple(found)
    return ()


def networks_in(members: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the network in each of :data:`MEMBERS`, an object or YAML; empty if there is none.

    Reading YAML takes long: it is done once for a document, and not for each path.
    """
    return {name: _network_in(members.get(name)) for name in MEMBERS}


def _network_in(given: object) -> dict[str, Any]:
    network = object_of(_loaded(given) if isinstance(given, str) else given)
    # cloud-init takes its versions also below one more member.
    return object_of(network.get("network")) or network


def _values(network: Mapping[str, Any]) -> Iterator[tuple[object, bool]]:
    """Yield what stands in the places of addresses, and whether it is marked as public."""
    for one in map(object_of, list_of(network.get("addresses"))):
        # There, a text with a prefix is a block.
        if "/" not in (text := text_of(one.get("address"))):
            yield text, one.get("public") is True
    for one in map(object_of, list_of(network.get("networks"))):
        yield one.get("ip_address"), False
    for one in map(object_of, list_of(network.get("config"))):
        for subnet in map(object_of, list_of(one.get("subnets"))):
            yield subnet.get("address"), False
    for kind in _DEVICES:
        for one in map(object_of, object_of(network.get(kind)).values()):
            for text in list_of(one.get("addresses")):
                # An object has options of its one address.
                yield next(iter(text), None) if isinstance(text, dict) else text, False


def _address(value: object, *, public: bool) -> Iterator[Address]:
    text = text_of(value).partition("/")[0]
    try:
        version = ipaddress.ip_address(text).version
    except ValueError:
        return
    yield Address(text=text, version=version, public=public)


def _loaded(text: str) -> object:
    if len(text) > TEXT_MAX:
        return None
    try:
        return parse_mapping(text)
    except ValueError:
        return None
