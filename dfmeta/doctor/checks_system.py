"""Checks of the system around the daemon: clock, systemd, the host's own cloud, files. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from dfmeta.doctor.facts import Settings
from dfmeta.doctor.finding import Finding, listed, ok, unknown, wrong
from dfmeta.host.facts import NetworkdFacts

SKEW_MAX: Final = 60.0
"""Seconds that the clocks of two hosts may differ: the validity of certificates and tokens starts a
little before they are issued, but not more than that."""
DROP_IN: Final = "/etc/systemd/networkd.conf.d/50-dfmeta.conf"
ANOTHER_IP: Final = "169.254.1.1"


@dataclass(frozen=True, slots=True)
class ClockFacts:
    """The state of this host's clock in the kernel, and its difference from other hosts' clocks."""

    synchronised: bool | None
    """Whether the clock is synchronised (adjtimex(2), STA_UNSYNC); None: not reported."""
    skews: Sequence[tuple[str, float]] = ()
    """Name of another host → seconds that the Date of its answer is ahead of this host's clock."""


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A configuration file with a secret, or a file that is a secret, such as a key."""

    path: str
    what: str
    """Names of the secret options in it, or of the option that names the file."""
    mode: int
    uid: int = 0
    """User id of its owner."""
    strange: bool = False
    """Whether its owner is the user of workers."""


def skew(date: str, now: float) -> float | None:
    """Return the seconds from *now* to *date*; None if *date* is invalid.

    :param date: as in RFC 9110, 5.6.7.
    :param now: in seconds of Unix time.
    """
    try:
        moment = parsedate_to_datetime(date)
    except (ValueError, TypeError):
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment.timestamp() - now


def clock(facts: ClockFacts, needs: Sequence[str]) -> Iterator[Finding]:
    """Check that this host's clock is right.

    :param needs: names of things on this host that depend on the clock; may be empty.
    """
    away = [(host, seconds) for host, seconds in facts.skews if abs(seconds) > SKEW_MAX]
    for host, seconds in away:
        yield wrong(
            "clock",
            f"this host's clock and that of {host} are {abs(seconds):.0f} s apart (this host's is "
            f"{'behind' if seconds > 0 else 'ahead'}): certificates and tokens are refused",
            "correct the clock that is wrong: `timedatectl set-ntp true`, `chronyc tracking`",
        )
    if away:
        return
    agreed = listed(dict.fromkeys(host for host, _ in facts.skews))
    if facts.synchronised:
        same = f", and agrees with {agreed}" if agreed else ""
        yield ok("clock", f"the clock is synchronised by NTP{same}")
    elif facts.synchronised is None:
        yield unknown("clock", "the kernel does not report whether the clock is synchronised")
    elif agreed:
        yield ok("clock", f"the clock is not synchronised (adjtimex), but agrees with {agreed}")
    elif needs:
        yield wrong(
            "clock",
            f"the clock is not synchronised (adjtimex: STA_UNSYNC), and {listed(needs)} depends "
            "on it",
            "`timedatectl set-ntp true`, or start chrony: `chronyc tracking`",
        )
    else:
        yield ok(
            "clock", "the clock is not synchronised (adjtimex), and nothing here depends on it"
        )


def networkd(facts: NetworkdFacts, wanted: Settings) -> Finding:
    """Check that systemd-networkd does not remove dfmeta's rules and route."""
    if not facts.running:
        return ok("networkd", "systemd-networkd does not run")
    if facts.managed:
        lines = "".join(f"\\n{one}=no" for one in facts.managed)
        return wrong(
            "networkd",
            "systemd-networkd removes rules and routes of other programs "
            f"({', '.join(facts.managed)}): at each of its restarts the answers from {wanted.tap} "
            "are lost until dfmeta-agent notices",
            f"`mkdir -p {DROP_IN.rpartition('/')[0]} && printf '[Network]{lines}\\n' > {DROP_IN}`, "
            "and `systemctl restart systemd-networkd`",
        )
    return ok("networkd", "systemd-networkd does not remove rules and routes of other programs")


def cloud(route: str, wanted: Settings) -> Finding:
    """Check that the host does not need the address of tap-metadata for its own metadata.

    :param route: see :func:`cloud_signs`.
    """
    if wanted.host_ip != wanted.ip:
        return ok(
            "cloud", f"the host can still reach {wanted.ip} itself: host_ip is another address"
        )
    signs = cloud_signs(wanted.ip, route, service=wanted.host_service)
    if signs:
        return wrong(
            "cloud",
            f"this host is a cloud's guest itself and needs {wanted.ip}, which it cannot reach "
            f"while {wanted.tap} has that address: {'; '.join(signs)}",
            f"set [df_metadata] host_ip to another address, such as {ANOTHER_IP}, and `systemctl "
            "restart dfmeta-agent`; guests do not notice",
        )
    return ok("cloud", f"the host does not get its own metadata from {wanted.ip}")


def cloud_signs(ip: str, route: str, *, service: bool) -> list[str]:
    """Return why this host seems to need *ip* for metadata of its own; empty: it does not.

    :param route: device of the host's own route to exactly this address; empty: there is none.
    :param service: whether a server answered at this address before the first start.
    """
    signs = (
        (route, f"a route to {ip} leads through {route}"),
        (service, f"a server answered this host at {ip} before dfmeta's first start"),
    )
    return [text for sign, text in signs if sign]


def secret_files(files: Iterable[SecretFile]) -> Finding:
    """Check that files with secrets are closed to users other than owner and group."""
    files = tuple(files)
    strange = [one for one in files if one.strange]
    if strange:
        texts = [f"{one.path} ({one.what}, user {one.uid})" for one in strange]
        paths = " ".join(shlex.quote(one.path) for one in strange)
        return wrong(
            "secret-files",
            f"the user of workers, which parse guests' requests, owns {listed(texts)}",
            f"`chown root: {paths}`, and replace the secrets that could be read",
        )
    exposed = [one for one in files if one.mode & 0o007]
    if exposed:
        texts = [f"{one.path} ({one.what}, mode {one.mode:04o})" for one in exposed]
        paths = " ".join(shlex.quote(one.path) for one in exposed)
        return wrong(
            "secret-files",
            f"all users of this host may read or change {listed(texts)}",
            f"`chmod o-rwx {paths}`, and replace the secrets that could be read",
        )
    if not files:
        return ok("secret-files", "no file with a secret is configured")
    return ok("secret-files", f"{len(files)} files with secrets are closed to other users")
