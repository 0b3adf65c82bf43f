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
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import webob

from dfmeta.admin import browsers, listener, server
from dfmeta.errors import DfmetaError

if TYPE_CHECKING:
    from dfmeta.attach.engine import AttachmentEngine

LOG = logging.getLogger(__name__)

ROOT: Final = "/attachments"
GC: Final = f"{ROOT}/gc"
_ATTACHMENT: Final = re.compile(rf"{ROOT}/([0-9a-f-]{{36}})", re.ASCII)
_ROOT_USER: Final = 0
_NOT_ROOT: Final = "root alone may change attachments: run the command as root"
_NO_ATTACHMENT: Final = "there is no such attachment"
_OFF: Final = "attachments are off: set [attachments] enabled and restart dfmeta-agent"


class AttachmentsApi:
    """Further routes of the admin listener, see :class:`dfmeta.admin.listener.AdminRoutes`.

    :param engine: return the engine; None: attachments are off.
    :param names: names of this host, see :func:`dfmeta.admin.browsers.own_names`.
    :param user: return the user id of a client, see :func:`dfmeta.host.listeners.client_user`.
    """

    def __init__(
        self,
        engine: Callable[[], AttachmentEngine | None],
        names: frozenset[str],
        user: Callable[..., int | None],
    ) -> None:
        self._engine, self._names, self._user = engine, names, user
        self._listing = listener.ListingCache(self._report)

    def handles(self, path: str) -> bool:
        """Return whether *path* belongs to these routes."""
        return path == ROOT or path.startswith(f"{ROOT}/")

    def __call__(self, request: webob.Request) -> webob.Response:
        """Answer one request."""
        refused = browsers.cross_origin_reason(request.headers, self._names)
        if not refused and not request.environ.get(server.SAME_HOST):
            refused = "this host alone may ask"
        if refused:
            return _message(403, refused)
        engine = self._engine()
        if engine is None:
            return _message(404, _OFF)
        path = request.path_info
        match = _ATTACHMENT.fullmatch(path)
        if path != GC and path != ROOT and match is None:
            return _message(404, _NO_ATTACHMENT)
        methods = "GET, HEAD" if path == ROOT else "POST" if path == GC else "DELETE"
        if request.method not in methods.split(", "):
            return _message(405, f"this path has {methods}", allow=methods)
        if path != ROOT and not self._may_change(request):
            return _message(403, _NOT_ROOT)
        try:
            if path == ROOT:
                return listener.json_response(self._listing.text())
            return self._delete(engine, match[1]) if match else self._compare(engine)
        except DfmetaError as error:
            return _message(503, error.line)

    def _delete(self, engine: AttachmentEngine, attachment: str) -> webob.Response:
        if not engine.dismiss(attachment):
            return _message(404, _NO_ATTACHMENT)
        self._listing.forget()
        LOG.info("Attachments: an operator has deleted %s", attachment)
        return webob.Response(status=204)

    def _compare(self, engine: AttachmentEngine) -> webob.Response:
        changes = engine.tidy_now()
        self._listing.forget()
        LOG.info(
            "Attachments: compared for an operator: %d removed, %d waiting",
            changes["removed"],
            changes["waiting"],
        )
        return listener.json_response(changes)

    def _report(self) -> list[dict[str, Any]]:
        engine = self._engine()
        return [] if engine is None else engine.report()

    def _may_change(self, request: webob.Request) -> bool:
        ends = request.environ[server.ENDS]
        return bool(ends) and self._user(*ends) in (_ROOT_USER, os.geteuid())


def _message(status: int, message: str, *, allow: str = "") -> webob.Response:
    return listener.json_response({"message": message}, status=status, allow=allow)
