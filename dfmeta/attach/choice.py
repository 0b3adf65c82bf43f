"""Choice of the values of a new row, with the queries of the transaction that adds it."""

import itertools
import json
import secrets
from collections.abc import Callable, Mapping, Set
from ipaddress import IPv4Address
from typing import Any, Final

from dfmeta.attach.model import AttachmentLimits, AttachmentRequest, AttachmentState, Network
from dfmeta.errors import AttachError, AttachFullError, AttachNetworkError, AttachQuotaError
from dfmeta.model import is_unicast
from dfmeta.store.db.attachments import Taken

WINDOW: Final = 256
"""Addresses that one query covers."""
_WHOLE: Final = 31
"""Prefix length from which on a subnet has no address of its own and no broadcast (RFC 3021)."""
_OCTETS: Final = 6
_MULTICAST, _LOCAL = 0x01, 0x02
"""Bits of a MAC's first octet (IEEE 802, 8.2)."""


def bounds(network: Network) -> tuple[int, int]:
    """Return the first and the last address of a network that a device may have."""
    subnet = network.subnet
    first, last = int(subnet.network_address), int(subnet.broadcast_address)
    return (first, last) if subnet.prefixlen >= _WHOLE else (first + 1, last - 1)


def capacity(network: Network) -> int:
    """Return how many containers a network has addresses for."""
    first, last = bounds(network)
    others = network.taken if network.gateway is None else network.taken | {network.gateway}
    return last - first + 1 - sum(first <= int(address) <= last for address in others)


def may_have(network: Network, address: IPv4Address) -> bool:
    """Return whether a device may have an address: of the subnet, and free."""
    first, last = bounds(network)
    return (
        first <= int(address) <= last
        and address != network.gateway
        and address not in network.taken
    )


def next_address(
    network: Network, last: int | None, used: Callable[[int, int], Set[int]]
) -> int | None:
    """Return the first free address after *last*, and from the beginning after the end.

    :param last: the address that was given last; None or one outside: start at the beginning.
    :param used: returns the addresses in use, from its first to its second argument.
    :returns: None if none is free.
    """
    low, high = bounds(network)
    start = low if last is None or not low <= last < high else last + 1
    for begin, end in ((start, high), (low, start - 1)):
        for first in range(begin, end + 1, WINDOW):
            until = min(first + WINDOW - 1, end)
            in_use = used(first, until)
            for number in range(first, until + 1):
                if number not in in_use and may_have(network, IPv4Address(number)):
                    return number
    return None


def random_mac() -> str:
    """Return a locally administered unicast MAC, in lower case with colons."""
    octets = bytearray(secrets.token_bytes(_OCTETS))
    octets[0] = octets[0] & ~_MULTICAST & 0xFF | _LOCAL
    return octets.hex(":")


def is_reserved(mac: str) -> bool:
    """Return whether a unicast MAC is IANA's: those of virtual routers (VRRP) are among them."""
    return mac.startswith("00:00:5e:")


LAST_PART: Final = 8
"""The last part of a network's addresses, one of so many, is for VMs without an attachment there:
a VM that takes all that it can get leaves some to others."""


class Choice:
    """Chooses VLAN ids, addresses and MACs; each address after the last of its network."""

    def __init__(self, settings: AttachmentLimits) -> None:
        self._settings = settings
        self._last: dict[str, int] = {}

    def row(
        self,
        taken: Taken,
        network: Network,
        wanted: AttachmentRequest,
        foreign: Set[int],
        fixed: Mapping[str, Any],
    ) -> Mapping[str, Any] | AttachError:
        """Return a whole row, or the error that the VM gets.

        :param wanted: from the guest; its address and MAC are checked here.
        :param foreign: VLAN ids that others use on the trunk.
        :param fixed: the values that need no choice.
        """
        try:
            _check_share(taken, network)
            return {
                **fixed,
                "container": wanted.container,
                "ifname": wanted.ifname,
                "network": network.name,
                "owner": wanted.owner,
                "vid": self._vid(taken, foreign | wanted.avoid),
                "mac": _mac(taken, network, wanted),
                "ip": self._address(taken, network, wanted),
                "boot_id": wanted.boot_id,
                "labels": json.dumps(dict(wanted.labels), separators=(",", ":")),
                "state": AttachmentState.WANTED.value,
                "rest": None,
            }
        except AttachError as error:
            return error

    def _vid(self, taken: Taken, others: Set[int]) -> int:
        quota = self._settings.quota
        if len(taken.vids) >= quota:
            raise AttachQuotaError(cause=f"the VM has {len(taken.vids)} of {quota} attachments")
        used = taken.vids | taken.resting | others
        vid = next_vid(self._settings.vids, taken.last_vid, used)
        if vid is None:
            raise AttachFullError(cause="all VLAN ids of the VM are in use or rest")
        return vid

    def _address(self, taken: Taken, network: Network, wanted: AttachmentRequest) -> int:
        if wanted.ip is not None:
            number = int(wanted.ip)
            if not may_have(network, wanted.ip):
                cause = f"{wanted.ip} is not an address for a container on {network.name!r}"
                raise AttachNetworkError(cause=cause, remedy=f"Ask for one of {network.subnet}")
            if taken.addresses(network.name, number, number):
                cause = f"{wanted.ip} is in use on {network.name!r}"
                raise AttachNetworkError(cause=cause, remedy="Ask for another, or for none")
            return number
        last = self._last.get(network.name)
        if last is None:
            last = taken.newest(network.name)
        free = next_address(
            network, last, lambda first, end: taken.addresses(network.name, first, end)
        )
        if free is None:
            raise AttachFullError(cause=f"all addresses of {network.name!r} are in use")
        self._last[network.name] = free
        return free


def _mac(taken: Taken, network: Network, wanted: AttachmentRequest) -> str:
    if not wanted.mac:
        return random_mac()
    mac = wanted.mac.lower()
    if not is_unicast(mac):
        raise _mac_error(f"{mac!r} is not the MAC of a device")
    if is_reserved(mac):
        raise _mac_error(f"the MAC {mac} is reserved for routers (RFC 9542)")
    if taken.has_mac(network.name, mac):
        raise mac_in_use(mac, network)
    return mac


def mac_in_use(mac: str, network: Network) -> AttachNetworkError:
    """Return the error for a MAC that another device has on a network."""
    return _mac_error(f"the MAC {mac} is in use on {network.name!r}")


def _mac_error(cause: str) -> AttachNetworkError:
    return AttachNetworkError(cause=cause, remedy="Ask for another, or for none")


def _check_share(taken: Taken, network: Network) -> None:
    """Refuse an attachment beyond a VM's share of a network."""
    of_vm = taken.count(network.name, of_trunk=True)
    if network.quota is not None and of_vm >= network.quota:
        cause = f"the VM has {of_vm} of {network.quota} attachments on {network.name!r}"
        raise AttachQuotaError(cause=cause)
    whole = capacity(network)
    if of_vm and whole - taken.count(network.name) <= whole // LAST_PART:
        cause = f"the last addresses of {network.name!r} are kept for other VMs"
        raise AttachFullError(cause=cause)


def next_vid(vids: range, last: int, taken: Set[int]) -> int | None:
    """Return the first free VLAN id after *last*, and from the beginning after the end.

    :param vids: the VLAN ids that may be given, in steps of 1.
    :param last: the one that was given last; one outside of *vids* starts at their beginning.
    :param taken: VLAN ids that are in use, rest, or belong to others.
    :returns: None if none is free.
    """
    start = last + 1 if last in vids else vids.start
    round_robin = itertools.chain(range(start, vids.stop), range(vids.start, start))
    return next((vid for vid in round_robin if vid not in taken), None)
