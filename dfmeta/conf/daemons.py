"""Which options each daemon reads, and which of them a SIGHUP takes in.

An option that is not taken in keeps its running value in the configuration that
:func:`keep_running_values` leaves, so that each reader goes on with the value in force.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from oslo_config import cfg

import dfmeta.conf
from dfmeta.conf import agent, limits, neutron, nova, rate, store

Name = tuple[str, str]
"""Group and option."""

AGENT: Final = "dfmeta-agent"
STORE: Final = "dfmeta-store"


def _of(group: str, options: Iterable[cfg.Opt]) -> frozenset[Name]:
    return frozenset((group, option.dest) for option in options)


def _in(group: str, *names: str) -> frozenset[Name]:
    return frozenset((group, name) for name in names)


EVERY: Final = frozenset(
    (group or "DEFAULT", option.dest)
    for group, options in dfmeta.conf.own_opts()
    for option in options
)
_STORE: Final = frozenset(one for one in EVERY if one[0] == store.GROUP.name)
_GUESTS: Final = (
    _of("DEFAULT", dfmeta.conf.COMMON)
    | _in(agent.GROUP.name, "hold_timeout", "timeout_answer", "refuse_forwarded")
    | _of(limits.GROUP.name, limits.OPTS)
    | _of(rate.GROUP.name, rate.OPTS)
)
"""What both take in, since it is a matter of single requests and connections."""
_CENTRAL_ALONE: Final = _in(store.GROUP.name, "guest_listen", "trusted_proxies")
_AGENT_ALONE: Final = _in(store.GROUP.name, "defaults")
_OPENED: Final = _in(store.GROUP.name, "connection", "guest_listen")
"""What is opened once, and has others' work under way in it."""

READS: Final[Mapping[str, frozenset[Name]]] = {
    AGENT: EVERY - _CENTRAL_ALONE,
    STORE: _GUESTS | _in(agent.GROUP.name, "admin_listen", "state_path") | (_STORE - _AGENT_ALONE),
}
"""Daemon → options that it looks at."""
RELOADED: Final[Mapping[str, frozenset[Name]]] = {
    AGENT: _GUESTS
    | _of("DEFAULT", nova.OPTS)
    | _in(agent.GROUP.name, "backend")
    | (_STORE - _CENTRAL_ALONE - _OPENED),
    STORE: _GUESTS | (_STORE - _AGENT_ALONE - _OPENED),
}
"""Daemon → those that a SIGHUP takes in; all others of :data:`READS` need a restart."""


@dataclass(frozen=True)
class Changes:
    """What another reading of the configuration has found, as ``[group] option``."""

    taken: tuple[str, ...]
    """What is in force from now on."""
    waiting: tuple[str, ...]
    """What needs a restart."""


def keep_running_values(conf: cfg.ConfigOpts, running: cfg.ConfigOpts, *, daemon: str) -> Changes:
    """Have *conf*, which was just read, keep the values of *running* that need a restart.

    :param daemon: :data:`AGENT` or :data:`STORE`. What it does not read is not looked at.
    :raises ConfigError: when Neutron is an identity source and its account is wrong.
    """
    taken, waiting = [], []
    for name in _names(conf, daemon):
        before, now = value_of(running, name), value_of(conf, name)
        if before == now:
            continue
        if name in RELOADED[daemon]:
            taken.append(shown(name))
        else:
            waiting.append(shown(name))
            group, option = name
            conf.set_override(option, before, group=None if group == "DEFAULT" else group)
    return Changes(tuple(taken), tuple(waiting))


def _names(conf: cfg.ConfigOpts, daemon: str) -> Iterator[Name]:
    """In the order of the groups: a value may refer to one that stands before it."""
    for group, options in dfmeta.conf.own_opts():
        for option in options:
            name = (group or "DEFAULT", option.dest)
            if name in READS[daemon]:
                yield name
    if daemon == AGENT and "neutron" in conf.df_metadata.identity_sources:
        # keystoneauth1 registers the options of its account when they are used.
        neutron.session(conf)
        own = {option.dest for option in neutron.OPTS}
        yield from ((neutron.GROUP.name, one) for one in conf.neutron if one not in own)


def value_of(conf: cfg.ConfigOpts, name: Name) -> Any:
    """Return an option's value; None for one that the configuration does not have."""
    group, option = name
    section: Mapping[str, Any] = conf if group == "DEFAULT" else conf[group]
    # Another way to authenticate has other options.
    return section[option] if option in section else None  # noqa: SIM401  # its get() raises


def shown(name: Name) -> str:
    """Return an option as a message names it."""
    return f"[{name[0]}] {name[1]}"
