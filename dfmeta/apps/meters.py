"""Meters that keep one guest's first SYNs from drowning the controller.

Meter ids are shared with everybody who uses the bridge (Neutron's QoS draws them at random), so
those on the switch are read first, and an id that turns out to be taken is drawn anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

import eventlet
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.apps.channel import Channel
from dfmeta.exceptions import DfmetaError, SwitchError
from dfmeta.model import Endpoint

LOG = logging.getLogger(__name__)

SYN_RATE = 50
"""First SYNs a second that one port may send to the controller. An address needs one."""
FIRST_ID = 0x10000
"""Ours are drawn from here up: 65,536 and the ofport, when that one is free."""
LAST_ID = 0x3FFFF
"""Open vSwitch's userspace datapath has 262,144 of them."""


class Meters:
    """Which meter stands for which endpoint.

    :param remembered: ofport → meter id of an earlier run, whose meters are still on the switch.
    """

    def __init__(self, remembered: dict[int, int] | None = None) -> None:
        self._remembered = dict(remembered or {})
        self._ids: dict[Endpoint, int] = {}
        self._foreign: set[int] = set()
        self._without: set[Endpoint] = set()
        self._usable = True
        self.on_redraw: Callable[[Endpoint], object] = lambda _endpoint: None
        """Called when an endpoint needs its flows again because its meter has another id."""

    @property
    def ids(self) -> dict[int, int]:
        """Ofport → meter id, to be remembered for the next run."""
        return self._remembered | {endpoint.ofport: n for endpoint, n in self._ids.items()}

    def learn(self, channel: Channel, used: dict[Endpoint, int]) -> None:
        """Read the switch's meters; ours that are gone are made again when asked for.

        :param used: those that flows of ours on the switch use, which a process without a memory
            of them takes for its own.
        :raises DfmetaError: when the switch does not answer.
        """
        before = dict(self._ids)
        try:
            entries = channel.request(channel.wire.dump_meters(), "the dump of meters").wait()
        except SwitchError as error:
            if self._usable:
                LOG.warning("%s has no meters (%s): floods are not limited", channel.bridge, error)
            self._usable = False
            return
        self._usable = True
        rates = {entry.meter_id: _rate(entry) for entry in entries}
        remembered = {Endpoint(ofport): number for ofport, number in self._remembered.items()}
        candidates = used | remembered | self._ids
        # A meter that was made while the dump was under way may be missing from it.
        made = {e: n for e, n in self._ids.items() if before.get(e) != n}
        self._ids = {e: n for e, n in candidates.items() if rates.get(n) == SYN_RATE} | made
        self._remembered = {}
        self._foreign = set(rates) - set(self._ids.values())

    def left_over(self, channel: Channel, used: dict[Endpoint, int]) -> list[int]:
        """Ids of the meters on the switch that are ours: remembered, or *used* by our flows.

        :raises DfmetaError: when the switch does not answer.
        """
        self.learn(channel, used)
        there = set(self._ids.values()) | self._foreign
        return sorted((set(self._ids.values()) | set(used.values())) & there)

    def forget(self) -> None:
        """The connection is gone; what is on the switch is read again on the next."""
        self._remembered, self._ids = self.ids, {}
        self._without.clear()

    def of(self, channel: Channel, endpoint: Endpoint) -> int | None:
        """Meter of *endpoint*, made if there is none; None on a switch without meters."""
        if not self._usable or endpoint in self._without:
            return None
        if endpoint not in self._ids:
            number = self._draw(endpoint)
            self._ids[endpoint] = number
            made = channel.commit(
                [channel.wire.add_meter(number, SYN_RATE)], f"meter {number}", bundle=False
            )
            eventlet.spawn_n(self._check, endpoint, number, made)
        return self._ids[endpoint]

    def release(self, channel: Channel, endpoint: Endpoint) -> None:
        """Take the meter of *endpoint* away, once its flows are to go."""
        self._without.discard(endpoint)
        number = self._ids.pop(endpoint, None)
        if number is not None and channel.connected:
            channel.commit([channel.wire.remove_meter(number)], f"meter {number}", bundle=False)

    def keep_only(self, channel: Channel, endpoints: Collection[Endpoint]) -> None:
        """Take away the meters of all other endpoints."""
        for endpoint in [one for one in self._ids if one not in endpoints]:
            self.release(channel, endpoint)

    def _refused(self, endpoint: Endpoint, number: int, error: SwitchError) -> None:
        if self._ids.get(endpoint) != number:
            return
        del self._ids[endpoint]
        taken = (ofp.OFPET_METER_MOD_FAILED, ofp.OFPMMFC_METER_EXISTS)
        if (error.fields.get("kind"), error.fields.get("code")) == taken:
            LOG.info("%s; another meter is drawn", error)
            self._foreign.add(number)
        else:
            LOG.warning("%s: the first SYNs of ofport %d are not limited", error, endpoint.ofport)
            self._without.add(endpoint)
        self.on_redraw(endpoint)

    def _draw(self, endpoint: Endpoint) -> int:
        taken = self._foreign | set(self._ids.values())
        preferred = FIRST_ID + endpoint.ofport
        if preferred not in taken:
            return preferred
        return next(n for n in range(FIRST_ID, LAST_ID + 1) if n not in taken)

    def _check(self, endpoint: Endpoint, number: int, made: Any) -> None:
        try:
            made.wait()
        except SwitchError as error:
            self._refused(endpoint, number, error)
        except DfmetaError as error:
            LOG.debug("Meter %d: %s", number, error)


def _rate(entry: Any) -> int:
    """Rate of a meter of our form, in packets a second; 0 for any other."""
    bands = [(band.rate, band.burst_size) for band in entry.bands]
    return SYN_RATE if bands == [(SYN_RATE, SYN_RATE)] else 0
