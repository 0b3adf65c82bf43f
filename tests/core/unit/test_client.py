"""Another program where the daemon should listen is named, whatever it answers with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from oslo_config import cfg

import dfmeta.conf
from dfmeta.cli.client import ask_agent
from dfmeta.cli.gather import daemon_facts, daemon_version
from dfmeta.exceptions import NotRunningError
from tests.harness.closing import serving


@contextlib.contextmanager
def stranger(content: bytes) -> Iterator[cfg.ConfigOpts]:
    """A configuration whose admin listener is another program's."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_args: object) -> None:
            pass

    with serving(HTTPServer(("127.0.0.1", 0), Handler)) as server:
        conf = dfmeta.conf.load([], prog="test")
        address = f"127.0.0.1:{server.server_port}"
        conf.set_override("admin_listen", address, group="df_metadata")
        yield conf


def test_an_answer_without_json_is_another_program_s() -> None:
    for content in (b"[" * 100_000, b'{"status": ' * 100_000, b"<html>", b"\xff", b""):
        with stranger(content) as conf:
            with pytest.raises(NotRunningError, match="is not JSON"):
                ask_agent(conf, "/ports")
            assert daemon_facts(conf).cause == "its answer is not dfmeta-agent's"
            assert daemon_version(conf) == ""
