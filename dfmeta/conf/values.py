"""The values in force in a daemon, as a document for the commands on its host.

A secret has no value there. A command reads it from its own files, and says which of them are newer
than the daemon's reading.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from oslo_config import cfg

from dfmeta.conf import neutron
from dfmeta.conf.daemons import AGENT, OWN, READS, Name, is_reloaded, shown, value_of
from dfmeta.errors import ConfigError

RELOAD: Final = "reload"
RESTART: Final = "restart"
_GIVEN: Final = {
    cfg.Locations.command_line: "command line",
    cfg.Locations.environment: "environment",
}
"""Origins of values that files do not override."""
_FILES: Final = "files"
_DATABASES: Final = (("store", "connection"), ("attachments", "connection"))


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
        "options": [_row(conf, name) for name in _every(conf)],
    }


def take(conf: cfg.ConfigOpts, answer: Any) -> Differences:
    """Set *conf* to the daemon's values, and return the options that differ.

    :param answer: a :func:`document`.
    :raises ValueError: when *answer* is not such a document.
    """
    try:
        files = tuple(str(path) for path in answer["files"])
        differences = Differences(newer=_newer(files, float(answer["read_at"])))
        if not set(files) <= set(_files(conf)):
            differences.files = files
        for row in answer["options"]:
            if _take_row(conf, row, differences) not in ("", *files):
                differences.files = files
    except (KeyError, TypeError, AttributeError, ValueError, cfg.Error) as error:
        raise ValueError(f"it is not a list of options: {error}") from error
    return differences


def _row(conf: cfg.ConfigOpts, name: Name) -> dict[str, Any]:
    value = value_of(conf, name)
    changed_by: str | None = RELOAD if is_reloaded(name) else RESTART
    if name in OWN and name not in READS[AGENT]:
        changed_by = None
    return {
        "group": name[0],
        "option": name[1],
        **({} if _hidden(conf, name, value) else {"value": value}),
        "changed_by": changed_by,
        "given_by": _given_by(conf, name),
    }


def _take_row(conf: cfg.ConfigOpts, row: Mapping[str, Any], differences: Differences) -> str:
    """Set one option of *conf*, and note in *differences* if its value differs.

    :return: the file that has the other value; empty when there is no such file.
    """
    name, given_by = (str(row["group"]), str(row["option"])), str(row["given_by"])
    if name == ("df_metadata", "identity_sources") and "neutron" in (row["value"] or ()):
        with contextlib.suppress(ConfigError):  # doctor's check of Neutron reports the error
            neutron.session(conf)
    if row["changed_by"] is None or "value" not in row or not _exists(conf, name):
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


def _every(conf: cfg.ConfigOpts) -> Iterator[Name]:
    """Yield names in the order of the groups: a value may refer to an earlier option."""
    yield from OWN
    # keystoneauth1 registers the options of the account when a session is made.
    yield from (("neutron", name) for name in conf.neutron if ("neutron", name) not in OWN)


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


def _given_by(conf: cfg.ConfigOpts, name: Name) -> str:
    place = conf.get_location(name[1], _group(name))
    return _GIVEN.get(place.location, _FILES) if place is not None else _FILES


def _exists(conf: cfg.ConfigOpts, name: Name) -> bool:
    return name in OWN or (name[0] == neutron.GROUP.name and name[1] in conf.neutron)


def _group(name: Name) -> str | None:
    return None if name[0] == "DEFAULT" else name[0]


def _files(conf: cfg.ConfigOpts) -> list[str]:
    """Return the paths of the configuration files, in the order in which they are read."""
    files = [Path(path).absolute() for path in conf.config_file or ()]
    for directory in conf.config_dir or ():
        files += sorted(Path(directory).absolute().glob("*.conf"))
    return [str(path) for path in files]


def _newer(files: Iterable[str], read_at: float) -> tuple[str, ...]:
    newer = []
    for path in files:
        with contextlib.suppress(OSError):
            if Path(path).stat().st_mtime > read_at:
                newer.append(path)
    return tuple(newer)
