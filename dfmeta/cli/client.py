"""Requests to the running daemon, over its admin listener."""

from __future__ import annotations

from functools import partial
from typing import Any

from oslo_config import cfg

from dfmeta.doctor.agent import Agent, HangsError, another_program
from dfmeta.errors import NotRunningError, UpstreamError
from dfmeta.host.process import read_process
from dfmeta.http.client import HttpClient, UrlRequest
from dfmeta.http.responses import HttpResponse
from dfmeta.runtime import clock
from dfmeta.store import strictjson
from dfmeta.wiring.process import lock_name

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
    try:
        response = request_admin(address, path, method, timeout=timeout)
    except UpstreamError as error:
        pid = daemon_pid(conf) if isinstance(error.__cause__, TimeoutError) else 0
        if pid:
            raise hangs(address, pid, timeout) from error
        raise NotRunningError(
            address=address,
            cause=error.cause,
            remedy="Start it, or name its configuration with --config-file",
        ) from error
    try:
        return response.status, None if response.status == 204 else strictjson.loads(response.body)
    except ValueError as error:
        raise another_program(address, f"the answer for {path} is not JSON") from error


def request_admin(address: str, path: str, method: str = "GET", *, timeout: float) -> HttpResponse:
    """Return the answer of the admin listener at *address*, HOST:PORT.

    :param timeout: seconds.
    :raises UpstreamError: when there is no answer.
    """
    deadline = clock.now() + timeout
    return HttpClient().handle_request(
        UrlRequest(f"http://{address}{path}", deadline=deadline, method=method)
    )


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
