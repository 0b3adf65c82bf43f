"""Asks as a guest without a database: one path, or every one that listings name."""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from dfmeta.model import Answer, GuestRequest, Identity
from dfmeta.store.db.record import Record
from dfmeta.store.guest import ec2
from dfmeta.store.guest.backend import StoreBackend
from dfmeta.store.guest.dialects import AnswerSettings
from tests.core.unit.support import INSTANCE

Ask = Callable[..., Answer]
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def asker(
    members: Mapping[str, object] | str | None,
    *,
    userdata: bytes | None = None,
    project_id: str | None = None,
    password: bytes | None = None,
    mac: str = "",
    **settings: Any,
) -> Ask:
    """Ask as a guest whose record has that document; see :func:`record_of`."""
    record = record_of(members, userdata=userdata, project_id=project_id, password=password)
    no_database: Any = None
    backend = StoreBackend(no_database, AnswerSettings(**settings))
    guest = Identity(INSTANCE, "the-port's-project", "port-1", "tap1", incarnation=1, mac=mac)

    def ask(path: str, method: str = "GET", **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return backend.view(GuestRequest(method, path, headers=named), guest, record).answer()

    return ask


def record_of(
    members: Mapping[str, object] | str | None,
    *,
    userdata: bytes | None = None,
    project_id: str | None = None,
    password: bytes | None = None,
) -> Record:
    """Return a record with that document: its members, or its text as it is stored."""
    if members is not None and not isinstance(members, str):
        members = json.dumps(members).replace("Infinity", "1e999")
    values = {"metadata": members, "userdata": userdata, "password": password}
    times = {"created_at": NOW, "updated_at": NOW}
    return Record(id=INSTANCE, seed=b"s", project_id=project_id, **times, **values)


def crawl_ec2(ask: Ask, folder: str) -> Iterator[tuple[str, Answer]]:
    """Yield what cloud-init fetches of a tree (cloudinit/sources/helpers/ec2.py)."""
    listing = ask(folder)
    yield folder, listing
    for field in listing.body.decode().splitlines():
        if field.endswith("/"):
            yield from crawl_ec2(ask, f"{folder}{field}")
            continue
        number, equals, _name = field.partition("=")
        leaf = f"{folder}{number}/openssh-key" if equals else f"{folder}{field}"
        yield leaf, ask(leaf)


def crawl_equinix(ask: Ask, folder: str) -> Iterator[tuple[str, Answer]]:
    """Yield a tree whose listings do not tell folders from items."""
    listing = ask(folder)
    yield folder, listing
    for name in listing.body.decode().splitlines():
        path = f"{folder}/{name.removesuffix('/')}"
        inner = name.endswith("/") or name in ("operating-system", "license-activation", "spot")
        if inner:
            yield from crawl_equinix(ask, path)
        else:
            yield path, ask(path)


def crawl_flat(ask: Ask, folder: str) -> Iterator[tuple[str, Answer]]:
    """Yield a folder of files."""
    listing = ask(folder)
    yield folder, listing
    for name in listing.body.decode().splitlines():
        yield f"{folder}/{name}", ask(f"{folder}/{name}")


def crawl(ask: Ask, *, ec2_tree: str = "cloud-init") -> Iterator[tuple[str, Answer]]:
    """Yield every path that a listing names, from the roots down, with its answer."""
    yield "/", ask("/")
    for version in ask("/").body.decode().splitlines():
        if ec2.OWN_SINCE < version < "latest" and version != ec2.TAGS_SINCE:
            # The same tree as in the version before.
            continue
        if version == "2009-04-04" and ec2_tree == "equinix":
            yield from crawl_equinix(ask, f"/{version}")
        else:
            yield from crawl_ec2(ask, f"/{version}/")
    yield "/openstack", ask("/openstack")
    for version in ask("/openstack").body.decode().splitlines():
        yield from crawl_flat(ask, f"/openstack/{version}")
    yield from crawl_flat(ask, "/nocloud")
