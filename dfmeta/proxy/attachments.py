"""The API of attachments for the application: in the daemon, or asked of the daemon by a worker."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Protocol
from urllib.parse import unquote_to_bytes

from dfmeta.attach.api import ApiCall, AttachmentApi, body_max, is_listing
from dfmeta.attach.documents import NOT_HERE, TOO_LARGE, failed
from dfmeta.errors import AttachDriverError, BadRequestError
from dfmeta.http.exchange import Abandoned, Exchange
from dfmeta.identity.registry import Claim, Registry
from dfmeta.model import Answer, Endpoint, GuestRequest, Port
from dfmeta.proxy.tokens import passed_on
from dfmeta.store.guest.requests import split_path

FIRST: Final = "dfmeta"
"""First segment of the paths of dfmeta's own APIs."""
HOPS: Final = 1
"""Hop limit of all that a VM with attachments gets on a connection after its first request for the
API: no router passes it on (RFC 791, 3.1; RFC 8200, 3)."""


class AttachmentResponder(Protocol):
    """The API, for requests whose path begins with :data:`FIRST`."""

    def allows(self, claim: Claim) -> bool:
        """Return whether the API limits the requests of that guest itself."""

    @property
    def quota(self) -> int:
        """Number of attachments that a VM may have; see :func:`dfmeta.attach.api.body_max`."""

    def refuse(self, exchange: Exchange[Claim]) -> Answer | None:
        """Return the answer to a request that its head condemns; None: its body is to be read.

        :raises OSError: when the guest has closed the connection.
        """

    def answer(self, exchange: Exchange[Claim]) -> Answer:
        """Answer a request with its whole body. May block.

        :raises Abandoned: when the claim does not hold any more.
        """


class LocalAttachments:
    """The API in the daemon; see :class:`AttachmentResponder`."""

    def __init__(self, api: AttachmentApi, registry: Registry) -> None:
        self._api, self._registry = api, registry

    def allows(self, claim: Claim) -> bool:
        """See :class:`AttachmentResponder`."""
        port = self._port(claim)
        return port is not None and self._api.allows(port)

    def allows_at(self, endpoint: Endpoint) -> bool:
        """Return whether the guest at *endpoint* is allowed, for a worker."""
        port = self._registry.port_at(endpoint)
        return port is not None and self._api.allows(port)

    @property
    def quota(self) -> int:
        """See :class:`AttachmentResponder`."""
        return self._api.quota

    def refuse(self, exchange: Exchange[Claim]) -> Answer | None:
        """See :class:`AttachmentResponder`."""
        return self._api.refuse(self._call(exchange))

    def answer(self, exchange: Exchange[Claim]) -> Answer:
        """See :class:`AttachmentResponder`."""
        return self._api.answer(self._call(exchange))

    def of_worker(
        self, endpoint: Endpoint, incarnation: int, request: GuestRequest, source_port: int
    ) -> Answer | None:
        """Answer a request that a worker passes on; None: the guest has changed."""
        identity = self._registry.identity(endpoint)
        port = self._registry.port_at(endpoint)
        if identity is None or port is None or identity.incarnation != incarnation:
            return None
        call = _call(request, port, source_port)
        return self._api.refuse(call) or self._api.answer(call)

    def _port(self, claim: Claim) -> Port | None:
        if not isinstance(claim.caller, Endpoint) or self._registry.current(claim) is None:
            return None
        return self._registry.port_at(claim.caller)

    def _call(self, exchange: Exchange[Claim]) -> ApiCall:
        port = self._port(exchange.claim)
        if port is None:
            raise Abandoned("changed")
        return _call(exchange.request, port, exchange.source_port)


def _call(request: GuestRequest, port: Port, source_port: int) -> ApiCall:
    return ApiCall(
        request=request, port=port, source_port=source_port, forwarded=passed_on(request)
    )


def is_ours(path: str) -> bool:
    """Return whether an origin-form path is one of dfmeta's own APIs, in any spelling.

    An invalid path is, if any of its segments is the APIs' first: another server would resolve it.
    """
    # The first check is fast and excludes nearly all other paths.
    if "%" not in path and FIRST not in path:
        return False
    segments = split_path(path)
    if segments is None:
        return FIRST.encode() in unquote_to_bytes(path).split(b"/")
    return segments[:1] == [FIRST]


def answer(
    attachments: AttachmentResponder | None,
    exchange: Exchange[Claim],
    guard: Callable[[Callable[[], Answer | None]], Answer | None],
) -> Answer:
    """Answer a request for which :func:`is_ours` is true.

    :param attachments: None: there is no API.
    :param guard: calls a function, and turns its errors into an answer.
    :raises Abandoned: when the connection is to be closed without an answer.
    :raises BadRequestError: when the body is malformed, or not complete in time.
    :raises OSError: when the guest has closed the connection.
    """
    if attachments is None:
        return NOT_HERE
    if attachments.allows(exchange.claim):
        exchange.limit_hops(HOPS)
    refused = guard(lambda: attachments.refuse(exchange))
    if refused is not None:
        return refused
    try:
        whole = exchange.whole(body_max(exchange.request, attachments.quota))
    except BadRequestError as error:
        if error.status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise
        return TOO_LARGE
    if is_listing(exchange.request) and not exchange.acquire(exchange.deadline):
        return failed(AttachDriverError(cause="other requests of the VM take too long"))
    return guard(lambda: attachments.answer(whole)) or NOT_HERE
