"""The options that each daemon reads; a SIGHUP reloads those with ``mutable=True``.

In the configuration that :func:`keep_running_values` leaves, an option that needs a restart keeps
its running value, so that each reader continues with the value in force.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from oslo_config import cfg

import dfmeta.conf
from dfmeta.conf import agent, attachments, limits, neutron, rate, store

Name = tuple[str, str]
"""Group and option."""

AGENT: Final = "dfmeta-agent"
STORE: Final = "dfmeta-store"


def _in(group: str, *names: str) -> frozenset[Name]:
    return frozenset((group, name) for name in names)


OWN: Final = {
    (group or "DEFAULT", option.dest): option
    for group, options in dfmeta.conf.own_opts()
    for option in options
}
"""dfmeta's options, in the order of the groups."""
EVERY: Final = frozenset(OWN)
_STORE: Final = frozenset(one for one in EVERY if one[0] == store.GROUP.name)
_CENTRAL_ALONE: Final = _in(store.GROUP.name, "guest_listen", "trusted_proxies")
_AGENT_ALONE: Final = _in(store.GROUP.name, "defaults")
_OF_GUESTS: Final = frozenset(
    (group, option.dest)
    for group, options in (
        ("DEFAULT", dfmeta.conf.COMMON),
        (limits.GROUP.name, limits.OPTS),
        (rate.GROUP.name, rate.OPTS),
    )
    for option in options
) | _in(agent.GROUP.name, "hold_timeout", "timeout_answer", "refuse_forwarded")

READS: Final[Mapping[str, frozenset[Name]]] = {
    AGENT: EVERY - _CENTRAL_ALONE,
    STORE: _OF_GUESTS | _in(agent.GROUP.name, "admin_listen", "state_path") | _STORE - _AGENT_ALONE,
}
"""Daemon → options that it reads."""


def is_reloaded(name: Name) -> bool:
    """Return whether a SIGHUP reloads an option; others that a daemon reads need a restart."""
    return name in OWN and bool(OWN[name].mutable)


@dataclass(frozen=True)
class Changes:
    """Changed options after the configuration was read again, as ``[group] option``."""

    taken: tuple[str, ...]
    """Options whose new value is in force from now on."""
    waiting: tuple[str, ...]
    """Options that need a restart."""

    def tell(self, log: logging.Logger) -> None:
        """Log the result of a SIGHUP: a line for the options in force, one for those not yet.

        Only names are logged, since a value may be a secret.
        """
        if self.taken:
            log.info("Reloaded, with changed options: %s", ", ".join(self.taken))
        else:
            log.info("Reloaded, and no option that can be reloaded has changed")
        if self.waiting:
            log.warning(
                "Not changed until a restart, the values in force stay: %s", ", ".join(self.waiting)
            )


def keep_running_values(conf: cfg.ConfigOpts, running: cfg.ConfigOpts, *, daemon: str) -> Changes:
    """Set the options of *conf*, which was just read, that need a restart to those of *running*.

    oslo.config's ``mutate_config_files`` changes the running configuration before its values are
    checked together; here a wrong file changes nothing.

    :param daemon: :data:`AGENT` or :data:`STORE`. Options that it does not read are not compared.
    :raises ConfigError: when Neutron is used and its account is wrong.
    """
    taken, waiting = [], []
    for name in _names(conf, daemon):
        before, now = value_of(running, name), value_of(conf, name)
        if before == now:
            continue
        if is_reloaded(name):
            taken.append(shown(name))
        else:
            waiting.append(shown(name))
            group, option = name
            conf.set_override(option, before, group=None if group == "DEFAULT" else group)
    if daemon == AGENT:
        taken += _changed_networks(conf, running)
    return Changes(tuple(taken), tuple(waiting))


def _changed_networks(conf: cfg.ConfigOpts, running: cfg.ConfigOpts) -> list[str]:
    """Return the groups of networks of containers that were added, removed or changed."""
    before, now = (
        {
            name: tuple(network[option.dest] for option in attachments.NETWORK_OPTS)
            for name, network in attachments.networks(one).items()
        }
        for one in (running, conf)
    )
    changed = sorted(
        name for name in before.keys() | now.keys() if before.get(name) != now.get(name)
    )
    return [f"[{attachments.NETWORK}{name}]" for name in changed]


def _names(conf: cfg.ConfigOpts, daemon: str) -> Iterator[Name]:
    """Yield names in the order of the groups: a value may refer to an earlier option."""
    yield from (name for name in OWN if name in READS[daemon])
    if daemon == AGENT and (
        "neutron" in conf.df_metadata.identity_sources or attachments.uses_neutron(conf)
    ):
        # keystoneauth1 registers the options of the account when a session is made.
        neutron.session(conf)
        own = {option.dest for option in neutron.OPTS}
        yield from ((neutron.GROUP.name, one) for one in conf.neutron if one not in own)


def value_of(conf: cfg.ConfigOpts, name: Name) -> Any:
    """Return an option's value; None if the configuration does not have the option."""
    group, option = name
    section: Mapping[str, Any] = conf if group == "DEFAULT" else conf[group]
    # keystoneauth1's options depend on the kind of authentication.
    return section[option] if option in section else None  # noqa: SIM401  # its get() raises


def shown(name: Name) -> str:
    """Return an option's name for a message: ``[group] option``."""
    return f"[{name[0]}] {name[1]}"
