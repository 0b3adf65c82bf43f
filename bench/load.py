"""The load generator: wrk, with the source address of a guest for each of its threads."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.programs import METADATA_IP, WRK, environment
from tests.harness.netns import Namespace

PATH = "/openstack/latest/meta_data.json"
FIRST_USER = 40_000
"""First of the users that own no file and no process; they only select source addresses."""
PER_GUEST = 8
"""Connections of one guest: below every limit of a port, so that no limit affects the results."""
TIMEOUT = 5.0
_SCRIPT = Path(__file__).with_name("load.lua")


@dataclass(frozen=True, kw_only=True)
class Load:
    """The load: the number of simultaneous connections, and whether they are kept."""

    clients: int
    keep: bool

    @property
    def name(self) -> str:
        """Return the name of the load in tables."""
        return f"{'keep-alive' if self.keep else 'new'} {self.clients}"

    @property
    def threads(self) -> int:
        """Return the number of wrk's threads, one for each guest."""
        return max(1, self.clients // PER_GUEST)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """wrk's results; times in milliseconds, from a request's first byte to its answer's last."""

    requests: int
    seconds: float
    p50: float
    p99: float
    failed: int
    causes: dict[str, int]

    @property
    def rate(self) -> float:
        """Return answers in a second; answers with an error status are failures."""
        return (self.requests - self.causes["status"]) / self.seconds


def parse(output: str) -> Outcome:
    """Parse the line of ``load.lua``, which follows wrk's own output.

    :raises ValueError: the output has no such line.
    """
    printed = json.loads(output.rstrip().rpartition("\n")[2])
    causes = {name: printed[name] for name in ("connect", "read", "write", "status", "timeout")}
    return Outcome(
        requests=printed["requests"],
        seconds=printed["microseconds"] / 1e6,
        p50=printed["p50"] / 1000,
        p99=printed["p99"] / 1000,
        failed=sum(causes.values()),
        causes=causes,
    )


def start_wrk(
    namespace: Namespace, load: Load, url: str, *, seconds: int, users: int = 1
) -> subprocess.Popen[bytes]:
    """Start wrk.

    :param users: number of guests that send the requests.
    """
    command = [str(WRK), f"-t{load.threads}", f"-c{load.clients}", f"-d{seconds}s"]
    command += ["--timeout", f"{TIMEOUT:g}s", "-s", str(_SCRIPT)]
    # The name that guests use, whatever address and port the proxy has.
    command += ["-H", f"Host: {METADATA_IP}"]
    command += [] if load.keep else ["-H", "Connection: close"]
    known = {"BENCH_FIRST_USER": str(FIRST_USER), "BENCH_USERS": str(users)}
    return namespace.spawn([*command, url], env={**environment(), **known}, stdout=subprocess.PIPE)


def finish_wrk(process: subprocess.Popen[bytes], seconds: float) -> Outcome:
    """Wait until wrk ends, and return its results.

    :raises subprocess.TimeoutExpired: wrk did not end within 30 seconds after *seconds*.
    """
    try:
        output, _ = process.communicate(timeout=seconds + 30)
    finally:
        process.kill()
        process.wait()
    return parse(output.decode())
