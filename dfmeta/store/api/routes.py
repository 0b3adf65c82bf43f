"""The admin API's routes: one table for the dispatch of requests and for OpenAPI.

Paths, methods and scopes are those of hollow-metadataservice (specification 003);
doc/source/store-api.rst names the differences.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dfmeta.store.auth.caller import accepted_scopes, scopes_for_any
from dfmeta.store.db.record import Kind

PREFIX: Final = "/api/v1"
"""Every route also exists below this prefix."""
ID: Final = "{id}"
"""Stands for an instance's id in a path."""


class Action(Enum):
    """Operation of a route on records."""

    DESCRIBE = "describe"
    FIND = "find"
    PUSH = "push"
    REFRESH = "refresh"
    LIST_DEVICES = "get-devices"
    ATTACH = "attach-device"
    DETACH = "detach-device"
    GET = "get"
    DELETE = "delete"
    LIST = "list"


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path."""

    method: str
    """GET, which stands for HEAD as well, POST or DELETE."""
    path: str
    """Without the prefix; :data:`ID` stands for one segment."""
    action: Action
    kind: Kind | None = None
    """Kind of the records; None: both kinds, or no record."""
    scopes: tuple[str, ...] = ()
    """Any one is sufficient; empty: no token is required."""

    @property
    def changes(self) -> bool:
        """Whether the route changes records."""
        return self.method != "GET"


def _routes() -> Iterator[Route]:
    yield Route("GET", "/openapi.json", Action.DESCRIBE)
    for kind in Kind:
        path = f"/device-{kind}"
        read, upsert = accepted_scopes("read", kind), accepted_scopes("upsert", kind)
        yield Route("GET", path, Action.FIND, kind, read)
        yield Route("POST", path, Action.PUSH, kind, upsert)
        yield Route("POST", f"{path}/refresh/{ID}", Action.REFRESH, kind, upsert)
        if kind is Kind.METADATA:
            devices = f"{path}/{ID}/devices"
            yield Route("GET", devices, Action.LIST_DEVICES, kind, read)
            yield Route("POST", devices, Action.ATTACH, kind, upsert)
            # Detaching a device changes a record and does not delete it.
            yield Route("DELETE", devices, Action.DETACH, kind, upsert)
        yield Route("GET", f"{path}/{ID}", Action.GET, kind, read)
        yield Route("DELETE", f"{path}/{ID}", Action.DELETE, kind, accepted_scopes("delete", kind))
    yield Route("GET", "/records", Action.LIST, None, scopes_for_any("read"))


ROUTES: Final = tuple(_routes())
"""In the order of matching."""

Methods = Mapping[str, Route]
_PATHS: Final[Mapping[tuple[str, ...], dict[str, Route]]] = {
    tuple(path.split("/")[1:]): {route.method: route for route in ROUTES if route.path == path}
    for path in dict.fromkeys(route.path for route in ROUTES)
}
_FIRST: Final = frozenset(segments[0] for segments in _PATHS)


def is_ours(path: str) -> bool:
    """Whether the API answers requests for a path, even if only with 404.

    :param path: PATH_INFO, from the client.
    """
    first = path.removeprefix("/").partition("/")[0]
    return first in _FIRST or path == PREFIX or path.startswith(f"{PREFIX}/")


def find(path: str) -> tuple[Methods, str]:
    """Return the routes of a path by method, and the text in the place of the instance's id.

    :param path: PATH_INFO, from the client; the id may be any text that is not empty.
    :returns: no routes for an unknown path; an empty id for a path without one.
    """
    root, *segments = path.removeprefix(PREFIX).split("/")
    for names, methods in _PATHS.items():
        if root == "" and len(names) == len(segments):
            pairs = list(zip(names, segments, strict=True))
            if all(given if name == ID else given == name for name, given in pairs):
                return methods, next((given for name, given in pairs if name == ID), "")
    return {}, ""


def allowed(methods: Methods) -> tuple[str, ...]:
    """Return the methods of a path for the header Allow (RFC 9110, 10.2.1)."""
    existing = {*methods, *(["HEAD"] if "GET" in methods else [])}
    return tuple(method for method in ("GET", "HEAD", "POST", "DELETE") if method in existing)
