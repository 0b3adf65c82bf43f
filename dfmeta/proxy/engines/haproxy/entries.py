"""The map of one haproxy: the entries that it should have, and those that it has.

How it works: :meth:`GuestMap.apply` notes the entries that an endpoint should have, without
waiting. One thread (:meth:`GuestMap.run`) brings haproxy's map to that state: few changes one by
one, many by a new version of the whole map. A message is acknowledged when the map has been at that
state (:meth:`GuestMap.acked`). The state may be newer than the message: entries are states, not
events.

An address without an entry is no loss: haproxy gives its requests to the daemon.
"""

import logging
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from dfmeta.errors import HaproxyError
from dfmeta.identity.registry import Registry
from dfmeta.identity.slots import Slot
from dfmeta.model import Endpoint, Identity
from dfmeta.proxy.engines.haproxy.config import COUNTED, IN_DOUBT, PARTS
from dfmeta.proxy.engines.haproxy.runtime import Runtime
from dfmeta.proxy.replicator import BATCH
from dfmeta.runtime import clock, threads
from dfmeta.runtime.hub import Turns

LOG = logging.getLogger(__name__)

MANY: Final = 256
"""Changes from which on the whole map is replaced: it takes 22 ms for 5,000 entries."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9._:-]+")
"""A value that has no meaning in haproxy's commands or in the map's value."""

Batch = Sequence[tuple[Endpoint, dict[str, str]]]
"""Endpoint, and its entries: source address → value."""


def port_token(endpoint: Endpoint, incarnation: int) -> str:
    """Return the text that stands for one guest at one port."""
    return f"{endpoint.ofport}.{endpoint.vid}.{incarnation}"


def claim_token(endpoint: Endpoint, incarnation: int, number: int, epoch: int) -> str:
    """Return the text that stands for one address of one guest at one port."""
    return f"{port_token(endpoint, incarnation)}.{number}.{epoch}"


def vm_token(identity: Identity) -> str:
    """Return the text that stands for a virtual machine with its containers."""
    return f"{zlib.crc32(identity.vm.encode()):08x}"


def read_token(token: str) -> tuple[Endpoint, int, int, int] | None:
    """Return endpoint, incarnation, slot and epoch of a claim's token; None for another text."""
    try:
        ofport, vid, incarnation, number, epoch = map(int, token.split("."))
    except ValueError:
        return None
    return Endpoint(ofport, vid), incarnation, number, epoch


def read_port_token(token: str) -> tuple[Endpoint, int] | None:
    """Return endpoint and incarnation of a port's token; None for another text."""
    claim = read_token(f"{token}.0.0")
    return None if claim is None else claim[:2]


class Entries:
    """Makes the entries of an endpoint from the registry.

    :param sign: return the signature of an instance id.
    :param plain: whether haproxy may answer requests of that identity over that version of IP.
    """

    def __init__(
        self,
        registry: Registry,
        sign: Callable[[str], str],
        plain: Callable[[Identity, int], bool],
    ) -> None:
        self._registry = registry
        self.sign = sign
        self.plain = plain

    def batch_of(self, endpoints: Iterable[Endpoint]) -> Batch:
        """Return the message about *endpoints*."""
        return [(endpoint, self._of(endpoint)) for endpoint in endpoints]

    def all(self) -> dict[str, str]:
        """Return all entries. Yields to other greenthreads."""
        turns, endpoints, entries = Turns(), self._registry.endpoints(), dict[str, str]()
        for first in range(0, len(endpoints), BATCH):
            for _endpoint, of_endpoint in self.batch_of(endpoints[first : first + BATCH]):
                entries |= of_endpoint
            turns.give_way()
        return entries

    def _of(self, endpoint: Endpoint) -> dict[str, str]:
        identity = self._registry.identity(endpoint)
        if identity is None:
            return {}
        # While the number of a port is in doubt, answers wait, and the daemon holds its requests.
        certain, entries = self._registry.certain(endpoint), {}
        for number, slot in self._registry.slots(endpoint).items():
            value = self._value(endpoint, identity, number, slot)
            key = str(self._registry.keys.key_of(endpoint, number))
            entries[key] = value if certain else IN_DOUBT
        return entries

    def _value(self, endpoint: Endpoint, identity: Identity, number: int, slot: Slot) -> str:
        """Return the value of one address: only what is counted if its requests are the
        daemon's."""
        parts = {
            "port": port_token(endpoint, identity.incarnation),
            "vm": vm_token(identity),
            "claim": claim_token(endpoint, identity.incarnation, number, slot.epoch),
            "address": str(slot.address.ip).partition("%")[0],
            "project": identity.project_id,
            "instance": identity.instance_id,
            "signature": self.sign(identity.instance_id),
        }
        fields = [parts[name] for name in PARTS]
        plain = self.plain(identity, slot.address.ip.version)
        whole = plain and all(map(_PLAIN.fullmatch, fields))
        return "|".join(fields if whole else fields[: len(COUNTED)])


class GuestMap:
    """The map of one haproxy; see :class:`~dfmeta.proxy.replicator.Replica`.

    :param name: name of the map in haproxy.
    """

    def __init__(self, runtime: Runtime, name: str) -> None:
        self.name = name
        self._runtime = runtime
        self._wanted: dict[str, tuple[Endpoint, str]] = {}
        self._keys_of: dict[Endpoint, frozenset[str]] = {}
        self._present: dict[str, str] = {}
        self._dirty: set[str] = set()
        self._unsure: set[str] = set()
        """Keys whose value in haproxy may be :data:`IN_DOUBT`, until the next message has them."""
        self._at_once = 0
        """Endpoints that were withdrawn since the last message."""
        self.position = 0
        """Number of messages that were applied."""
        self._acked = 0
        self._wake = threads.Event()
        self.serving = False
        """Whether haproxy answers guests, so that no guest may go on before the map is right."""
        self.ended = False
        """Whether haproxy is not used any more."""

    def __len__(self) -> int:
        """Return the number of entries that haproxy has confirmed."""
        return len(self._present)

    def acked(self, position: int) -> bool:
        """See :class:`~dfmeta.proxy.replicator.Replica`."""
        return self._acked >= position or self.ended

    def apply(self, batch: Batch) -> None:
        """See :class:`~dfmeta.proxy.replicator.Replica`."""
        for endpoint, entries in batch:
            for key in self._keys_of.get(endpoint, frozenset()) - entries.keys():
                # By now another endpoint may have it, or may have had it.
                if self._wanted.get(key, (None,))[0] == endpoint:
                    del self._wanted[key]
                    self._dirty.add(key)
            for key, value in entries.items():
                self._wanted[key] = endpoint, value
                self._dirty.add(key)
            self._keys_of[endpoint] = frozenset(entries)
            if not entries:
                del self._keys_of[endpoint]
        self.position += 1
        self._at_once = 0
        if not self._wake.ready():
            self._wake.send()

    def withdraw(self, endpoint: Endpoint) -> None:
        """Have haproxy answer none of an endpoint's requests, before this returns if possible.

        The endpoint is in doubt, and the message about it follows, but the daemon may be busy until
        then. Of many at once, only the first are changed here: haproxy gets the others together.
        """
        present = self._keys_of.get(endpoint, frozenset()) & self._present.keys()
        keys = [key for key in present - self._unsure if self._present[key] != IN_DOUBT]
        if not keys or self.ended or self._at_once >= BATCH:
            return
        self._at_once += 1
        # haproxy may not take it, or may take a change that is under way after it.
        self._unsure.update(keys)
        try:
            self._runtime.set_at_once(self.name, keys, IN_DOUBT)
        except HaproxyError as error:
            self._at_once = BATCH
            LOG.debug("%s", error)

    def end(self) -> None:
        """Stop following."""
        self.ended = True
        if not self._wake.ready():
            self._wake.send()

    def run(self) -> None:
        """Keep the map right until :meth:`end`.

        :raises HaproxyError: when haproxy does not confirm a change: its map is unknown then.
        """
        while not self.ended:
            self._wake.wait()
            self._wake = threads.Event()
            try:
                self._update()
            except HaproxyError:
                if not self.ended:
                    raise

    def compare(self, wanted_entries: Callable[[], Mapping[str, str]]) -> dict[str, int]:
        """Compare haproxy's map with the entries that it should have. Waits.

        :returns: the number of entries, and of those that are missing, superfluous or different in
            both of two comparisons: a change of a port takes a moment.
        :raises HaproxyError: when it does not answer.
        """
        size, lasting = self._differences(wanted_entries())
        if lasting:
            threads.sleep(clock.CHECK_INTERVAL)
            size, differences = self._differences(wanted_entries())
            lasting &= differences
        kinds = [kind for _key, kind in lasting]
        counts = {kind: kinds.count(kind) for kind in ("missing", "superfluous", "different")}
        return {"entries": size, **counts}

    def _differences(self, wanted: Mapping[str, str]) -> tuple[int, set[tuple[str, str]]]:
        """Return the number of haproxy's entries, and key and kind of each difference."""
        entries = self._runtime.entries(self.name)
        both = wanted.keys() & entries.keys()
        return len(entries), {
            *((key, "missing") for key in wanted.keys() - entries.keys()),
            *((key, "superfluous") for key in entries.keys() - wanted.keys()),
            *((key, "different") for key in both if wanted[key] != entries[key]),
        }

    def _update(self) -> None:
        position, dirty = self.position, self._dirty
        self._dirty = set()
        unsure = self._unsure & dirty & self._present.keys()
        self._unsure -= dirty
        changes: dict[str, str | None] = {}
        for key in dirty:
            value = self._wanted[key][1] if key in self._wanted else None
            if value != self._present.get(key) or key in unsure:
                changes[key] = value
        if len(changes) > MANY:
            everything = {key: value for key, (_endpoint, value) in self._wanted.items()}
            self._runtime.replace(self.name, everything)
            self._present = everything
        elif changes:
            self._runtime.change(self.name, self._present, changes)
            for key, value in changes.items():
                if value is None:
                    self._present.pop(key, None)
                else:
                    self._present[key] = value
        self._acked = position
