"""The values in force in a daemon, as a document for the commands on its host.

A secret appears as a digest only, with which a command checks whether its file has the same secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from oslo_config import cfg

from dfmeta.conf import neutron
from dfmeta.conf.daemons import AGENT, OWN, READS, RELOADED, Name, shown, value_of
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
_SALT: Final = 16


@dataclass(frozen=True)
class Digest:
    """scrypt (RFC 7914) with a salt.

    Each guess at a secret costs 32 MiB of memory and a tenth of a second.
    """

    salt: bytes = field(default_factory=lambda: secrets.token_bytes(_SALT))
    n: int = 1 << 15
    r: int = 8
    p: int = 1

    def of(self, value: object) -> str:
        """Return the digest of an option's value in hexadecimal; it takes a tenth of a second."""
        return hashlib.scrypt(
            json.dumps(value).encode(),
            salt=self.salt,
            n=self.n,
            r=self.r,
            p=self.p,
            maxmem=256 * self.n * self.r * self.p,
            dklen=32,
        ).hex()

    def parameters(self) -> dict[str, str | int]:
        """Return the salt and the costs as members of a document."""
        return {"name": "scrypt", "salt": self.salt.hex(), "n": self.n, "r": self.r, "p": self.p}


@dataclass
class Taken:
    """The options whose values differ between a daemon and a command's files.

    Options are named as ``[group] option``, except in *secrets*.
    """

    reload: list[str] = field(default_factory=list)
    """Options that the daemon reloads from its files at a SIGHUP."""
    restart: list[str] = field(default_factory=list)
    """Options that the daemon reads at a start only."""
    given: list[str] = field(default_factory=list)
    """Options that the daemon has from its command line or its environment, not from files."""
    secrets: frozenset[Name] = frozenset()
    """Secrets that differ from those of the files; their value in force is unknown."""
    files: tuple[str, ...] | None = None
    """The daemon's files if the command may have read other files, else None."""


Hash = Callable[[object], str]
"""A function that calls :meth:`Digest.of`, in this thread or in another."""


def document(conf: cfg.ConfigOpts, digest: Digest, *, make: Hash | None = None) -> dict[str, Any]:
    """Return the values in force in dfmeta-agent as a JSON document, with secrets as digests.

    :param make: makes the digest of a secret; None: :meth:`Digest.of`, in this thread.
    """
    return {
        "digest": digest.parameters(),
        "files": _files(conf),
        "options": [_told(conf, name, make or digest.of) for name in _every(conf)],
    }


def take(conf: cfg.ConfigOpts, told: Any) -> Taken:
    """Set *conf* to the daemon's values, and return the options that differ.

    :param told: a :func:`document`, of this dfmeta or of another version: an option that only one
        of them knows is ignored.
    :raises ValueError: when *told* is not such a document.
    """
    try:
        digest = _digest(told["digest"])
        options = [_Told.read(one) for one in told["options"]]
        files = tuple(str(one) for one in told["files"])
        taken = Taken()
        if not set(files) <= set(_files(conf)):
            taken.files = files
        for one in options:
            if _take_one(conf, one, digest, taken=taken) not in ("", *files):
                taken.files = files
    except (KeyError, TypeError, AttributeError, ValueError, cfg.Error) as error:
        raise ValueError(f"it is not a list of options: {error}") from error
    return taken


@dataclass(frozen=True)
class _Told:
    """An option in a document of another process."""

    name: Name
    value: Any
    digest: str
    """Digest of a secret; empty if *value* is given in clear text."""
    changed_by: str | None
    given_by: str

    @classmethod
    def read(cls, one: Mapping[str, Any]) -> _Told:
        """Read a row of a document.

        :raises KeyError, TypeError: when it is not such a row.
        """
        name = (str(one["group"]), str(one["option"]))
        digest = "" if "value" in one else str(one["digest"])
        return cls(name, one.get("value"), digest, one["changed_by"], str(one["given_by"]))


def _told(conf: cfg.ConfigOpts, name: Name, make: Hash) -> dict[str, Any]:
    value = value_of(conf, name)
    changed_by: str | None = RELOAD if name in RELOADED[AGENT] else RESTART
    if name in OWN and name not in READS[AGENT]:
        changed_by = None
    return {
        "group": name[0],
        "option": name[1],
        **({"digest": make(value)} if _hidden(conf, name, value) else {"value": value}),
        "changed_by": changed_by,
        "given_by": _given_by(conf, name),
    }


def _take_one(conf: cfg.ConfigOpts, told: _Told, digest: Digest, *, taken: Taken) -> str:
    """Set one option of *conf*, and note in *taken* if its value differs.

    :return: the file that has the other value; empty when there is no such file.
    """
    if told.name == ("df_metadata", "identity_sources") and "neutron" in (told.value or ()):
        with contextlib.suppress(ConfigError):  # doctor's check of Neutron reports the error
            neutron.session(conf)
    if told.changed_by is None or not _known(conf, told.name):
        return ""
    ours = value_of(conf, told.name)
    same = digest.of(ours) == told.digest if told.digest else ours == told.value
    if same:
        return ""
    place = conf.get_location(told.name[1], _group(told.name))
    if told.digest:
        taken.secrets |= {told.name}
    else:
        conf.set_override(told.name[1], told.value, group=_group(told.name))
    if told.given_by != _FILES:
        taken.given.append(shown(told.name))
    elif told.changed_by == RELOAD:
        taken.reload.append(shown(told.name))
    else:
        taken.restart.append(shown(told.name))
    if place is None or place.location is not cfg.Locations.user:
        return ""
    return str(Path(place.detail).absolute())


def _every(conf: cfg.ConfigOpts) -> Iterator[Name]:
    """Yield names in the order of the groups: a value may refer to an earlier option."""
    yield from OWN
    # keystoneauth1 registers the options of the account when a session is made.
    yield from (("neutron", one) for one in conf.neutron if ("neutron", one) not in OWN)


def _hidden(conf: cfg.ConfigOpts, name: Name, value: object) -> bool:
    """Return whether a value is secret and appears as a digest."""
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


def _known(conf: cfg.ConfigOpts, name: Name) -> bool:
    return name in OWN or (name[0] == neutron.GROUP.name and name[1] in conf.neutron)


def _group(name: Name) -> str | None:
    return None if name[0] == "DEFAULT" else name[0]


def _files(conf: cfg.ConfigOpts) -> list[str]:
    """Return the paths of the configuration files, in the order in which they are read."""
    files = [Path(one).absolute() for one in conf.config_file or ()]
    for folder in conf.config_dir or ():
        files += sorted(Path(folder).absolute().glob("*.conf"))
    return [str(one) for one in files]


def _digest(parameters: Mapping[str, Any]) -> Digest:
    n, r, p = (int(parameters[one]) for one in ("n", "r", "p"))
    if parameters["name"] != "scrypt" or n * r * p > 1 << 20:
        raise ValueError("its digest has an unknown algorithm or costs too much to compute")
    return Digest(bytes.fromhex(parameters["salt"]), n=n, r=r, p=p)
