"""The admin API in a process of its own, served as a daemon does it: eventlet over OS threads."""

import http.client
import json
import os
import socket
import sys
from collections.abc import Mapping
from subprocess import Popen
from tempfile import TemporaryFile
from typing import Any, Self

from tests.harness import netns
from tests.harness.closing import Closing
from tests.harness.poll import DEADLINE, wait_for


class ApiServer(Closing):
    """A server on a port of loopback; a context manager.

    :param url: of its database.
    :param secured: it asks for tokens, see :class:`tests.core.unit.store.api.support.Tokens`.
    """

    def __init__(self, url: str, *, secured: bool = False) -> None:
        self._arguments = [url, "secured" if secured else "open"]
        self.port = 0
        self._process: Popen[bytes] | None = None
        self._stderr = TemporaryFile()  # noqa: SIM115  # it lives as long as this does

    def __enter__(self) -> Self:
        self.start()
        return self

    def close(self) -> None:
        """Kill the server."""
        self.kill()
        self._stderr.close()

    def start(self) -> None:
        """Start it, and return once it answers."""
        # The listener is handed over: another test's program cannot take its port meanwhile.
        with socket.create_server(("127.0.0.1", 0)) as sock:
            self.port = sock.getsockname()[1]
            self._process = netns.spawn(
                [sys.executable, "-m", "tests.host.store.server", *self._arguments],
                cwd=netns.ROOT,
                stdin=sock,
                stderr=self._stderr,
            )
        wait_for(self._answers, "the admin API")

    def kill(self) -> None:
        """SIGKILL, as ``kill -9`` sends it, and wait for it to be gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def complaints(self) -> str:
        """All that it has written to stderr, but for its audit."""
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("Audit: "))

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.complaints()
        try:
            with Connection(self.port) as connection:
                connection.ask("GET", "/")
        except ConnectionError:
            return False
        return True


class Connection(Closing):
    """A kept-alive connection to a server; a context manager."""

    def __init__(self, port: int, *, headers: Mapping[str, str] | None = None) -> None:
        self._headers = dict(headers or {})
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def ask(self, method: str, path: str, members: Any = None) -> tuple[int, bytes]:
        """Return status and body; ``members`` go along as JSON."""
        body = None if members is None else json.dumps(members)
        self._http.request(method, path, body, self._headers)
        response = self._http.getresponse()
        return response.status, response.read()


def main() -> None:
    """Serve until killed: ``server.py URL open|secured``, with the listener as standard input."""
    _program, url, how = sys.argv
    from dfmeta.runtime import patch

    patch()
    import eventlet
    from eventlet.green import socket as green_socket

    from dfmeta.admin import listener as admin
    from dfmeta.runtime.hub import Health
    from dfmeta.wiring.store import open_repository
    from tests.core.unit.store.api.support import Tokens, make_api

    api = make_api(open_repository(url), authorizer=Tokens() if how == "secured" else None)
    application = admin.AdminApplication(Health(), list, {}, api=api)
    listener = green_socket.socket(fileno=os.dup(0))
    admin.serve("", application, sock=listener)
    while True:
        eventlet.sleep(3600)


if __name__ == "__main__":
    main()
