"""The values that a daemon runs with, told to the commands of its host, and taken over by them.

A secret is told as a digest alone, by which a command sees whether its file has the same one.
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

import dfmeta.conf
from dfmeta.conf import neutron
from dfmeta.conf.daemons import AGENT, READS, RELOADED, Name, shown, value_of
from dfmeta.exceptions import ConfigError

RELOAD: Final = "reload"
RESTART: Final = "restart"
_GIVEN: Final = {
    cfg.Locations.command_line: "command line",
    cfg.Locations.environment: "environment",
}
"""Where a value may come from that no file changes."""
_FILES: Final = "files"
_OWN: Final = {
    (group or "DEFAULT", option.dest): option
    for group, options in dfmeta.conf.own_opts()
    for option in options
}
_DATABASE: Final = ("store", "connection")
_SALT: Final = 16


@dataclass(frozen=True)
class Digest:
    """scrypt (RFC 7914): each guess at a secret costs 32 MiB of memory and a tenth of a second."""

    salt: bytes = field(default_factory=lambda: secrets.token_bytes(_SALT))
    n: int = 1 << 15
    r: int = 8
    p: int = 1

    def of(self, value: object) -> str:
        """Return the digest of an option's value in hexadecimal; keeps the processor busy."""
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
        """As a document tells them."""
        return {"name": "scrypt", "salt": self.salt.hex(), "n": self.n, "r": self.r, "p": self.p}


@dataclass
class Taken:
    """How a daemon's values differ from those of a command's files; as ``[group] option``."""

    reload: list[str] = field(default_factory=list)
    """Options that the daemon takes from its files at a SIGHUP."""
    restart: list[str] = field(default_factory=list)
    """Those that it takes at a start alone."""
    given: list[str] = field(default_factory=list)
    """Those that it has from its command line or its environment, whatever the files say."""
    secrets: frozenset[Name] = frozenset()
    """Those whose value in force is not known, because it is a secret."""
    files: tuple[str, ...] | None = None
    """The daemon's files, where the difference may come of others being read here, else None."""


Hash = Callable[[object], str]
"""What makes :meth:`Digest.of`, in this thread or apart from it."""


def document(conf: cfg.ConfigOpts, digest: Digest, *, make: Hash | None = None) -> dict[str, Any]:
    """Tell every value that is in force in dfmeta-agent, as JSON has it; no secret in clear.

    :param make: makes the digests, of which there is one for each secret; None: at once.
    """
    return {
        "digest": digest.parameters(),
        "files": _files(conf),
        "options": [_told(conf, name, make or digest.of) for name in _every(conf)],
    }


def take(conf: cfg.ConfigOpts, told: Any) -> Taken:
    """Give *conf* the daemon's values, and say which of them its files have otherwise.

    :param told: a :func:`document`, of this dfmeta or of another version: an option that only one
        of them knows is passed over.
    :raises ValueError: it is no such document.
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
        raise ValueError(f"it is no list of options: {error}") from error
    return taken


@dataclass(frozen=True)
class _Told:
    """An option, as another process tells it."""

    name: Name
    value: Any
    digest: str
    """Of a secret; empty for what is told in clear."""
    changed_by: str | None
    given_by: str

    @classmethod
    def read(cls, one: Mapping[str, Any]) -> _Told:
        """Read a row of a document.

        :raises KeyError, TypeError: it is none.
        """
        name = (str(one["group"]), str(one["option"]))
        digest = "" if "value" in one else str(one["digest"])
        return cls(name, one.get("value"), digest, one["changed_by"], str(one["given_by"]))


def _told(conf: cfg.ConfigOpts, name: Name, make: Hash) -> dict[str, Any]:
    value = value_of(conf, name)
    changed_by: str | None = RELOAD if name in RELOADED[AGENT] else RESTART
    if name in _OWN and name not in READS[AGENT]:
        changed_by = None
    return {
        "group": name[0],
        "option": name[1],
        **({"digest": make(value)} if _hidden(conf, name, value) else {"value": value}),
        "changed_by": changed_by,
        "given_by": _given_by(conf, name),
    }


def _take_one(conf: cfg.ConfigOpts, told: _Told, digest: Digest, *, taken: Taken) -> str:
    """:return: the file that has another value; empty when there is none."""
    if told.name == ("df_metadata", "identity_sources") and "neutron" in (told.value or ()):
        with contextlib.suppress(ConfigError):  # the check of Neutron says what is wrong
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
    """In the order of the groups: a value may refer to one that stands before it."""
    yield from _OWN
    # keystoneauth1 registers the options of its account where Neutron is asked.
    yield from (("neutron", one) for one in conf.neutron if ("neutron", one) not in _OWN)


def _hidden(conf: cfg.ConfigOpts, name: Name, value: object) -> bool:
    """Whether a value is not told in clear."""
    if not value:
        return False
    if name == _DATABASE:
        # Most databases are files, whose address is no secret; a server's has a password.
        return not str(value).startswith("sqlite:")
    option = _OWN.get(name) or conf._groups[name[0]]._opts[name[1]]["opt"]
    # A URL may have a user and a password.
    return bool(option.secret) or ("://" in str(value) and "@" in str(value))


def _given_by(conf: cfg.ConfigOpts, name: Name) -> str:
    place = conf.get_location(name[1], _group(name))
    return _GIVEN.get(place.location, _FILES) if place is not None else _FILES


def _known(conf: cfg.ConfigOpts, name: Name) -> bool:
    return name in _OWN or (name[0] == neutron.GROUP.name and name[1] in conf.neutron)


def _group(name: Name) -> str | None:
    return None if name[0] == "DEFAULT" else name[0]


def _files(conf: cfg.ConfigOpts) -> list[str]:
    """Paths of the files that are read, in their order."""
    files = [Path(one).absolute() for one in conf.config_file or ()]
    for folder in conf.config_dir or ():
        files += sorted(Path(folder).absolute().glob("*.conf"))
    return [str(one) for one in files]


def _digest(parameters: Mapping[str, Any]) -> Digest:
    n, r, p = (int(parameters[one]) for one in ("n", "r", "p"))
    if parameters["name"] != "scrypt" or n * r * p > 1 << 20:
        raise ValueError("its digest is not one that can be made here")
    return Digest(bytes.fromhex(parameters["salt"]), n=n, r=r, p=p)
