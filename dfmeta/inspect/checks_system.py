"""Judgements on the system around the daemon: clock, systemd-networkd, its cloud, files. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from dfmeta.inspect.facts import Settings
from dfmeta.inspect.finding import Finding, listed, ok, unknown, wrong

SKEW_MAX: Final = 60.0
"""Seconds that another host's clock may be away: certificates and tokens are made to begin a
little earlier than now, but no more than that."""
DROP_IN: Final = "/etc/systemd/networkd.conf.d/50-dfmeta.conf"
SETTINGS: Final = ("ManageForeignRoutingPolicyRules", "ManageForeignRoutes")
"""Of networkd.conf(5), [Network]; both are on unless they are switched off."""
ANOTHER_IP: Final = "169.254.169.253"


@dataclass(frozen=True, slots=True)
class ClockFacts:
    """What the kernel, and other hosts, say of this host's clock."""

    synchronised: bool | None
    """Whether somebody keeps it (adjtimex(2), STA_UNSYNC); None: the kernel does not say."""
    skews: Sequence[tuple[str, float]] = ()
    """Who → how many seconds its Date is after our clock."""


@dataclass(frozen=True, slots=True)
class NetworkdFacts:
    """What systemd-networkd does to routes and rules of others."""

    running: bool
    managed: Sequence[str] = ()
    """Those of :data:`SETTINGS` that are on."""


@dataclass(frozen=True, slots=True)
class SocketUnit:
    """A socket unit of dfmeta-agent's that is enabled."""

    name: str
    active: bool | None
    """None: systemd cannot be asked."""


@dataclass(frozen=True, slots=True)
class CloudFacts:
    """What speaks for this host being a guest of a cloud itself."""

    dmi: str = ""
    """Who made the machine, where that is a cloud whose metadata are at 169.254.169.254."""
    source: str = ""
    """cloud-init's data source that asks that address; empty: none."""
    route: str = ""
    """A device of the host's, not tap-metadata, that a route to that very address goes through."""


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A file of the configuration that holds a secret, or is one."""

    path: str
    what: str
    """The options that are in it, or that name it."""
    mode: int
    uid: int = 0
    """User that it belongs to."""
    strange: bool = False
    """Whether that is the user of workers."""


def skew(date: str, now: float) -> float | None:
    """Seconds that *date* (RFC 9110, 5.6.7) is after *now*, seconds of Unix time; None: no date."""
    try:
        moment = parsedate_to_datetime(date)
    except (ValueError, TypeError):
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment.timestamp() - now


def clock(facts: ClockFacts, needs: Sequence[str]) -> Iterator[Finding]:
    """Whether this host's clock is right.

    :param needs: what depends on it here; nothing may.
    """
    away = [(who, seconds) for who, seconds in facts.skews if abs(seconds) > SKEW_MAX]
    for who, seconds in away:
        yield wrong(
            "clock",
            f"this host's clock and that of {who} are {abs(seconds):.0f} s apart (ours is "
            f"{'behind' if seconds > 0 else 'ahead'}): certificates and tokens are refused",
            "set the one that is wrong: `timedatectl set-ntp true`, `chronyc tracking`",
        )
    if away:
        return
    agreed = listed(dict.fromkeys(who for who, _ in facts.skews))
    if facts.synchronised:
        yield ok("clock", "the clock is kept by NTP" + (f", as is {agreed}" if agreed else ""))
    elif facts.synchronised is None:
        yield unknown("clock", "the kernel does not say whether the clock is kept")
    elif agreed:
        yield ok("clock", f"nobody keeps the clock (adjtimex), but it agrees with {agreed}")
    elif needs:
        yield wrong(
            "clock",
            f"nobody keeps the clock (adjtimex: STA_UNSYNC), and {listed(needs)} depends on it",
            "`timedatectl set-ntp true`, or start chrony: `chronyc tracking`",
        )
    else:
        yield ok("clock", "nobody keeps the clock (adjtimex), and nothing here depends on it")


def networkd(facts: NetworkdFacts, wanted: Settings) -> Finding:
    """Whether systemd-networkd leaves our rules and our route alone."""
    if not facts.running:
        return ok("networkd", "systemd-networkd does not run")
    if facts.managed:
        lines = "".join(f"\\n{one}=no" for one in facts.managed)
        return wrong(
            "networkd",
            f"systemd-networkd removes rules and routes of others ({', '.join(facts.managed)}): "
            f"at each of its restarts the answers of {wanted.tap} are lost until dfmeta-agent "
            "notices",
            f"`mkdir -p {DROP_IN.rpartition('/')[0]} && printf '[Network]{lines}\\n' > {DROP_IN}`, "
            "and `systemctl restart systemd-networkd`",
        )
    return ok("networkd", "systemd-networkd leaves rules and routes of others alone")


def sockets(units: Sequence[SocketUnit]) -> Finding:
    """Whether the socket units that are enabled hold their listeners.

    systemd refuses to start a socket whose service runs: after a restart of the socket alone it is
    inactive, and the service goes on with the listener that it has.
    """
    if not units:
        return ok("socket-units", "no socket unit of dfmeta-agent is enabled")
    idle = [one.name for one in units if one.active is False]
    if idle:
        verb = "is" if len(idle) == 1 else "are"
        return wrong(
            "socket-units",
            f"{listed(idle)} {verb} enabled and inactive: the listener ends with the next stop of "
            "dfmeta-agent",
            "`systemctl stop dfmeta-agent.service && systemctl start "
            f"{' '.join(idle)} dfmeta-agent.service`; guests that ask meanwhile wait",
        )
    names = listed([one.name for one in units])
    if any(one.active is None for one in units):
        return unknown(
            "socket-units", f"systemctl does not tell whether {names} hold their listeners"
        )
    return ok("socket-units", f"{names} active: listeners outlive a stop of dfmeta-agent")


def cloud(facts: CloudFacts, wanted: Settings) -> Finding:
    """Whether the host itself needs the address that it gives to tap-metadata."""
    if wanted.host_ip != wanted.ip:
        return ok("cloud", f"the host can still reach {wanted.ip} itself: host_ip is another")
    signs = []
    if facts.route:
        signs.append(f"a route to {wanted.ip} leads through {facts.route}")
    if facts.dmi:
        signs.append(f"the machine is {facts.dmi}'s")
    if facts.source:
        signs.append(f"cloud-init's data source is {facts.source}")
    if signs:
        return wrong(
            "cloud",
            f"this host is a cloud's guest itself and needs {wanted.ip}, which {wanted.tap} takes "
            f"from it: {'; '.join(signs)}",
            "give [df_metadata] host_ip another address, such as "
            f"{ANOTHER_IP}, and `systemctl restart dfmeta-agent`; guests notice nothing",
        )
    return ok("cloud", f"the host does not ask {wanted.ip} for metadata of its own")


def secret_files(files: Iterable[SecretFile]) -> Finding:
    """Whether files that hold a secret are closed to others; a group may read them."""
    files = tuple(files)
    strange = [one for one in files if one.strange]
    if strange:
        texts = [f"{one.path} ({one.what}, user {one.uid})" for one in strange]
        paths = " ".join(shlex.quote(one.path) for one in strange)
        return wrong(
            "secret-files",
            f"the user of workers, which read what guests send, has {listed(texts)}",
            f"`chown root: {paths}`, and change what has been readable",
        )
    exposed = [one for one in files if one.mode & 0o007]
    if exposed:
        texts = [f"{one.path} ({one.what}, mode {one.mode:04o})" for one in exposed]
        paths = " ".join(shlex.quote(one.path) for one in exposed)
        return wrong(
            "secret-files",
            f"everybody on this host may read or change {listed(texts)}",
            f"`chmod o-rwx {paths}`, and change what has been readable",
        )
    what = f"{len(files)} files with secrets are" if files else "no file with a secret is"
    return ok("secret-files", f"{what} {'closed to others' if files else 'configured'}")
