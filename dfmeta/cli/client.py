"""Requests to the running daemon, over its admin listener."""

from __future__ import annotations

from functools import partial
from typing import Any

import httplib2
from oslo_config import cfg

from dfmeta.doctor.agent import Agent, HangsError, another_program
from dfmeta.errors import NotRunningError
from dfmeta.host.process import read_process
from dfmeta.store import strictjson
from dfmeta.wiring.lock import lock_name

TIMEOUT = 10.0


def agent_of(conf: cfg.ConfigOpts) -> Agent:
    """Return the running daemon that *conf* is for."""
    return Agent(conf.df_metadata.admin_listen, partial(request_agent, conf))


def ask_agent(conf: cfg.ConfigOpts, path: str) -> Any:
    """Return the JSON document at *path* of the admin listener that *conf* names.

    :raises NotRunningError: when there is no answer, or another program answers.
    """
    return agent_of(conf).ask(path)


def request_agent(
    conf: cfg.ConfigOpts, path: str, method: str = "GET", *, timeout: float = TIMEOUT
) -> tuple[int, Any]:
    """Return the status and the JSON document of an answer; None for one without a body.

    :param timeout: seconds.
    :raises HangsError: when the daemon's process is there and does not answer in time.
    :raises NotRunningError: when there is no answer, or it is not JSON.
    """
    address = conf.df_metadata.admin_listen
    client = httplib2.Http(timeout=timeout, proxy_info=None)
    try:
        response, body = client.request(f"http://{address}{path}", method)
    except (OSError, httplib2.HttpLib2Error) as error:
        pid = daemon_pid(conf) if isinstance(error, TimeoutError) else 0
        if pid:
            raise hangs(address, pid, timeout) from error
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
        raise another_program(address, f"the answer for {path} is not JSON") from error


def daemon_pid(conf: cfg.ConfigOpts) -> int:
    """Return the process of the daemon that *conf* is for; 0: there is none, or it is not visible.

    It does not have to answer.
    """
    group = conf.df_metadata
    process = read_process(lock_name(group.ovsdb_connection, group.integration_bridge))
    return process.pid if process is not None else 0


def hangs(address: str, pid: int, seconds: float) -> HangsError:
    """Return the error for a daemon that does not answer within *seconds*."""
    return HangsError(
        pid=pid,
        cause=f"it does not answer at {address} within {seconds:g} s",
        remedy="Restart it: systemctl restart dfmeta-agent",
    )
