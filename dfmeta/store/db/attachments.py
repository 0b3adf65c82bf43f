"""Reads and writes attachments in the database.

This module knows no rules of attachments; :mod:`dfmeta.attach` has them. A row is a mapping with
the names of the table's columns. Each method is one transaction.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, and_, bindparam, delete, exists, func, select, update

from dfmeta.store.db.database import Database
from dfmeta.store.db.schema import attachments, insert_of, rests, trunks

TRIES: Final = 16
"""How often a row is tried with other values after another writer has taken one of its values."""
LEAVING: Final = "leaving"
_OF_HOST: Final = ("host", "port_name", "instance_id", "project_id", "mac")
"""The columns of a trunk that tell its port."""

_ROWS: Final = select(attachments).order_by(attachments.c.trunk, attachments.c.vid)
_ROWS_OF_TRUNK: Final = _ROWS.where(attachments.c.trunk == bindparam("trunk"))
_ROWS_OF_HOST: Final = _ROWS.where(attachments.c.host == bindparam("host"))
_TRUNKS: Final = select(trunks)
_RESTING: Final = select(rests.c.vid).where(
    rests.c.trunk == bindparam("trunk"), rests.c.until > bindparam("now")
)
_BY_KEY: Final = select(attachments).where(
    attachments.c.trunk == bindparam("trunk"),
    attachments.c.container == bindparam("container"),
    attachments.c.ifname == bindparam("ifname"),
)
_VIDS: Final = select(attachments.c.vid).where(attachments.c.trunk == bindparam("trunk"))
_ADDRESSES: Final = select(attachments.c.ip).where(
    attachments.c.network == bindparam("network"),
    attachments.c.ip.between(bindparam("low"), bindparam("high")),
)
_NEWEST: Final = (
    select(attachments.c.ip)
    .where(attachments.c.network == bindparam("network"))
    .order_by(attachments.c.created.desc(), attachments.c.ip.desc())
    .limit(1)
)
_COUNT: Final = (
    select(func.count())
    .select_from(attachments)
    .where(attachments.c.network == bindparam("network"))
)
_COUNT_OF_TRUNK: Final = _COUNT.where(attachments.c.trunk == bindparam("trunk"))
_OF_MAC: Final = select(attachments.c.id).where(
    attachments.c.network == bindparam("network"), attachments.c.mac == bindparam("mac")
)
# Weaker than FOR UPDATE: a foreign key's check, which holds a row of an attachment, may pass.
_LOCKED: Final = (
    select(trunks).where(trunks.c.parent == bindparam("trunk")).with_for_update(key_share=True)
)
_GIVEN: Final = (
    update(trunks)
    .where(trunks.c.parent == bindparam("trunk"))
    .values(last_vid=bindparam("given"), absent_since=None)
)
"""Made once: to make the statements of an attachment takes longer than to run them."""

Row = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Taken:
    """What is in use, as the transaction that adds a row sees it."""

    last_vid: int
    """VLAN id that was given last on the trunk; 0: none yet."""
    vids: frozenset[int]
    """VLAN ids of the trunk's rows; as many as it has rows."""
    resting: frozenset[int]
    """VLAN ids that rest."""
    trunk: str
    connection: Connection

    def count(self, network: str, *, of_trunk: bool = False) -> int:
        """Return how many attachments a network has.

        :param of_trunk: those of the trunk alone.
        """
        statement = _COUNT_OF_TRUNK if of_trunk else _COUNT
        values = {"network": network, **({"trunk": self.trunk} if of_trunk else {})}
        return int(self.connection.execute(statement, values).scalar_one())

    def addresses(self, network: str, low: int, high: int) -> set[int]:
        """Return the addresses of a network that are in use, from *low* to *high*."""
        values = {"network": network, "low": low, "high": high}
        return set(self.connection.execute(_ADDRESSES, values).scalars())

    def newest(self, network: str) -> int | None:
        """Return the address of a network that was given last, as far as it is still in use."""
        return self.connection.execute(_NEWEST, {"network": network}).scalar()

    def has_mac(self, network: str, mac: str) -> bool:
        """Return whether a MAC is in use on a network."""
        rows = self.connection.execute(_OF_MAC, {"network": network, "mac": mac})
        return rows.first() is not None


class AttachmentTables:
    """The tables of attachments, which hosts may share.

    All methods raise :class:`~dfmeta.errors.StoreError` if the database fails.

    :param database: opened by the caller, and closed by it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def of_trunk(self, parent: str) -> list[Row]:
        """Return the rows of a trunk, by VLAN id."""
        return self._rows(_ROWS_OF_TRUNK, trunk=parent)

    def of_host(self, host: str) -> list[Row]:
        """Return the rows of a host, by trunk and VLAN id."""
        return self._rows(_ROWS_OF_HOST, host=host)

    def everything(self) -> list[Row]:
        """Return all rows, by trunk and VLAN id."""
        return self._rows(_ROWS)

    def of_instance(self, instance_id: str) -> tuple[Row, str] | None:
        """Return the row of an instance that does not leave, and the project of its VM.

        :param instance_id: that of an attachment, which is the attachment's id; or any other.
        """

        def work(connection: Connection) -> tuple[Row, str] | None:
            statement = (
                select(attachments, trunks.c.project_id)
                .join(trunks, attachments.c.trunk == trunks.c.parent)
                .where(
                    attachments.c.id == instance_id,
                    attachments.c.instance_id == instance_id,
                    attachments.c.state != LEAVING,
                )
            )
            for row in connection.execute(statement).mappings():
                values = dict(row)
                return values, values.pop("project_id")
            return None

        return self._database.run(work)

    def trunks(self) -> list[Row]:
        """Return the trunks of all hosts."""
        return self._database.run(lambda connection: _mappings(connection, _TRUNKS))

    def resting(self, parent: str, now: float) -> frozenset[int]:
        """Return the VLAN ids of a trunk that rest."""
        return self._database.run(lambda connection: _resting(connection, parent, now))

    def reserve(
        self,
        trunk: Row,
        key: tuple[str, str],
        *,
        rest: Mapping[int, float],
        now: float,
        choose: Callable[[Taken], Row | T],
    ) -> tuple[Row | None, bool] | T:
        """Add a row, unless its key has one.

        The trunk gets its row first, and that row's lock keeps the quota exact. Addresses and MACs
        are shared with other trunks: their unique indexes decide, and the loser tries others.

        :param trunk: the row of the trunk without ``last_vid`` and ``absent_since``.
        :param key: container and name of the interface.
        :param rest: VLAN ids that must not be given, and the Unix times at which their rests end.
        :param now: Unix time.
        :param choose: returns the whole row; or another value, then no row is added.
        :returns: the row, and whether it was added; None for the row if other writers took the
            values of each try. Or the value of *choose*.
        """

        def work(connection: Connection) -> tuple[Row | None, bool] | T:
            last_vid = _ensure_trunk(connection, trunk)
            parent = trunk["parent"]
            _rest(connection, parent, rest)
            row = _by_key(connection, parent, key)
            for _try in range(TRIES):
                if row is not None:
                    return row, False
                vids = frozenset(connection.execute(_VIDS, {"trunk": parent}).scalars())
                resting = _resting(connection, parent, now)
                chosen = choose(Taken(last_vid, vids, resting, parent, connection))
                if not isinstance(chosen, Mapping):
                    return chosen
                added = (
                    insert_of(connection.dialect.name, attachments)
                    .values(**chosen)
                    .on_conflict_do_nothing()
                )
                connection.execute(added)
                # SQLAlchemy does not count the rows of an INSERT in every database.
                row = _by_key(connection, parent, key)
                if row is not None and row["id"] == chosen["id"]:
                    connection.execute(_GIVEN, {"trunk": parent, "given": chosen["vid"]})
                    return chosen, True
            return None, False

        return self._database.run(work, write=True)

    def move(
        self, ids: Collection[str], before: Collection[str], after: str, now: float
    ) -> set[str]:
        """Change the state of those rows that have one of the states *before*.

        :returns: the ids of the rows that have changed.
        """

        def work(connection: Connection) -> set[str]:
            matching = and_(attachments.c.id.in_(ids), attachments.c.state.in_(before))
            changed = set(
                connection.execute(
                    select(attachments.c.id)
                    .where(matching)
                    .order_by(attachments.c.id)
                    .with_for_update()
                ).scalars()
            )
            connection.execute(
                update(attachments)
                .where(attachments.c.id.in_(changed))
                .values(state=after, changed=now)
            )
            return changed

        return self._database.run(work, write=True) if ids else set()

    def name_ports(self, names: Mapping[str, str]) -> None:
        """Write the iface-ids of ports that a driver has named.

        :param names: id of the row → iface-id.
        """

        def work(connection: Connection) -> None:
            for row, name in sorted(names.items()):
                connection.execute(
                    update(attachments).where(attachments.c.id == row).values(port_id=name)
                )

        if names:
            self._database.run(work, write=True)

    def leave(self, ids: Collection[str], rest: float, now: float) -> int:
        """Let rows leave, and return how many did not already.

        :param rest: seconds that their VLAN ids rest later; of several calls, the shortest counts.
        """

        def work(connection: Connection) -> int:
            named = attachments.c.id.in_(ids)
            connection.execute(
                update(attachments)
                .where(named, attachments.c.state == LEAVING, attachments.c.rest > rest)
                .values(rest=rest)
            )
            return connection.execute(
                update(attachments)
                .where(named, attachments.c.state != LEAVING)
                .values(state=LEAVING, rest=rest, changed=now)
            ).rowcount

        return self._database.run(work, write=True) if ids else 0

    def free(self, ids: Collection[str], now: float) -> int:
        """Delete those rows that leave, and let their VLAN ids rest; return how many."""

        def work(connection: Connection) -> int:
            leaving = and_(attachments.c.id.in_(ids), attachments.c.state == LEAVING)
            rows = _mappings(connection, select(attachments).where(leaving).with_for_update())
            for row in rows:
                _rest(
                    connection, row["trunk"], {row["vid"]: now + row["rest"]} if row["rest"] else {}
                )
            freed = [row["id"] for row in rows]
            connection.execute(delete(attachments).where(attachments.c.id.in_(freed)))
            return len(freed)

        return self._database.run(work, write=True) if ids else 0

    def present(self, host: str, parents: Collection[str], now: float, *, restart: bool) -> None:
        """Write which trunks' ports are on a host, and take over those that have left another.

        :param parents: the trunks whose ports are on the host.
        :param restart: the absences begin anew: the host was not observed meanwhile.
        """

        of_host, here = trunks.c.host == host, trunks.c.parent.in_([*parents])
        absent = trunks.c.absent_since.is_not(None)
        moved = attachments.c.trunk.in_(select(trunks.c.parent).where(of_host))

        def work(connection: Connection) -> None:
            absences = update(trunks).values(absent_since=now)
            if restart:
                connection.execute(absences.where(of_host, absent))
            connection.execute(absences.where(of_host, ~here, ~absent))
            present = update(trunks).values(host=host, absent_since=None)
            connection.execute(present.where(here, absent))
            move = update(attachments).values(host=host)
            connection.execute(move.where(moved, attachments.c.host != host))

        self._database.run(work, write=True)

    def prune(self, host: str, now: float) -> None:
        """Delete the rests that have ended, and trunks of absent ports that have nothing left."""

        unused = delete(trunks).where(
            trunks.c.host == host,
            trunks.c.absent_since.is_not(None),
            ~exists().where(attachments.c.trunk == trunks.c.parent),
            ~exists().where(rests.c.trunk == trunks.c.parent),
        )

        def work(connection: Connection) -> None:
            connection.execute(delete(rests).where(rests.c.until <= now))
            connection.execute(unused)

        self._database.run(work, write=True)

    def _rows(self, statement: Any, **values: str) -> list[Row]:
        return self._database.run(lambda connection: _mappings(connection, statement, **values))


def _mappings(connection: Connection, statement: Any, **values: str) -> list[Row]:
    return [dict(row) for row in connection.execute(statement, values or None).mappings()]


def _by_key(connection: Connection, parent: str, key: tuple[str, str]) -> Row | None:
    container, ifname = key
    rows = _mappings(connection, _BY_KEY, trunk=parent, container=container, ifname=ifname)
    return rows[0] if rows else None


def _resting(connection: Connection, parent: str, now: float) -> frozenset[int]:
    rows = connection.execute(_RESTING, {"trunk": parent, "now": now})
    return frozenset(rows.scalars())


def _ensure_trunk(connection: Connection, trunk: Row) -> int:
    """Lock the row of a trunk, with the present values of its port; return its last VLAN id."""
    parent = trunk["parent"]
    rows = _mappings(connection, _LOCKED, trunk=parent)
    if not rows:
        fresh = insert_of(connection.dialect.name, trunks).values(**trunk, last_vid=0)
        # The update locks a row that another writer has just added.
        locking = {"port_name": fresh.excluded.port_name}
        connection.execute(fresh.on_conflict_do_update(index_elements=["parent"], set_=locking))
        rows = _mappings(connection, _LOCKED, trunk=parent)
    (row,) = rows
    if row["absent_since"] is not None or any(row[name] != trunk[name] for name in _OF_HOST):
        connection.execute(
            update(trunks).where(trunks.c.parent == parent).values(**trunk, absent_since=None)
        )
    if row["host"] != trunk["host"]:
        connection.execute(
            update(attachments).where(attachments.c.trunk == parent).values(host=trunk["host"])
        )
    return int(row["last_vid"])


def _rest(connection: Connection, parent: str, until: Mapping[int, float]) -> None:
    """Let VLAN ids rest; a rest that is longer already stays."""
    if not until:
        return
    statement = insert_of(connection.dialect.name, rests)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["trunk", "vid"],
            set_={"until": statement.excluded.until},
            where=rests.c.until < statement.excluded.until,
        ),
        [{"trunk": parent, "vid": vid, "until": end} for vid, end in sorted(until.items())],
    )
