"""The parameters of haproxy: its program and its configuration.

Nothing here waits or needs the hub: the daemon and ``dfmeta doctor`` run the program in one way.
Trust: all parameters come from the operator or the daemon.
"""

import os
import sys
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from dfmeta.flows.pipeline import METADATA_IP
from dfmeta.http.limits import Limits

MODULE: Final = "dfmeta.cmd.privileges"
"""The program that becomes the user, gives up all privileges, and then becomes haproxy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """How haproxy is run."""

    binary: str
    """Path of the program."""
    user: str
    """User that it runs as if the daemon is root; empty: a user id that no other process has."""
    version: str = ""
    """What the program says of its version, such as ``2.6.12-1+deb12u3``."""
    lua: bool = True
    """Whether the program was built with Lua."""

    def command(self, *arguments: str, descriptors: int) -> list[str]:
        """Return the command that runs it; it does not run if this process has ended.

        :param arguments: for haproxy.
        :param descriptors: most descriptors that it may have open.
        """
        words = [self.user, str(descriptors), str(os.getpid()), self.binary, *arguments]
        return [sys.executable, "-m", MODULE, *words]


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """Contents of the files for TLS; empty: none."""

    ca: bytes = b""
    """Trusted authorities, PEM."""
    cert: bytes = b""
    """The client's certificate and its private key, PEM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NovaServer:
    """One address of one Nova host."""

    host: str
    """Name or address as the operator wrote it, for the certificate."""
    authority: str
    """Value of the Host header."""
    address: IPv4Address | IPv6Address
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptors:
    """Descriptors that haproxy inherits."""

    listeners: tuple[int, ...]
    """The guests' listeners."""
    handover: int
    """Place of the daemon's listener; see
    :class:`~dfmeta.proxy.engines.haproxy.handover.Entrance`."""
    cli: int
    """haproxy's end of the runtime interface."""
    log: int
    """Pipe for the lines about failed requests."""
    map: int
    """File of the map, which is empty."""
    away: int
    """File with the answer for a Nova that gives none."""
    ca: int | None = None
    """File of trusted authorities; None: the system's."""
    cert: int | None = None
    """File of the client's certificate and key; None: it has none."""
    waiting: int | None = None
    """File of :func:`~dfmeta.proxy.engines.haproxy.config.waiting`; None: this haproxy has no
    Lua."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HaproxyPlan:
    """Everything that a process of haproxy depends on, except its descriptors."""

    program: Program = Program(binary="haproxy", user="")
    secrets: Secrets = field(default=Secrets(), repr=False)
    servers: tuple[NovaServer, ...]
    """Nova's hosts in their order; empty: the daemon is asked for everything."""
    several: bool = False
    """Whether there are several hosts, so that a slow one is given half of the time."""
    tls: bool = False
    insecure: bool = False
    """With TLS: whether any certificate is accepted."""
    limits: Limits = field(default_factory=Limits)
    hold_timeout: float = 8.0
    """Seconds."""
    timeout_answer: str = "auto"
    """``auto``, ``503`` or ``close``."""
    refuse_forwarded: bool = False
    """Whether requests that a proxy forwarded are refused."""
    debug: bool = False
    """Whether there is a line for each request, with its method, size and times."""
    network_data_subports: bool = False
    """Whether the daemon is asked for every network_data.json, to complete it."""
    threads: int = 1
    maxconn: int = 4096
    hosts: tuple[str, ...] = (METADATA_IP,)
    """Values of the Host header of plain requests."""
