"""Meters that keep one guest's SYNs from overloading the controller and the proxy.

Each port has two meters: one for its first SYNs, which go to the controller, and one for all of its
SYNs. Meter ids are shared with other programs that use the bridge (Neutron's QoS draws them at
random). So the meters on the switch are read first, and if an id turns out to be taken, another one
is drawn.

OpenFlow deletes a meter together with all flows that use it, also those of other programs. So
before each deletion the switch is asked whether the meter still has our rate and no flow uses it.
A change by another program in the milliseconds between that answer and the deletion is not noticed.

A meter may be left over: the daemon was killed, or its connection was lost, after it removed a
port's flows and before it removed the meters. Only the form of such a meter shows that it is ours:
an id of our range, a rate of ours, and no flow. A meter with that form at two readings that are at
least :data:`LEFT_OVER` apart is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import eventlet
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.apps.channel import Channel
from dfmeta.exceptions import DfmetaError, SwitchError
from dfmeta.flows.metering import (
    FIRST_IDS,
    ID_RANGE,
    LAST_ID,
    MeterConfig,
    MeterCount,
    is_of_our_form,
)
from dfmeta.flows.pipeline import BR_INT, Pipeline, Purpose
from dfmeta.model import Endpoint
from dfmeta.runtime import clock

LOG = logging.getLogger(__name__)

LEFT_OVER = 20.0
"""Seconds after which an unknown meter of our form counts as left over. Another program that makes
a meter of that form uses it sooner."""

SPREAD: Final = 40503
"""Odd number that spreads the meters of one port's VLAN ids over the range of a purpose."""

Use = tuple[Endpoint, Purpose]
"""Use of a meter: by the flow of that purpose of that endpoint."""
Memory = Mapping[Purpose, Mapping[Endpoint, int]]
"""Purpose → endpoint → meter id."""


class Meters:
    """Draws, adds and deletes the meters of the guests' flows.

    :param remembered: meters of an earlier run, which are still on the switch.
    :param pipeline: declares the purposes that have a meter, and their rates.
    :param redrawn: called with an endpoint when one of its meters has got another id: its flows
        have to be sent again.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        remembered: Memory | None = None,
        *,
        pipeline: Pipeline = BR_INT,
        redrawn: Callable[[Endpoint], object] = lambda _endpoint: None,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self._rates = pipeline.rates
        self._redrawn = redrawn
        self._clock = clock
        self._remembered: dict[Use, int] = {
            (endpoint, purpose): number
            for purpose, numbers in (remembered or {}).items()
            for endpoint, number in numbers.items()
        }
        self._ids: dict[Use, int] = {}
        self._leaving: dict[int, Purpose] = {}
        """Meters on the switch whose flows of ours are removed: their deletion is under way, or a
        flow of another program uses them. Their ids are not drawn again."""
        self._removing: set[int] = set()
        """Those of the leaving meters whose check or deletion is under way."""
        self._numbers: set[int] = set()
        """Ids of all meters in use or leaving, for a fast lookup at each draw."""
        self._stray: dict[int, float] = {}
        """Unknown meter of our form → time when it was seen first."""
        self._foreign: set[int] = set()
        self._without: set[Use] = set()
        self._usable = True

    def known(self, endpoint: Endpoint, purpose: Purpose) -> int | None:
        """Return the meter id to remember for that use, or None when there is none."""
        use = endpoint, purpose
        return self._ids.get(use, self._remembered.get(use))

    def ids(self, purpose: Purpose) -> dict[Endpoint, int]:
        """Return endpoint → meter id, to be remembered for the next run."""
        known = self._remembered | self._ids
        return {endpoint: n for (endpoint, use), n in known.items() if use is purpose}

    def learn(self, channel: Channel, used: Mapping[Use, int]) -> None:
        """Read the switch's meters; missing ones of ours are made again by :meth:`of`.

        :param used: meters that our flows on the switch use; a process that remembers no meters
            takes them for its own.
        :raises DfmetaError: when the switch does not answer.
        """
        before, numbers = dict(self._ids), set(self._numbers)
        try:
            entries: list[MeterConfig] = channel.request(
                channel.wire.dump_meters(), "the dump of meters"
            ).wait()
        except SwitchError as error:
            if self._usable:
                LOG.warning("%s has no meters (%s): SYNs are not limited", channel.bridge, error)
            self._usable = False
            return
        self._usable = True
        rates = {entry.meter_id: entry.rate for entry in entries}
        mine = {use: n for use, n in used.items() if n not in self._leaving}
        former = {**mine, **self._remembered}
        # A meter that was made while the dump was under way may be missing from it.
        made = {use: n for use, n in self._ids.items() if before.get(use) != n}
        known = {**former, **self._ids}
        self._ids = {u: n for u, n in known.items() if rates.get(n) == self._rates.get(u[1], 0)}
        self._ids |= made
        self._leaving = {
            n: purpose
            for n, purpose in self._leaving.items()
            if n not in numbers or rates.get(n) == self._rates[purpose]
        }
        # Before this dump an event may have drawn another meter for the same use.
        ids = set(self._ids.values())
        self._leaving |= {
            n: purpose
            for (_endpoint, purpose), n in former.items()
            if n not in ids and rates.get(n) == self._rates.get(purpose, 0)
        }
        self._remembered = {}
        self._note_strays(rates)
        self._numbers = {*ids, *self._leaving}
        self._foreign = set(rates) - self._numbers

    def _note_strays(self, rates: Mapping[int, int]) -> None:
        """Note unknown meters of our form; those seen for :data:`LEFT_OVER` start to leave."""
        now, ids = self._clock(), {*self._ids.values(), *self._leaving}
        purposes = {rate: purpose for purpose, rate in self._rates.items()}
        strays = {
            n for n, rate in rates.items() if is_of_our_form(n, rate, self._rates) and n not in ids
        }
        self._stray = {n: self._stray.get(n, now) for n in strays}
        self._leaving |= {
            n: purposes[rates[n]] for n, since in self._stray.items() if now - since >= LEFT_OVER
        }

    def dropped(self, channel: Channel) -> dict[Use, int]:
        """Return the number of packets that each meter of ours has dropped since it was made.

        :raises DfmetaError: when the switch does not answer.
        """
        if not self._ids:
            return {}
        counted = {one.meter_id: one.dropped for one in self._counts(channel)}
        return {use: counted[number] for use, number in self._ids.items() if number in counted}

    def left_over(self, channel: Channel, used: Mapping[Use, int]) -> list[int]:
        """Return the ids of our meters on the switch: remembered, *used* by our flows, or of our
        form.

        :raises DfmetaError: when the switch does not answer.
        """
        self.learn(channel, used)
        there = self._numbers | self._foreign
        return sorted((self._numbers | set(used.values()) | self._stray.keys()) & there)

    def unused(
        self, channel: Channel, numbers: Collection[int], which: int = ofp.OFPM_ALL
    ) -> list[int]:
        """Return those of *numbers* that have a rate of ours and no flow on the switch.

        Neutron's QoS changes a meter that has the id it has drawn, and then uses it.

        :param which: id of the only meter to ask for, which has to exist; or all meters.
        :raises DfmetaError: when the switch does not answer.
        """
        if not numbers:
            return []
        asked = channel.request(channel.wire.dump_meters(which), "the dump of meters")
        counted = self._counts(channel, which)
        entries: list[MeterConfig] = asked.wait()
        ours = {one.meter_id for one in entries if one.rate in self._rates.values()}
        unused = {one.meter_id for one in counted if not one.flows}
        return sorted(ours & unused & set(numbers))

    @staticmethod
    def _counts(channel: Channel, which: int = ofp.OFPM_ALL) -> list[MeterCount]:
        asked = channel.request(channel.wire.meter_stats(which), "the counters of meters")
        return asked.wait()

    def forget(self) -> None:
        """Note that the connection has ended: the meters are read again on the next one."""
        self._remembered, self._ids = self._remembered | self._ids, {}
        self._numbers = set(self._leaving)
        self._without.clear()

    def of(self, channel: Channel, endpoint: Endpoint, purpose: Purpose) -> int | None:
        """Return the meter of that flow, made if it is missing.

        :return: None on a switch without meters, and for a purpose that has none on this bridge.
        """
        use = endpoint, purpose
        if not self._usable or use in self._without or purpose not in self._rates:
            return None
        if use not in self._ids:
            number = self._draw(use)
            self._ids[use] = number
            self._numbers.add(number)
            made = channel.commit(
                [channel.wire.add_meter(number, self._rates[purpose])],
                f"meter {number}",
                bundle=False,
            )
            eventlet.spawn_n(self._check, use, number, made)
        return self._ids[use]

    def release(self, channel: Channel, endpoint: Endpoint) -> None:
        """Delete the meters of *endpoint*, when its flows are being removed."""
        for use in [(endpoint, purpose) for purpose in self._rates]:
            self._without.discard(use)
            number = self._ids.pop(use, None)
            if number is not None:
                self._leaving[number] = use[1]
                eventlet.spawn_n(self._remove, channel, number)

    def keep_only(self, channel: Channel, endpoints: Collection[Endpoint]) -> None:
        """Delete the meters of all other endpoints, and those whose deletion was put off."""
        for number in self._leaving:
            eventlet.spawn_n(self._remove, channel, number)
        for endpoint in {one for one, _purpose in self._ids if one not in endpoints}:
            self.release(channel, endpoint)

    def _remove(self, channel: Channel, number: int) -> None:
        if number in self._removing:
            return
        self._removing.add(number)
        try:
            if not self.unused(channel, [number], number):
                LOG.debug("Meter %d stays: another program has changed it or uses it", number)
            elif number in self._leaving:
                removal = [channel.wire.remove_meter(number)]
                channel.commit(removal, f"meter {number}", bundle=False).wait()
                # Not before: if the connection is lost, the meter would be left over.
                if self._leaving.pop(number, None) is not None:
                    self._numbers.discard(number)
        except DfmetaError as error:
            LOG.debug("Meter %d stays: %s", number, error)
        finally:
            self._removing.discard(number)

    def _refused(self, use: Use, number: int, error: SwitchError) -> None:
        if self._ids.get(use) != number:
            return
        del self._ids[use]
        self._numbers.discard(number)
        taken = (ofp.OFPET_METER_MOD_FAILED, ofp.OFPMMFC_METER_EXISTS)
        if (error.fields.get("kind"), error.fields.get("code")) == taken:
            LOG.info("%s; drawing another meter", error)
            self._foreign.add(number)
        else:
            LOG.warning("%s: SYNs of %s are not limited", error, use[0])
            self._without.add(use)
        self._redrawn(use[0])

    def _draw(self, use: Use) -> int:
        endpoint, purpose = use
        preferred = FIRST_IDS[purpose] + (endpoint.ofport + endpoint.vid * SPREAD) % ID_RANGE
        if not self._is_taken(preferred):
            return preferred
        free = range(min(FIRST_IDS.values()), LAST_ID + 1)
        return next(number for number in free if not self._is_taken(number))

    def _is_taken(self, number: int) -> bool:
        return number in self._foreign or number in self._numbers

    def _check(self, use: Use, number: int, made: Any) -> None:
        try:
            made.wait()
        except SwitchError as error:
            self._refused(use, number, error)
        except DfmetaError as error:
            LOG.debug("Meter %d: %s", number, error)
