"""The program haproxy of the configuration, and what it tells of itself.

``dfmeta doctor`` uses this module as the daemon does, without the hub.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import Final, NamedTuple

from oslo_config import cfg

from dfmeta.conf.accounts import HAPROXY_ACCOUNT, account_of
from dfmeta.errors import ConfigError
from dfmeta.proxy.engines.haproxy.program import Program

OLDEST: Final = (2, 6)
"""Oldest version of haproxy that was tried."""
FOLDERS: Final = ("/usr/sbin", "/usr/local/sbin")
DESCRIPTORS: Final = 64
"""Descriptors for a program that only tells its version."""
_VERSION: Final = re.compile(r"HAProxy version (([0-9]+)\.([0-9]+)\S*)")
_ASKED: Final = 10.0
"""Seconds for the program to tell its version."""


class Told(NamedTuple):
    """What a program tells of itself."""

    version: str
    """The version as it is written, such as ``2.6.12-1+deb12u3``."""
    number: tuple[int, int]
    """Its first two numbers."""
    lua: bool
    """Whether the program was built with Lua, as those of all distributions are."""


def program(conf: cfg.ConfigOpts) -> Program:
    """Return the program, after it has told its version. Waits for it.

    :raises ConfigError: when it is missing, does not run as the user, or is too old.
    """
    group, user = conf.haproxy, account_of(conf.haproxy.user, HAPROXY_ACCOUNT)
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *FOLDERS])
    binary = shutil.which(group.binary, path=path)
    if binary is None:
        raise _unusable(group.binary, "there is no such program")
    found = version(Program(binary=binary, user=user))
    if found is None:
        as_user = f"as user {user}" if user else "without privileges"
        raise _unusable(group.binary, f"{binary} is not haproxy, or does not run {as_user}")
    if found.number < OLDEST:
        raise _unusable(group.binary, f"{binary} has version {found.version}")
    return Program(binary=binary, user=user, version=found.version, lua=found.lua)


def version(one: Program) -> Told | None:
    """Return what a program tells of itself; None: no version.

    The program runs as it does for guests: as its user, without privileges.
    """
    try:
        said = subprocess.run(  # noqa: S603  # the operator's program
            one.command("-vv", descriptors=DESCRIPTORS),
            capture_output=True,
            text=True,
            timeout=_ASKED,
            check=True,
        ).stdout
    except Exception:
        # OSError, ValueError, SubprocessError; and after eventlet's patch a TimeoutExpired that is
        # not Python's.
        return None
    found = _VERSION.search(said)
    if found is None:
        return None
    return Told(found[1], (int(found[2]), int(found[3])), "+LUA" in said.split())


def _unusable(binary: str, cause: str) -> ConfigError:
    return ConfigError(
        option="[haproxy] binary",
        value=binary,
        cause=cause,
        remedy="Install the package haproxy, version "
        f"{OLDEST[0]}.{OLDEST[1]} or later, or set engine = wsgi",
    )
