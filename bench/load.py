"""The load: wrk, with a guest's source address for each of its threads."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.programs import WRK, environment
from tests.harness.netns import Namespace

PATH = "/openstack/latest/meta_data.json"
FIRST_USER = 40_000
"""Users of which nobody has a file or a process; they choose source addresses, nothing else."""
PER_GUEST = 8
"""Connections of one guest: below every limit of a port, so that none is measured."""
TIMEOUT = 5.0
_SCRIPT = Path(__file__).with_name("load.lua")


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is asked: how many connections at a time, and whether they are kept."""

    clients: int
    keep: bool

    @property
    def name(self) -> str:
        """For tables."""
        return f"{'keep-alive' if self.keep else 'new'} {self.clients}"

    @property
    def threads(self) -> int:
        """Of wrk, one for each guest."""
        return max(1, self.clients // PER_GUEST)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What wrk saw; times in milliseconds, from a request's first byte to its answer's last."""

    requests: int
    seconds: float
    p50: float
    p99: float
    failed: int
    causes: dict[str, int]

    @property
    def rate(self) -> float:
        """Answers in a second; those with an error's status are failures."""
        return (self.requests - self.causes["status"]) / self.seconds


def parse(output: str) -> Outcome:
    """Read what ``load.lua`` has printed, behind what wrk itself prints.

    :raises ValueError: there is no such line.
    """
    said = json.loads(output.rstrip().rpartition("\n")[2])
    causes = {name: said[name] for name in ("connect", "read", "write", "status", "timeout")}
    return Outcome(
        requests=said["requests"],
        seconds=said["microseconds"] / 1e6,
        p50=said["p50"] / 1000,
        p99=said["p99"] / 1000,
        failed=sum(causes.values()),
        causes=causes,
    )


def start(
    namespace: Namespace, load: Load, url: str, *, seconds: int, users: int = 1
) -> subprocess.Popen[bytes]:
    """Start wrk.

    :param users: how many guests there are to ask as.
    """
    command = [str(WRK), f"-t{load.threads}", f"-c{load.clients}", f"-d{seconds}s"]
    command += ["--timeout", f"{TIMEOUT:g}s", "-s", str(_SCRIPT)]
    command += [] if load.keep else ["-H", "Connection: close"]
    known = {"BENCH_FIRST_USER": str(FIRST_USER), "BENCH_USERS": str(users)}
    return namespace.spawn([*command, url], env={**environment(), **known}, stdout=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes], seconds: float) -> Outcome:
    """Wait for its end; what it saw.

    :raises subprocess.TimeoutExpired: it did not end.
    """
    try:
        output, _ = process.communicate(timeout=seconds + 30)
    finally:
        process.kill()
        process.wait()
    return parse(output.decode())
