"""Many guests that haproxy knows: each asks once, and haproxy answers all of them itself.

The guests are ports of :class:`tests.harness.crowd.Crowd`: the switch has received their first
SYNs. Their requests take the path of :mod:`bench.direct`. haproxy hands the request of a guest
without an entry in its map over to the daemon, which counts the requests that it answers. So if the
daemon has answered none, the map has an entry for each of the guests.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from bench.direct import Direct
from bench.load import PATH
from bench.programs import METADATA_IP
from bench.stand import PORT, Stand
from tests.harness.agent import Agent

_REQUEST = f"GET {PATH} HTTP/1.1\r\nHost: {METADATA_IP}\r\nConnection: close\r\n\r\n".encode()
_TIMEOUT = 5.0

Keys = Sequence[IPv4Address | IPv6Address]


class Crowded:
    """A stand whose guests are ports of the crowd, and the path that bypasses its switch.

    :param count: number of guests. Those that were plugged last are the sources of the path.
    :param sources: number of these sources.
    """

    def __init__(self, stand: Stand, count: int, *, sources: int) -> None:
        self.stand = stand
        with stand.daemon(0):
            self.keys: Keys = stand.add_crowd(0, count)
            self.direct = Direct(stand.host.namespace, self.keys[-sources:])
            self.direct.add(self.keys[:-sources])

    def check(self) -> None:
        """Check that haproxy, which runs, knows every guest.

        :raises AssertionError: it does not.
        """
        check(self.stand.agent, self.direct, self.keys)


def check(agent: Agent, direct: Direct, keys: Keys) -> None:
    """Send a request from each key, an address of *direct*; haproxy must answer all of them itself.

    :raises AssertionError: a request had another answer, or the daemon has answered one.
    """
    before = by_daemon(agent)
    for key in keys:
        answer = asked(direct, str(key))
        assert answer.startswith(b"HTTP/1.1 200 "), (key, answer)
    assert by_daemon(agent) == before, f"the daemon has answered {by_daemon(agent) - before:g}"


def asked(direct: Direct, source: str) -> bytes:
    """Return the answer to a request from *source*."""
    connection = direct.namespace.open_socket()
    with connection:
        connection.settimeout(_TIMEOUT)
        connection.bind((source, 0))
        connection.connect((METADATA_IP, PORT))
        connection.sendall(_REQUEST)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


def by_daemon(agent: Agent) -> float:
    """Return the number of requests that the daemon has answered itself."""
    return agent.metric("dfmeta_request_seconds_count")


def haproxy_of(agent: Agent) -> int:
    """Return the process id of the daemon's haproxy.

    :raises ValueError: there is not exactly one.
    """
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    (result,) = (int(pid) for pid in children if _name(pid) == "haproxy")
    return result


def _name(pid: str) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
