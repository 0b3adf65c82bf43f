"""Requests to the running daemon, over its admin listener."""

from __future__ import annotations

from typing import Any

import httplib2
from oslo_config import cfg

from dfmeta.exceptions import NotRunningError
from dfmeta.store import strictjson

TIMEOUT = 10.0


def ask_agent(conf: cfg.ConfigOpts, path: str) -> Any:
    """Return the JSON document at *path* of the admin listener that *conf* names.

    :raises NotRunningError: when there is no answer, or another program answers.
    """
    status, document = request_agent(conf, path)
    if status != 200:
        raise _another(conf.df_metadata.admin_listen, f"{path} is answered with {status}")
    return document


def request_agent(
    conf: cfg.ConfigOpts, path: str, method: str = "GET", *, timeout: float = TIMEOUT
) -> tuple[int, Any]:
    """Return the status and the JSON document of an answer; None for one without a body.

    :param timeout: seconds.
    :raises NotRunningError: when there is no answer, or it is not JSON.
    """
    address = conf.df_metadata.admin_listen
    client = httplib2.Http(timeout=timeout, proxy_info=None)
    try:
        response, body = client.request(f"http://{address}{path}", method)
    except (OSError, httplib2.HttpLib2Error) as error:
        raise NotRunningError(
            address=address,
            cause=getattr(error, "strerror", None) or error,
            remedy="Start it, or name its configuration with --config-file",
        ) from error
    finally:
        client.close()
    try:
        return response.status, None if response.status == 204 else strictjson.loads(body)
    except ValueError as error:
        raise _another(address, f"the answer for {path} is not JSON") from error


def _another(address: str, cause: str) -> NotRunningError:
    remedy = "Another program listens there: see [df_metadata] admin_listen"
    return NotRunningError(address=address, cause=cause, remedy=remedy)
