"""The attachments of all VMs, for operators, on the admin listener.

``GET /attachments`` lists them, ``DELETE /attachments/ID`` deletes one, and ``POST
/attachments/gc`` compares the table with the data plane at once. Only this host may ask, and only
root and the daemon's own user may change anything: the listener has no authentication, and other
users of the host must not cut a container off.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import webob

from dfmeta.admin.browsers import cross_origin_reason
from dfmeta.admin.listener import Reused, json_response
from dfmeta.admin.server import ENDS, SAME_HOST
from dfmeta.errors import DfmetaError

LOG = logging.getLogger(__name__)

ROOT: Final = "/attachments"
GC: Final = f"{ROOT}/gc"
_ONE: Final = re.compile(rf"{ROOT}/([0-9a-f-]{{36}})", re.ASCII)
_ROOT_USER: Final = 0
_NOT_ROOT: Final = "root alone may change attachments: run the command as root"
_OFF: Final = "attachments are off: set [attachments] enabled and restart dfmeta-agent"


class AttachmentSource(Protocol):
    """:class:`dfmeta.attach.engine.AttachmentEngine`; its calls may block."""

    def report(self) -> Sequence[Mapping[str, Any]]:
        """Return all attachments."""

    def dismiss(self, attachment: str) -> bool:
        """Delete an attachment; return whether there was one."""

    def tidy_now(self) -> Mapping[str, int]:
        """Compare table and data plane; return what has changed, as numbers."""


class AttachmentsApi:
    """Further routes of the admin listener, see :class:`dfmeta.admin.listener.AdminRoutes`.

    :param source: return the engine; None: attachments are off.
    :param names: names of this host, see :func:`dfmeta.admin.browsers.own_names`.
    :param user: return the user id of a client, see :func:`dfmeta.host.listeners.client_user`.
    """

    def __init__(
        self,
        source: Callable[[], AttachmentSource | None],
        names: frozenset[str],
        user: Callable[..., int | None],
    ) -> None:
        self._source, self._names, self._user = source, names, user
        self._listing = Reused(self._report)

    def handles(self, path: str) -> bool:
        """Return whether *path* belongs to these routes."""
        return path == ROOT or path.startswith(f"{ROOT}/")

    def __call__(self, request: webob.Request) -> webob.Response:
        """Answer one request."""
        refused = cross_origin_reason(request.headers, self._names)
        if not refused and not request.environ.get(SAME_HOST):
            refused = "this host alone may ask"
        if refused:
            return _message(403, refused)
        source = self._source()
        if source is None:
            return _message(404, _OFF)
        path, method = request.path_info, request.method
        match = _ONE.fullmatch(path)
        try:
            if path == ROOT:
                if method not in ("GET", "HEAD"):
                    return _only("GET, HEAD")
                return json_response(self._listing.text())
            if path == GC:
                if method != "POST":
                    return _only("POST")
                if not self._may_change(request):
                    return _message(403, _NOT_ROOT)
                done = dict(source.tidy_now())
                self._listing.forget()
                LOG.info(
                    "Attachments: compared for an operator: %d removed, %d waiting",
                    done["removed"],
                    done["waiting"],
                )
                return json_response(done)
            if match is None:
                return _message(404, "there is no such attachment")
            if method != "DELETE":
                return _only("DELETE")
            if not self._may_change(request):
                return _message(403, _NOT_ROOT)
            if not source.dismiss(match[1]):
                return _message(404, "there is no such attachment")
            self._listing.forget()
            LOG.info("Attachments: an operator has deleted %s", match[1])
            return webob.Response(status=204)
        except DfmetaError as error:
            return _message(503, error.line)

    def _report(self) -> list[Mapping[str, Any]]:
        source = self._source()
        return [] if source is None else list(source.report())

    def _may_change(self, request: webob.Request) -> bool:
        ends = request.environ[ENDS]
        return bool(ends) and self._user(*ends) in (_ROOT_USER, os.geteuid())


def _message(status: int, message: str, *, allow: str = "") -> webob.Response:
    return json_response({"message": message}, status=status, allow=allow)


def _only(methods: str) -> webob.Response:
    return _message(405, f"this path has {methods}", allow=methods)
