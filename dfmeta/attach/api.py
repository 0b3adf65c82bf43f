"""The API of attachments, ``/dfmeta/v1/``: from a VM's request to the engine, and to its answer.

The port is the VM, but each process of the VM and each container behind its address translation
sends from the same port. So the API asks for two things more, which only the VM's own privileged
programs have:

- a source port below 1024, which an unprivileged process cannot bind (ip(7), ip_unprivileged_port_
  start). Address translation keeps ports below 1024 in that range, so that this is not enough;
- a token. All answers leave with a hop limit of 1 (:mod:`dfmeta.proxy.attachments`). A container
  behind the VM's address translation is one hop further away, and never gets one.

Trust: the request comes from a guest, the port from the registry. A token is valid for one kind of
request, one port and one instance.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from dfmeta.attach import answers, requests
from dfmeta.attach.access import Access
from dfmeta.attach.answers import NOT_HERE, ApiRefusalError, refuse, said
from dfmeta.attach.audit import Audit
from dfmeta.attach.limits import Alone
from dfmeta.attach.model import Attachment, Network, Parent, unknown_network
from dfmeta.errors import AttachError
from dfmeta.model import Answer, GuestRequest, Port
from dfmeta.store.guest.requests import split_path

if TYPE_CHECKING:
    # A worker uses this module, and has no database.
    from dfmeta.attach.engine import Engine

HEADER: Final = "x-dfmeta-token"
TTL_HEADER: Final = "x-dfmeta-token-ttl-seconds"
TTL_MAX: Final = 21600
"""Seconds for which a token may be valid."""
PRIVILEGED: Final = range(1, 1024)
"""Source ports that only a privileged process binds (ip(7))."""
PATIENCE: Final = 5.0
"""Seconds that a list or a status waits for those that the same VM has asked for before."""
GONE: Final = "link=gone"
"""Query of a deletion: the guest has deleted its device."""
_ROOT: Final = ["dfmeta", "v1"]
_TTL: Final = re.compile(r"[0-9]{1,5}", re.ASCII)
_NO_CONTENT: Final = Answer(204, content_type="")


class Tokens(Protocol):
    """Issues and verifies the API's own tokens."""

    def issue(self, port: Port, ttl: int) -> str:
        """Return a token for the VM at *port*, valid for *ttl* seconds."""
        ...

    def valid(self, token: str, port: Port) -> bool:
        """Whether the untrusted *token* was issued for the VM at *port*, and has not expired."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request, and the facts about it that are no part of it."""

    request: GuestRequest
    port: Port
    """The port that it came from."""
    source_port: int
    """TCP port that it was sent from; 0: not known."""
    forwarded: bool = False
    """It has a header of a proxy, in any spelling."""

    @property
    def parent(self) -> Parent:
        """The port as the engine knows it."""
        port = self.port
        return Parent(
            port_id=port.iface_id,
            port_name=port.name,
            instance_id=port.instance_id,
            project_id=port.project_id,
            mac=port.mac,
        )


@dataclass(frozen=True, slots=True)
class Route:
    """A kind of request: a method of a path."""

    name: str
    """For the log."""
    handler: Callable[[Api, Call, list[str]], Answer]


class Api:
    """Answers requests of VMs.

    :param networks: the engine's networks.
    :param access: which VMs get attachments, and on which networks.
    :param quota: the engine's quota, which limits the length of a garbage collection's list.
    :param wait: count one request of a port that has a valid token, and return the seconds to wait
        before it may be repeated; 0: it goes on.
    :param apart: call a function in another thread, while other guests are served.
    """

    def __init__(
        self,
        engine: Engine,
        tokens: Tokens,
        networks: Mapping[str, Network],
        *,
        access: Access,
        quota: int,
        wait: Callable[[Port], int] = lambda port: 0,
        apart: Callable[[Callable[[], bytes]], bytes] = lambda work: work(),
        audit: Audit | None = None,
    ) -> None:
        self._engine, self._tokens, self._networks = engine, tokens, networks
        self.access, self.quota = access, quota
        self._wait, self._apart = wait, apart
        self._alone = Alone("another list of the VM")
        self._audit = audit or Audit()

    def allows(self, port: Port) -> bool:
        """Return whether the VM at *port* gets attachments."""
        return self.access.allows(port)

    def refuse(self, call: Call) -> Answer | None:
        """Return the answer to a request that its head alone condemns; None: it goes on."""
        return self._in_words(call, lambda: self._check(call))

    def answer(self, call: Call) -> Answer:
        """Answer a request that :meth:`refuse` lets go on, with its whole body.

        May block, as the engine does. The request is checked again: the port may have changed while
        the body was read.
        """
        answer = self._in_words(call, lambda: self._check(call) or self._do(call))
        return answer or NOT_HERE

    def _in_words(self, call: Call, act: Callable[[], Answer | None]) -> Answer | None:
        try:
            return act()
        except ApiRefusalError as refused:
            answer, error = refused.answer, _word(refused.answer)
        except AttachError as failed:
            answer, error = answers.failed(failed), str(failed)
        if answer is not NOT_HERE:
            self._audit.refused(call.port, _name(call), answer.status, error)
        return answer

    def _check(self, call: Call) -> Answer | None:
        """Check everything but the path's names and the body.

        :raises ApiRefusalError: with the answer to a refused request.
        """
        request = call.request
        if not self.allows(call.port):
            raise ApiRefusalError(NOT_HERE)
        if call.forwarded:
            refuse(403, "forwarded", "A proxy passed this request on. Send it directly")
        if call.source_port not in PRIVILEGED:
            refuse(403, "not_privileged", "Send the request from a port below 1024, as root")
        methods = _routes(request.path)
        if not methods:
            raise ApiRefusalError(NOT_HERE)
        if request.method not in methods:
            allowed = ", ".join(methods)
            refuse(405, "method", f"This path has {allowed}", ("Allow", allowed))
        if methods is not _TOKEN_ROUTES:
            token = request.headers.get(HEADER, "")
            if not self._tokens.valid(token, call.port):
                message = f"Get a token with PUT /dfmeta/v1/token, and send it as {HEADER}"
                refuse(401, "token", message, ("WWW-Authenticate", "Bearer"))
        return None

    def _do(self, call: Call) -> Answer:
        methods, segments = _routes(call.request.path), _segments(call.request.path)
        if methods is not _TOKEN_ROUTES:
            seconds = self._wait(call.port)
            if seconds:
                message = "This VM sends too many requests. Send fewer of them"
                refuse(429, "rate", message, ("Retry-After", str(seconds)))
        if call.request.query and (call.request.method, call.request.query) != ("DELETE", GONE):
            refuse(400, "bad_request", f"The only query is DELETE's {GONE}")
        return methods[call.request.method].handler(self, call, segments[1:])

    # Requests

    def _token(self, call: Call, _names: list[str]) -> Answer:
        written = call.request.headers.get(TTL_HEADER, "")
        ttl = int(written) if _TTL.fullmatch(written) else 0
        if not 1 <= ttl <= TTL_MAX:
            requests.bad(f"The header {TTL_HEADER}", f"a number from 1 to {TTL_MAX}")
        token = self._tokens.issue(call.port, ttl)
        headers = ((TTL_HEADER, str(ttl)), ("Cache-Control", "no-store"))
        return Answer(200, token.encode(), "text/plain", headers)

    def _status(self, call: Call, _names: list[str]) -> Answer:
        with self._alone.by(call.port.iface_id, PATIENCE):
            now = self._engine.status(call.parent)
        networks = tuple(network for network in now.networks if self.access.opens(call.port, network.name))
        return said(200, answers.status(replace(now, networks=networks)))

    def _list(self, call: Call, _names: list[str]) -> Answer:
        with self._alone.by(call.port.iface_id, PATIENCE):
            attachments = self._engine.listed(call.parent)
            networks = dict(self._networks)

            def body() -> bytes:
                mac = call.port.mac
                rows = [answers.attachment(row, networks, parent_mac=mac) for row in attachments]
                return answers.encoded({"attachments": rows})

            return Answer(200, self._apart(body), content_type=answers.JSON)

    def _get(self, call: Call, names: list[str]) -> Answer:
        attachment = self._engine.get(call.parent, *_named(names))
        if attachment is None:
            raise ApiRefusalError(NOT_HERE)
        return said(200, self._document(call, attachment))

    def _put(self, call: Call, names: list[str]) -> Answer:
        wanted = requests.wanted(*_named(names), call.request.body)
        if not self.access.opens(call.port, wanted.network):
            raise unknown_network(wanted.network)
        made, new = self._engine.attach(call.parent, wanted)
        if new:
            self._audit.changed("added", call.port, made)
        return said(201 if new else 200, self._document(call, made))

    def _delete(self, call: Call, names: list[str]) -> Answer:
        container, ifname = _named(names)
        attachment = self._engine.get(call.parent, container, ifname)
        self._engine.detach(call.parent, container, ifname, gone=call.request.query == GONE)
        if attachment is not None:
            self._audit.changed("deleted", call.port, attachment)
        return _NO_CONTENT

    def _collect(self, call: Call, _names: list[str]) -> Answer:
        network, owner, valid = requests.collection(call.request.body)
        removed = self._engine.collect(call.parent, network, owner, valid)
        if removed:
            self._audit.collected(call.port, network, removed)
        return said(200, {"removed": removed})

    def _document(self, call: Call, attachment: Attachment) -> dict[str, object]:
        return answers.attachment(attachment, self._networks, parent_mac=call.port.mac)


_TOKEN_ROUTES: Final[Mapping[str, Route]] = {"PUT": Route("token", Api._token)}
_ROUTES: Final[Mapping[tuple[str, int], Mapping[str, Route]]] = {
    ("token", 0): _TOKEN_ROUTES,
    ("status", 0): {"GET": Route("status", Api._status), "HEAD": Route("status", Api._status)},
    ("gc", 0): {"POST": Route("garbage collection", Api._collect)},
    ("attachments", 0): {"GET": Route("list", Api._list), "HEAD": Route("list", Api._list)},
    ("attachments", 2): {
        "GET": Route("attachment", Api._get),
        "HEAD": Route("attachment", Api._get),
        "PUT": Route("attachment", Api._put),
        "DELETE": Route("attachment", Api._delete),
    },
}
"""First segment below /dfmeta/v1, and number of the segments after it → method → kind."""


def is_listing(request: GuestRequest) -> bool:
    """Return whether a request reads all attachments of a VM, which takes the longer the more.

    Such requests count in the ordinary limits of a guest's requests as well.
    """
    return request.method in ("GET", "HEAD") and _segments(request.path) in (
        ["attachments"],
        ["status"],
    )


def body_max(request: GuestRequest, quota: int) -> int:
    """Return the largest size of a request's body in bytes.

    :param quota: number of attachments that a VM may have, each with an entry in the list of a
        garbage collection.
    """
    if _segments(request.path) == ["gc"]:
        return max(requests.BODY_MAX, requests.ENTRY_MAX * quota)
    return requests.BODY_MAX


def _segments(path: str) -> list[str]:
    """Return the segments of a path below /dfmeta/v1; empty for any other path."""
    segments = split_path(path) or []
    return segments[len(_ROOT) :] if segments[: len(_ROOT)] == _ROOT else []


def _routes(path: str) -> Mapping[str, Route]:
    segments = _segments(path)
    return _ROUTES.get((segments[0], len(segments) - 1), {}) if segments else {}


def _named(names: list[str]) -> tuple[str, str]:
    """Return the container and the device that a path names.

    :raises ApiRefusalError: when they have not their form.
    """
    container, ifname = names
    if not requests.is_container(container):
        requests.bad("The container's id", "up to 128 letters, digits and _.- (CNI)")
    if not requests.is_ifname(ifname):
        requests.bad("The device's name", "up to 15 visible characters without / : and %")
    return container, ifname


def _name(call: Call) -> str:
    """Return method and kind of a request, in words of our own."""
    route = _routes(call.request.path).get(call.request.method)
    return f"{call.request.method} {route.name}" if route is not None else "a request"


def _word(answer: Answer) -> str:
    """Return the word for programs in a refusal."""
    return answer.body.split(b'"', 4)[3].decode()
