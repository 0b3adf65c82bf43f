"""The values in force in a daemon: after a SIGHUP, and as a document for the commands on its host.

A SIGHUP reloads the options with ``mutable=True``. In the configuration that
:func:`keep_running_values` leaves, an option that needs a restart keeps its running value, so that
each reader continues with the value in force. A secret has no value in the document: a command
reads it from its own files, and says which of them are newer than the daemon's reading.
"""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from oslo_config import cfg

import dfmeta.conf
from dfmeta.conf import agent, attachments, limits, neutron, store
from dfmeta.errors import ConfigError

Name = tuple[str, str]
"""Group and option."""

AGENT: Final = "dfmeta-agent"
STORE: Final = "dfmeta-store"
RELOAD: Final = "reload"
RESTART: Final = "restart"
_GIVEN: Final = {
    cfg.Locations.command_line: "command line",
    cfg.Locations.environment: "environment",
}
"""Origins of values that files do not override."""
_FILES: Final = "files"
_DATABASES: Final = (("store", "connection"), ("attachments", "connection"))


def _in(group: str, *names: str) -> frozenset[Name]:
    return frozenset((group, name) for name in names)


OWN: Final = {
    (group or "DEFAULT", option.dest): option
    for group, options in dfmeta.conf.own_opts()
    for option in options
}
"""dfmeta's options, in the order of the groups: a value may refer to an earlier option."""
EVERY: Final = frozenset(OWN)
_STORE: Final = frozenset(name for name in EVERY if name[0] == store.GROUP.name)
_OF_GUESTS: Final = frozenset(
    name for name in EVERY if name[0] in (limits.GROUP.name, limits.RATE_GROUP.name)
)
READS: Final[Mapping[str, frozenset[Name]]] = {
    AGENT: EVERY - _in(store.GROUP.name, "guest_listen", "trusted_proxies"),
    STORE: _OF_GUESTS
    | _in("DEFAULT", "debug", "use_json")
    | _in(agent.GROUP.name, "hold_timeout", "timeout_answer", "refuse_forwarded")
    | _in(agent.GROUP.name, "admin_listen", "state_path")
    | _STORE - _in(store.GROUP.name, "defaults"),
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

    def log(self, logger: logging.Logger) -> None:
        """Log the result of a SIGHUP: a line for the options in force, one for those not yet.

        Only names are logged, since a value may be a secret.
        """
        if self.taken:
            logger.info("Reloaded, with changed options: %s", ", ".join(self.taken))
        else:
            logger.info("Reloaded, and no option that can be reloaded has changed")
        if self.waiting:
            logger.warning(
                "Not changed until a restart, the values in force stay: %s", ", ".join(self.waiting)
            )


def keep_running_values(conf: cfg.ConfigOpts, running: cfg.ConfigOpts, *, daemon: str) -> Changes:
    """Set the options of *conf*, which was just read, that need a restart to those of *running*.

    oslo.config's ``mutate_config_files`` changes the running configuration before its values are
    checked together; here a wrong file changes nothing.

    :param daemon: :data:`AGENT` or :data:`STORE`. Options that it does not read are not compared.
    :raises ConfigError: when Neutron is used and its account is wrong.
    """
    names = [name for name in OWN if name in READS[daemon]]
    if daemon == AGENT and (
        "neutron" in conf.df_metadata.identity_sources or attachments.uses_neutron(conf)
    ):
        neutron.session(conf)
        names += _of_keystone(conf)
    taken, waiting = [], []
    for name in names:
        before = value_of(running, name)
        if before == value_of(conf, name):
            continue
        if is_reloaded(name):
            taken.append(shown(name))
        else:
            waiting.append(shown(name))
            conf.set_override(name[1], before, group=_group(name))
    if daemon == AGENT:
        taken += _changed_networks(conf, running)
    return Changes(tuple(taken), tuple(waiting))


def _changed_networks(conf: cfg.ConfigOpts, running: cfg.ConfigOpts) -> list[str]:
    """Return the groups of networks of containers that were added, removed or changed."""
    before, now = (
        {
            name: tuple(network[option.dest] for option in attachments.NETWORK_OPTS)
            for name, network in attachments.networks(config).items()
        }
        for config in (running, conf)
    )
    changed = sorted(
        name for name in before.keys() | now.keys() if before.get(name) != now.get(name)
    )
    return [f"[{attachments.NETWORK}{name}]" for name in changed]


def _of_keystone(conf: cfg.ConfigOpts) -> Iterator[Name]:
    """Yield the options of the account, which keystoneauth1 registers when a session is made."""
    yield from (("neutron", name) for name in conf.neutron if ("neutron", name) not in OWN)


def value_of(conf: cfg.ConfigOpts, name: Name) -> Any:
    """Return an option's value; None if the configuration does not have the option."""
    section: Mapping[str, Any] = conf if name[0] == "DEFAULT" else conf[name[0]]
    # keystoneauth1's options depend on the kind of authentication.
    return section[name[1]] if name[1] in section else None  # noqa: SIM401  # its get() raises


def shown(name: Name) -> str:
    """Return an option's name for a message: ``[group] option``."""
    return f"[{name[0]}] {name[1]}"


@dataclass
class Differences:
    """Options, as ``[group] option``, that have other values in a daemon than in files."""

    reload: list[str] = field(default_factory=list)
    """Options that the daemon reloads from its files at a SIGHUP."""
    restart: list[str] = field(default_factory=list)
    """Options that the daemon reads at a start only."""
    given: list[str] = field(default_factory=list)
    """Options that the daemon has from its command line or its environment, not from files."""
    newer: tuple[str, ...] = ()
    """Files that have changed since the daemon read them: a secret in them may be another one."""
    files: tuple[str, ...] | None = None
    """The daemon's files if the command may have read other files, else None."""


def document(conf: cfg.ConfigOpts, read_at: float) -> dict[str, Any]:
    """Return the values in force in dfmeta-agent as a JSON document, without those of secrets.

    :param read_at: time at which the daemon read its files, seconds since the epoch.
    """
    return {
        "files": _files(conf),
        "read_at": read_at,
        "options": [_row(conf, name) for name in (*OWN, *_of_keystone(conf))],
    }


def take(conf: cfg.ConfigOpts, answer: Any) -> Differences:
    """Set *conf* to the daemon's values, and return the options that differ.

    :param answer: a :func:`document`.
    :raises ValueError: when *answer* is not such a document.
    """
    try:
        files, own = [str(path) for path in answer["files"]], _files(conf)
        named = _named(files)
        same = set(named) <= set(own)
        # With the same files doctor sees those that were added to their directories.
        newer = _newer(own if same else files, float(answer["read_at"]))
        differences = Differences(newer=newer, files=None if same else named)
        for row in answer["options"]:
            file = _take_row(conf, row, differences)
            if file and file not in named and _named([*files, file]) != named:
                differences.files = named
    except (KeyError, TypeError, AttributeError, ValueError, cfg.Error) as error:
        raise ValueError(f"it is not a list of options: {error}") from error
    return differences


def _row(conf: cfg.ConfigOpts, name: Name) -> dict[str, Any]:
    value, place = value_of(conf, name), conf.get_location(name[1], _group(name))
    changed_by: str | None = RELOAD if is_reloaded(name) else RESTART
    if name in OWN and name not in READS[AGENT]:
        changed_by = None
    return {
        "group": name[0],
        "option": name[1],
        **({} if _hidden(conf, name, value) else {"value": value}),
        "changed_by": changed_by,
        "given_by": _GIVEN.get(place.location, _FILES) if place is not None else _FILES,
    }


def _take_row(conf: cfg.ConfigOpts, row: Mapping[str, Any], differences: Differences) -> str:
    """Set one option of *conf*, and note in *differences* if its value differs.

    :return: the file that has the other value; empty when there is no such file.
    """
    name, given_by = (str(row["group"]), str(row["option"])), str(row["given_by"])
    if name == ("df_metadata", "identity_sources") and "neutron" in (row["value"] or ()):
        with contextlib.suppress(ConfigError):  # doctor's check of Neutron reports the error
            neutron.session(conf)
    exists = name in OWN or name in _of_keystone(conf)
    if row["changed_by"] is None or "value" not in row or not exists:
        return ""
    if value_of(conf, name) == row["value"]:
        return ""
    place = conf.get_location(name[1], _group(name))
    conf.set_override(name[1], row["value"], group=_group(name))
    if given_by != _FILES:
        differences.given.append(shown(name))
    elif row["changed_by"] == RELOAD:
        differences.reload.append(shown(name))
    else:
        differences.restart.append(shown(name))
    if place is None or place.location is not cfg.Locations.user:
        return ""
    return str(Path(place.detail).absolute())


def _hidden(conf: cfg.ConfigOpts, name: Name, value: object) -> bool:
    """Return whether a value is secret."""
    if not value:
        return False
    if name in _DATABASES:
        # The path of a database file is not secret; the URL of a server contains a password.
        return not str(value).startswith("sqlite:")
    option = OWN.get(name) or conf._groups[name[0]]._opts[name[1]]["opt"]
    # A URL may contain a user and a password.
    return bool(option.secret) or ("://" in str(value) and "@" in str(value))


def _group(name: Name) -> str | None:
    return None if name[0] == "DEFAULT" else name[0]


def _files(conf: cfg.ConfigOpts) -> list[str]:
    """Return the paths of the configuration files, in the order in which they are read."""
    return [str(Path(path).absolute()) for path in conf.config_file]


def _named(files: Sequence[str]) -> tuple[str, ...]:
    """Return the files without those in the directory FILE.d of another one."""
    folders = {f"{file}.d" for file in files}
    return tuple(file for file in files if str(Path(file).parent) not in folders)


def _newer(files: Iterable[str], read_at: float) -> tuple[str, ...]:
    newer = []
    for path in files:
        with contextlib.suppress(OSError):
            if Path(path).stat().st_mtime > read_at:
                newer.append(path)
    return tuple(newer)
