"""The server of guests' connections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dfmeta import metrics
from dfmeta.http.exchange import Handler
from dfmeta.http.limits import Limits
from dfmeta.http.server import ClaimSource, HttpServer
from dfmeta.http.service import HttpService, RefusalThrottle
from dfmeta.identity.registry import Claim
from dfmeta.proxy import access


def guest_service(
    application: Handler[Claim], *, limits: Limits, hold_timeout: float
) -> HttpService[Claim]:
    """Return the service of a server for guests."""
    return HttpService(
        application,
        access,
        limits=limits,
        hold_timeout=hold_timeout,
        throttle=RefusalThrottle(),
    )


def guest_server(
    listeners: Sequence[Any],
    claims: ClaimSource[Claim],
    application: Handler[Claim],
    *,
    device: str = "",
    limits: Limits,
    hold_timeout: float,
) -> HttpServer[Claim]:
    """Return the server for guests, whose connections are the metric ``dfmeta_open_connections``.

    :param device: name of tap-metadata, through which answers leave; empty: through any device.
    """
    service = guest_service(application, limits=limits, hold_timeout=hold_timeout)
    metrics.CONNECTIONS.set_function(service.limiter.__len__)
    return HttpServer(listeners, claims, service, device=device)
