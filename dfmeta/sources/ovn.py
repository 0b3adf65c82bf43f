"""Identity and subports from OVN's southbound database (:mod:`dfmeta.ovsdb.southbound`).

A row has values of the port in Neutron, so that their trust and reading are those of
:mod:`dfmeta.sources.neutron`. The database sends each change: nothing is asked for again, and while
it is away, the known rows count. Everything runs on the hub.
"""

from collections.abc import Callable, Collection
from typing import Final

from dfmeta import metrics
from dfmeta.ovsdb.southbound import Binding, BindingsUpdate, Southbound
from dfmeta.runtime.threads import Event
from dfmeta.sources import neutron, source
from dfmeta.sources.added_subports import AddedSubports, entries_of

_OF_ENTRY: Final = ("vid", "port_id", "mac")


class OvnSource:
    """Gives the instance of a port, unverified, and the port's own project.

    It feeds the subports of its :attr:`stage` too.

    :param remote: see :class:`~dfmeta.ovsdb.southbound.Southbound`.
    """

    name: metrics.IdentitySource = "ovn"
    gives = frozenset({source.INSTANCE, source.PORT_PROJECT})
    unverified = True
    subports = True
    by_instance = False
    timeout = 2.0
    retry = (0.5, 30.0)
    recheck = 0.0
    at_once = 10_000

    stage: AddedSubports
    renew: Callable[[Collection[str]], None]
    """Called with the ports whose row has changed."""

    def __init__(self, remote: str) -> None:
        self._rows: dict[str, Binding] = {}
        """Logical port → its row."""
        self._covered: frozenset[str] = frozenset()
        self._changed = Event()
        self.southbound = Southbound(remote, self._ports, self.take)
        self.start, self.ring = self.southbound.start, self.southbound.ring

    def find(self, question: source.PortQuery) -> source.Ownership:
        """See :class:`~dfmeta.sources.source.Source`."""
        parent = self.stage.parents.get(question.port.row)
        while parent is not None and parent.iface_id not in self._covered:
            self._changed.wait()
        row = self._rows.get(question.port.iface_id)
        return neutron.ownership_of(row, question.port) if row is not None else source.Ownership()

    def take(self, update: BindingsUpdate) -> None:
        """Take changes of the rows."""
        before = self._rows
        new = {**dict.fromkeys(before if update.whole else ()), **update.changed}
        changed = {name: row for name, row in new.items() if row != before.get(name)}
        self._rows = {name: row for name, row in {**before, **changed}.items() if row}
        self._covered = update.covered
        former, self._changed = self._changed, Event()
        former.send(None)
        self.renew(changed)
        rows = [row for name in changed for row in (before.get(name), changed[name]) if row]
        members: dict[str, list[Binding]] = {row["parent"]: [] for row in rows if row["parent"]}
        for row in self._rows.values():
            if row["parent"] in members:
                # Without the project, which in a list of subports is the instance's.
                members[row["parent"]].append({key: row[key] for key in _OF_ENTRY})
        self.stage.learn({parent: entries_of(listed) for parent, listed in members.items()})

    def _ports(self) -> list[str]:
        # Another thread calls it; a copy of a dict's values is made at once.
        return [port.iface_id for port in list(self.stage.parents.values())]
