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

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

from dfmeta.attach import documents, limits, model
from dfmeta.attach.documents import NOT_HERE, ApiRefusalError, json_answer, refuse
from dfmeta.errors import AttachError
from dfmeta.model import TTL_MAX, Answer, GuestRequest, Port, PortKind
from dfmeta.runtime.clock import ANSWER_TIMEOUT
from dfmeta.runtime.throttle import ALL_GUESTS, Complaints
from dfmeta.store.guest.requests import split_path


@dataclass(frozen=True, slots=True)
class Access:
    """Ids of instances and projects that get attachments, in lower case."""

    default: frozenset[str] = frozenset()
    """For the networks without a list of their own. A VM whose row in OVSDB allows it
    (:attr:`~dfmeta.model.Port.attachments`) has these networks as well."""
    networks: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Network with a list of its own → that list, which counts alone."""

    def allows(self, port: Port) -> bool:
        """Return whether the VM at *port* gets attachments on any network."""
        if not _is_vm(port):
            return False
        return port.attachments or _names(port, self.default.union(*self.networks.values()))

    def opens(self, port: Port, network: str) -> bool:
        """Return whether the VM at *port* gets attachments on that network."""
        if not _is_vm(port):
            return False
        if network in self.networks:
            return _names(port, self.networks[network])
        return port.attachments or _names(port, self.default)


def _is_vm(port: Port) -> bool:
    """Return whether it is the untagged port of a VM: a container never gets attachments."""
    return bool(
        port.kind is not PortKind.SUBPORT and not port.vid and port.iface_id and port.instance_id
    )


def _names(port: Port, ids: frozenset[str]) -> bool:
    """Return whether *ids* has the instance or the project of *port*.

    An instance or project that a tenant may have named does not count
    (:attr:`~dfmeta.model.Port.unverified`).
    """
    owners = {port.instance_id.lower(), port.project_id.lower()}
    return not port.unverified and not owners.isdisjoint(ids)


if TYPE_CHECKING:
    # A worker uses this module, and has no database.
    from dfmeta.attach.engine import AttachmentEngine

LOG = logging.getLogger(__name__)

HEADER: Final = "x-dfmeta-token"
TTL_HEADER: Final = "x-dfmeta-token-ttl-seconds"
PRIVILEGED: Final = range(1, 1024)
"""Source ports that only a privileged process binds (ip(7))."""
GONE: Final = "link=gone"
"""Query of a deletion: the guest has deleted its device."""
_ROOT: Final = ["dfmeta", "v1"]
_TTL: Final = re.compile(r"[0-9]{1,5}", re.ASCII)
_NO_CONTENT: Final = Answer(204, content_type="")


class TokenIssuer(Protocol):
    """Issues and verifies the API's own tokens."""

    def issue(self, port: Port, ttl: int) -> str:
        """Return a token for the VM at *port*, valid for *ttl* seconds."""

    def valid(self, token: str, port: Port) -> bool:
        """Whether the untrusted *token* was issued for the VM at *port*, and has not expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """A request, and the facts about it that are no part of it."""

    request: GuestRequest
    port: Port
    """The port that it came from."""
    source_port: int
    """TCP port that it was sent from; 0: not known."""
    forwarded: bool = False
    """It has a header of a proxy, in any spelling."""

    @property
    def parent(self) -> model.Parent:
        """The port as the engine knows it."""
        port = self.port
        return model.Parent(
            port_id=port.iface_id,
            port_name=port.name,
            instance_id=port.instance_id,
            project_id=port.project_id,
            mac=port.mac,
        )


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """A kind of request: a method of a path."""

    name: str
    """For the log."""
    handler: Callable[[AttachmentApi, ApiCall, list[str]], Answer]


class AttachmentApi:
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
        engine: AttachmentEngine,
        tokens: TokenIssuer,
        networks: Mapping[str, model.Network],
        *,
        access: Access,
        quota: int,
        wait: Callable[[Port], int] = lambda port: 0,
        apart: Callable[[Callable[[], bytes]], bytes] = lambda work: work(),
    ) -> None:
        self._engine, self._tokens, self._networks = engine, tokens, networks
        self.access, self.quota = access, quota
        self._wait, self._apart = wait, apart
        self._alone = limits.Alone("another list of the VM")
        self._audit = AttachmentAudit()

    def allows(self, port: Port) -> bool:
        """Return whether the VM at *port* gets attachments."""
        return self.access.allows(port)

    def refuse(self, call: ApiCall) -> Answer | None:
        """Return the answer to a request that its head alone condemns; None: it goes on."""
        return self._in_words(call, lambda: self._check(call))

    def answer(self, call: ApiCall) -> Answer:
        """Answer a request that :meth:`refuse` lets go on, with its whole body.

        May block, as the engine does. The request is checked again: the port may have changed while
        the body was read.
        """
        answer = self._in_words(call, lambda: self._check(call) or self._do(call))
        return answer or NOT_HERE

    def _in_words(self, call: ApiCall, act: Callable[[], Answer | None]) -> Answer | None:
        try:
            return act()
        except ApiRefusalError as refused:
            answer, error = refused.answer, _word(refused.answer)
        except AttachError as failed:
            answer, error = documents.failed(failed), str(failed)
        if answer is not NOT_HERE:
            self._audit.refused(call.port, _name(call), answer.status, error)
        return answer

    def _check(self, call: ApiCall) -> Answer | None:
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

    def _do(self, call: ApiCall) -> Answer:
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

    def _token(self, call: ApiCall, _names: list[str]) -> Answer:
        written = call.request.headers.get(TTL_HEADER, "")
        ttl = int(written) if _TTL.fullmatch(written) else 0
        if not 1 <= ttl <= TTL_MAX:
            documents.bad(f"The header {TTL_HEADER}", f"a number from 1 to {TTL_MAX}")
        token = self._tokens.issue(call.port, ttl)
        headers = ((TTL_HEADER, str(ttl)), ("Cache-Control", "no-store"))
        return Answer(200, token.encode(), "text/plain", headers)

    def _status(self, call: ApiCall, _names: list[str]) -> Answer:
        with self._alone.by(call.port.iface_id, ANSWER_TIMEOUT):
            now = self._engine.status(call.parent)
        networks = tuple(
            network for network in now.networks if self.access.opens(call.port, network.name)
        )
        return json_answer(200, documents.status(replace(now, networks=networks)))

    def _list(self, call: ApiCall, _names: list[str]) -> Answer:
        with self._alone.by(call.port.iface_id, ANSWER_TIMEOUT):
            attachments = self._engine.listed(call.parent)
            networks = dict(self._networks)

            def body() -> bytes:
                mac = call.port.mac
                rows = [documents.attachment(row, networks, parent_mac=mac) for row in attachments]
                return documents.encoded({"attachments": rows})

            return Answer(200, self._apart(body), content_type=documents.JSON)

    def _get(self, call: ApiCall, names: list[str]) -> Answer:
        attachment = self._engine.get(call.parent, *_named(names))
        if attachment is None:
            raise ApiRefusalError(NOT_HERE)
        return json_answer(200, self._document(call, attachment))

    def _put(self, call: ApiCall, names: list[str]) -> Answer:
        wanted = documents.wanted(*_named(names), call.request.body)
        if not self.access.opens(call.port, wanted.network):
            raise model.unknown_network(wanted.network)
        made, new = self._engine.attach(call.parent, wanted)
        if new:
            self._audit.changed("added", call.port, made)
        return json_answer(201 if new else 200, self._document(call, made))

    def _delete(self, call: ApiCall, names: list[str]) -> Answer:
        container, ifname = _named(names)
        attachment = self._engine.get(call.parent, container, ifname)
        self._engine.detach(call.parent, container, ifname, gone=call.request.query == GONE)
        if attachment is not None:
            self._audit.changed("deleted", call.port, attachment)
        return _NO_CONTENT

    def _collect(self, call: ApiCall, _names: list[str]) -> Answer:
        network, owner, valid = documents.collection(call.request.body)
        removed = self._engine.collect(call.parent, network, owner, valid)
        if removed:
            self._audit.collected(call.port, network, removed)
        return json_answer(200, {"removed": removed})

    def _document(self, call: ApiCall, attachment: model.Attachment) -> dict[str, object]:
        return documents.attachment(attachment, self._networks, parent_mac=call.port.mac)


_TOKEN_ROUTES: Final[Mapping[str, ApiRoute]] = {"PUT": ApiRoute("token", AttachmentApi._token)}
_ROUTES: Final[Mapping[tuple[str, int], Mapping[str, ApiRoute]]] = {
    ("token", 0): _TOKEN_ROUTES,
    ("status", 0): dict.fromkeys(("GET", "HEAD"), ApiRoute("status", AttachmentApi._status)),
    ("gc", 0): {"POST": ApiRoute("garbage collection", AttachmentApi._collect)},
    ("attachments", 0): dict.fromkeys(("GET", "HEAD"), ApiRoute("list", AttachmentApi._list)),
    ("attachments", 2): {
        **dict.fromkeys(("GET", "HEAD"), ApiRoute("attachment", AttachmentApi._get)),
        "PUT": ApiRoute("attachment", AttachmentApi._put),
        "DELETE": ApiRoute("attachment", AttachmentApi._delete),
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
        return max(documents.BODY_MAX, documents.ENTRY_MAX * quota)
    return documents.BODY_MAX


def _segments(path: str) -> list[str]:
    """Return the segments of a path below /dfmeta/v1; empty for any other path."""
    segments = split_path(path) or []
    return segments[len(_ROOT) :] if segments[: len(_ROOT)] == _ROOT else []


def _routes(path: str) -> Mapping[str, ApiRoute]:
    segments = _segments(path)
    return _ROUTES.get((segments[0], len(segments) - 1), {}) if segments else {}


def _named(names: list[str]) -> tuple[str, str]:
    """Return the container and the device that a path names.

    :raises ApiRefusalError: when they have not their form.
    """
    container, ifname = names
    if not documents.is_container(container):
        documents.bad("The container's id", "up to 128 letters, digits and _.- (CNI)")
    if not documents.is_ifname(ifname):
        documents.bad("The device's name", "up to 15 visible characters without / : and %")
    return container, ifname


def _name(call: ApiCall) -> str:
    """Return method and kind of a request, in words of our own."""
    route = _routes(call.request.path).get(call.request.method)
    return f"{call.request.method} {route.name}" if route is not None else "a request"


def _word(answer: Answer) -> str:
    """Return the word for programs in a refusal."""
    return answer.body.split(b'"', 4)[3].decode()


class AttachmentAudit:
    """The audit of attachments: one log line for each change, and for each refused request.

    Trust: container ids and names of devices have been checked for their form. A line has no token
    and no label. A VM can send any number of requests that are refused: the lines of one port are
    limited.
    """

    def __init__(self) -> None:
        self._refusals = Complaints(LOG)

    def changed(self, verb: str, port: Port, attachment: model.Attachment) -> None:
        """Note that an attachment was made, or that a VM has deleted it."""
        LOG.info(
            "Attachments: %s (%s): %s %s of container %s, network %s, VLAN %d, %s",
            port.name,
            port.instance_id,
            verb,
            attachment.ifname,
            attachment.container,
            attachment.network,
            attachment.vid,
            attachment.ip,
        )

    def collected(self, port: Port, network: str, removed: int) -> None:
        """Note that a runtime's garbage collection has removed attachments."""
        LOG.info(
            "Attachments: %s (%s): %d of network %s removed by garbage collection",
            port.name,
            port.instance_id,
            removed,
            network,
        )

    def refused(self, port: Port, what: str, status: int, error: str) -> None:
        """Note a refused request.

        :param what: method and kind of the request, none of the guest's own text.
        :param error: its word, see :func:`dfmeta.attach.documents.refusal`.
        """
        self._refusals.about(
            port.endpoint or ALL_GUESTS,
            what,
            "Attachments: %s (%s): %s refused with %d, %s",
            port.name,
            port.instance_id,
            what,
            status,
            error,
        )
