"""The host's sides of tap-metadata for both versions of IP: IPv4's is needed, IPv6's may lack."""

import logging
from ipaddress import IPv4Address, IPv6Address

from dfmeta.errors import HostError
from dfmeta.host import ipv6
from dfmeta.host.netlink import HostSide, WantedSide

LOG = logging.getLogger(__name__)


class HostSides:
    """Keeps both sides in place. No failure of IPv6's reaches the caller: it is logged once.

    :param wanted: IPv4's side.
    :param wanted6: IPv6's side; None when guests are to be served over IPv4 only.
    """

    def __init__(self, wanted: WantedSide, wanted6: WantedSide | None = None) -> None:
        self._device = wanted.device
        self._side = HostSide(wanted)
        self._side6 = HostSide(wanted6) if wanted6 is not None else None
        self.serves_ipv6 = False
        """Whether IPv6's side is in place. It stays so while the device is down or is created
        again, since all is put back then; it ends when a setting of the host turns IPv6 off."""
        self.ipv6_fault = ""
        """What is wrong with IPv6 on the host, for people; empty when nothing is, and when guests
        are to be served over IPv4 only."""

    def addresses(self) -> frozenset[IPv4Address | IPv6Address]:
        """Return the host's own addresses as of the last check; no key may be one of them."""
        addresses = self._side.addresses()
        return addresses | self._side6.addresses() if self._side6 is not None else addresses

    def look(self) -> tuple[list[str], bool]:
        """Check the settings of IPv6, and put those of the device in force.

        The kernel reports no change of these settings, and to read them costs little.

        :return: a description of each change that was made, and whether there is more to put in
            place: IPv6, or a rule that may not move yet.
        """
        if self._side6 is None:
            return [], self._side.is_late
        lack, fault = ipv6.lack_of(self._device), ""
        done: list[str] = []
        try:
            # Also while IPv6 is off: when it comes, the kernel generates an address at once.
            done = self._side6.settle()
        except HostError as error:
            fault = str(error)
        if lack is not None:
            self._note(lack.cause, serves=False)
        elif fault:
            self._note(fault, serves=self.serves_ipv6)
        late = self._side.is_late or self._side6.is_late
        return done, late or (lack is None and not self.serves_ipv6)

    def lead(self) -> list[str]:
        """Bring the rules before others' that could take packets to guests.

        :return: a description of each change that was made.
        :raises HostError: when the kernel refuses.
        """
        done = self._side.lead()
        if self._side6 is not None and self.serves_ipv6:
            done += self._side6.lead()
        return done

    def ensure(self) -> list[str]:
        """Put both sides in place; see :meth:`HostSide.ensure`.

        :return: a description of each change that was made.
        :raises HostError: when the device is missing, or the kernel refuses a change of IPv4's.
        """
        # IPv6's settings come before the device is up.
        done, _wanting = self.look()
        done += self._side.ensure()
        if self._side6 is not None and ipv6.lack_of(self._device) is None:
            try:
                done += self._side6.ensure()
                self._note("", serves=True)
            except HostError as error:
                # A device that is gone at this moment comes back: the flows stay.
                self._note(str(error), serves=self.serves_ipv6)
        return done

    def remove_former(self, former: WantedSide | None, former6: WantedSide | None) -> list[str]:
        """Remove objects of a former configuration that the current one does not need.

        :param former: IPv4's side; None if there was none.
        :param former6: the same for IPv6.
        :return: a description of each removed object.
        :raises HostError: when the kernel refuses.
        """
        done: list[str] = []
        for side, of in ((self._side, former), (self._side6, former6)):
            if of is not None:
                keep = side.wanted if side is not None else None
                done += HostSide(of).remove(device_stays=True, keep=keep)
        return done

    def undo(self) -> list[str]:
        """Remove everything that this process has added, and nothing that existed before.

        :return: a description of each removed object.
        :raises HostError: when the kernel does not answer.
        """
        done = self._side6.undo() if self._side6 is not None else []
        # The device goes down last, if this process has brought it up.
        return done + self._side.undo()

    def _note(self, fault: str, *, serves: bool) -> None:
        """Keep the state of IPv6, and log a change of it."""
        if fault and fault != self.ipv6_fault:
            what = "IPv6 is not complete" if serves else "Guests are not served over IPv6"
            LOG.warning("%s: %s", what, fault)
        elif self.ipv6_fault and not fault:
            LOG.info("Guests are served over IPv6 as well")
        self.ipv6_fault, self.serves_ipv6 = fault, serves
