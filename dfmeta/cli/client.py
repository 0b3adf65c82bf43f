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
    address = conf.df_metadata.admin_listen
    client = httplib2.Http(timeout=TIMEOUT, proxy_info=None)
    try:
        response, body = client.request(f"http://{address}{path}")
    except (OSError, httplib2.HttpLib2Error) as error:
        raise NotRunningError(
            address=address,
            cause=getattr(error, "strerror", None) or error,
            remedy="Start it, or name its configuration with --config-file",
        ) from error
    finally:
        client.close()
    try:
        if response.status == 200:
            return strictjson.loads(body)
        cause = f"{path} is answered with {response.status}"
    except ValueError:
        cause = f"the answer for {path} is not JSON"
    raise NotRunningError(
        address=address,
        cause=cause,
        remedy="Another program listens there: see [df_metadata] admin_listen",
    )
