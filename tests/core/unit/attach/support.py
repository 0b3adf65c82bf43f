"""A data plane in memory that can fail, a database that can crash, and an engine on both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import eventlet
from eventlet.green import threading
from sqlalchemy import Connection, event

from dfmeta.attach.engine import AttachmentEngine
from dfmeta.attach.model import (
    Attachment,
    AttachmentLimits,
    AttachmentRequest,
    AttachmentState,
    Found,
    Network,
    Parent,
)
from dfmeta.errors import AttachDriverError, AttachError
from dfmeta.store.db.attachments import AttachmentTables
from dfmeta.store.db.database import Database
from dfmeta.store.db.schema import metadata

VM = Parent(port_id="port-1", port_name="tap1", instance_id="vm-1", mac="fa:16:3e:00:00:01")
OTHER = Parent(port_id="port-2", port_name="tap2", instance_id="vm-2")
NETWORKS = {
    "blue": Network(
        name="blue", subnet=IPv4Network("10.1.0.0/24"), gateway=IPv4Address("10.1.0.1")
    ),
    "tiny": Network(name="tiny", subnet=IPv4Network("10.2.0.0/29")),
    "small": Network(name="small", subnet=IPv4Network("10.3.0.0/28")),
    "few": Network(name="few", subnet=IPv4Network("10.4.0.0/24"), quota=2),
}


class CrashError(BaseException):
    """The process ends here."""


class Fuse:
    """Ends the process at a certain step; 0: never."""

    def __init__(self) -> None:
        self.left = 0

    def step(self) -> None:
        if self.left:
            self.left -= 1
            if not self.left:
                raise CrashError


class Plane:
    """A driver whose ports are a dictionary; it outlives the engines."""

    def __init__(self, fuse: Fuse | None = None) -> None:
        self.ports: dict[str, Found] = {}
        self.others: list[Found] = []
        self.away = False
        self.lost_answer = False
        """The next call does its work, and its answer is lost."""
        self.refused: Callable[[Attachment], bool] = lambda _one: False
        self.refusal: dict[str, object] = {}
        """Fields of the error for those."""
        self.unready = ""
        self.macs: frozenset[str] = frozenset()
        """MACs of devices that are no attachments."""
        self.calls: list[tuple[str, int]] = []
        self.gate: threading.Event | None = None
        """The calls wait for it."""
        self.fuse = fuse or Fuse()

    def make(self, parent: Parent, attachments: Sequence[Attachment]) -> None:
        self._call("make", attachments)
        if any(self.refused(attachment) for attachment in attachments):
            raise AttachDriverError(cause="refused", **self.refusal)
        for attachment in attachments:
            assert attachment.parent == parent.port_id
            others = {
                f.vid
                for f in self.ports.values()
                if f.parent == attachment.parent and f.id != attachment.id
            }
            assert attachment.vid not in others, "a VLAN id is given twice"
            self.ports[attachment.id] = Found(
                id=attachment.id, parent=attachment.parent, vid=attachment.vid
            )
        self._answer()

    def remove(self, attachments: Sequence[Attachment]) -> None:
        self._call("remove", attachments)
        for attachment in attachments:
            self.ports.pop(attachment.id, None)
        self._answer()

    def found(self) -> list[Found]:
        if self.away:
            raise AttachDriverError(cause="away")
        return [*self.ports.values(), *self.others]

    def ready(self, _parent: Parent) -> str:
        return self.unready

    def has_mac(self, _parent: Parent, mac: str, network: Network) -> bool:
        return mac in self.macs

    def _call(self, name: str, attachments: Sequence[Attachment]) -> None:
        assert attachments
        self.calls.append((name, len(attachments)))
        self.fuse.step()
        if self.gate is not None:
            self.gate.wait()
        if self.away:
            raise AttachDriverError(cause="away")

    def _answer(self) -> None:
        self.fuse.step()
        if self.lost_answer:
            self.lost_answer = False
            raise AttachDriverError(cause="the answer is lost")


class Breaking(Database):
    fuse = Fuse()

    def __init__(self, url: str) -> None:
        super().__init__(url)
        # These tests end a process, and not its machine: no commit has to reach the disk.
        if self.name == "sqlite":
            event.listen(self.dialect.engine, "connect", _forgetful)
            self.dialect.engine.dispose()

    def run(self, work: Callable[[Connection], Any], *, write: bool = False) -> Any:
        if write:
            self.fuse.step()
        result = super().run(work, write=write)
        if write:
            self.fuse.step()
        return result

    def clear(self) -> None:
        """Delete all rows. No row's values depend on those that were there before."""
        super().run(_delete_rows, write=True)


def _delete_rows(connection: Connection) -> None:
    for table in reversed(metadata.sorted_tables):
        connection.execute(table.delete())


def _forgetful(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA synchronous=OFF")


class World:
    def __init__(self, database: Breaking, **settings: Any) -> None:
        database.clear()
        self.fuse = database.fuse = Fuse()
        self.database = database
        self.plane = Plane(self.fuse)
        self.now = 1_000_000.0
        self.there = {VM.port_id, OTHER.port_id}
        self.settings = AttachmentLimits(**{"rate": 1e9, **settings})
        self.engine = self.start()

    def start(
        self, host: str = "host-1", plane: Plane | None = None, **more: Any
    ) -> AttachmentEngine:
        """A further process, or the same one after its end."""
        self.engine = AttachmentEngine(
            AttachmentTables(self.database),
            plane or self.plane,
            NETWORKS,
            self.settings,
            host=host,
            clock=lambda: self.now,
            present=lambda port_id: port_id in self.there,
            **more,
        )
        return self.engine

    def attach(self, container: str = "c1", *, parent: Parent = VM, **fields: Any) -> Attachment:
        return self.engine.attach(parent, wanted(container, **fields))[0]

    def detach(self, container: str = "c1", *, parent: Parent = VM, gone: bool = True) -> None:
        self.engine.detach(parent, container, "eth0", gone=gone)

    def check(self) -> None:
        """What must hold when no work is open and the data plane answers."""
        rows = self.engine.everything()
        assert {row.state for row in rows} <= {AttachmentState.ACTIVE}
        assert set(self.plane.ports) == {row.id for row in rows}
        for row in rows:
            assert self.plane.ports[row.id].vid == row.vid
        self.check_single()

    def end_at(self, step: int, act: Callable[[World], None]) -> bool:
        """Act, in a process that ends at that step; return whether it did. What refused it ends."""
        self.fuse.left = step
        try:
            act(self)
            return False
        except CrashError:
            return True
        finally:
            self.fuse.left = 0
            self.plane.refused = lambda _one: False
            self.there.add(VM.port_id)

    def check_single(self) -> None:
        rows = self.engine.everything()
        for key in (
            lambda row: (row.parent, row.container, row.ifname),
            lambda row: (row.parent, row.vid),
            lambda row: (row.network, row.ip),
            lambda row: (row.network, row.mac),
        ):
            assert len({key(row) for row in rows}) == len(rows)

    def check_nothing_leaked(self) -> None:
        """After everything was deleted and rests have ended, all can be given again."""
        self.now += self.settings.rest_unknown + 1
        self.engine.tidy()
        assert self.engine.everything() == []
        assert self.plane.ports == {}
        status = self.engine.status(VM)
        assert status.used == 0
        assert status.free == min(status.quota, len(self.settings.vids))


def wanted(container: str = "c1", *, network: str = "blue", **fields: Any) -> AttachmentRequest:
    return AttachmentRequest(container=container, ifname="eth0", network=network, **fields)


def together(*calls: Callable[[], object]) -> list[Any]:
    """Return the results of calls that run at once; an error of ours is a result."""

    def run(call: Callable[[], object]) -> object:
        try:
            return call()
        except AttachError as error:
            return error

    return [thread.wait() for thread in [eventlet.spawn(run, call) for call in calls]]


def settle() -> None:
    eventlet.sleep(0.001)
