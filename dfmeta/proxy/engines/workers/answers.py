"""The daemon's answers to requests of its workers; see
:mod:`dfmeta.proxy.engines.workers.remote`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dfmeta.attach.documents import refusal
from dfmeta.errors import BackendError, BackendUpstreamError
from dfmeta.model import Endpoint, Identity
from dfmeta.proxy.application import Backend
from dfmeta.proxy.attachments import Local
from dfmeta.proxy.backends.network_data import Vlan
from dfmeta.proxy.engines.workers.pipe import Message, Pipe, answer_fields, request_of
from dfmeta.proxy.rate import RateLimiter
from dfmeta.runtime import clock, threads
from dfmeta.runtime.throttle import Complaints

LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class WorkerAnswers:
    """Answers requests of workers.

    A worker has checked the claim of the request already, and checks it again before an answer
    leaves.
    """

    backend: Backend
    subports: Callable[[Identity], Sequence[Vlan]]
    """Returns the VLANs of a VM."""
    rates: RateLimiter
    complaints: Complaints
    attachments: Local | None = None
    """The API of attachments; None: it is not enabled, and workers do not ask for it."""

    def handle(self, pipe: Pipe, message: Message) -> bool:
        """Handle a message of a worker; return False if it is of another kind."""
        match message["what"]:
            case "rate":
                verdict = self.rates.ask(Endpoint(*message["endpoint"]), message["ip"])
                fields = {name: getattr(verdict, name) for name in type(verdict).__slots__}
                pipe.answer(message, fields)
            case "subports":
                found = self.subports(Identity(**message["identity"]))
                pipe.answer(message, {"vlans": [[*one] for one in found]})
            case "complaint":
                self.complaints.about(
                    Endpoint(*message["endpoint"]),
                    message["kind"],
                    "%s",
                    message["text"],
                    level=message["level"],
                )
            case "attach?":
                endpoint = Endpoint(*message["endpoint"])
                allowed = self.attachments is not None and self.attachments.allows_at(endpoint)
                pipe.answer(message, {"allowed": allowed})
            case "attach":
                threads.spawn_detached(self._attach, pipe, message)
            case "open":
                threads.spawn_detached(self._ask_backend, pipe, message)
            case _:
                return False
        return True

    def _attach(self, pipe: Pipe, message: Message) -> None:
        answer = None
        try:
            if self.attachments is not None:
                answer = self.attachments.of_worker(
                    Endpoint(*message["endpoint"]),
                    message["incarnation"],
                    request_of(message["request"]),
                    message["source_port"],
                )
        except Exception as error:
            # A defect costs only this request.
            LOG.exception(
                "A request for attachments failed: %s. Report this with the traceback below",
                type(error).__name__,
            )
            answer = refusal(500, "defect", "An error in dfmeta; its log has the cause")
        if answer is None:
            pipe.answer(message, {"status": 0})
            return
        pipe.answer(message, answer_fields(answer), answer.body)

    def _ask_backend(self, pipe: Pipe, message: Message) -> None:
        identity = Identity(**message["identity"])
        try:
            request, words = request_of(message["request"]), message["goes_on"]
            deadline = clock.now() + message["patience"]
            view = self.backend.open(
                request, identity, deadline=deadline, goes_on=lambda said: said in words
            )
            if view.http_tokens not in words:
                pipe.answer(message, {"http_tokens": view.http_tokens})
                return
            answer = view.answer()
        except BackendError as error:
            upstream = isinstance(error, BackendUpstreamError)
            fields = {"error": str(error.cause), "remedy": error.remedy, "upstream": upstream}
            pipe.answer(message, fields)
            return
        fields = {"http_tokens": view.http_tokens, **answer_fields(answer)}
        pipe.answer(message, fields, answer.body)
