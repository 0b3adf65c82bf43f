"""The accounts of the processes that answer guests: haproxy and the workers."""

from __future__ import annotations

import pwd
from typing import Final

from dfmeta.errors import ConfigError

HAPROXY_ACCOUNT: Final = "dfmeta-haproxy"
WORKER_ACCOUNT: Final = "dfmeta-worker"
"""Accounts that etc/sysusers.d/dfmeta.conf makes."""
NOBODY: Final = 65534
"""User id of ``nobody``, which many programs take (user_namespaces(7), overflowuid)."""


def account_of(configured: str, own: str) -> str:
    """Return the name of the account that a process becomes; empty: an unused user id.

    :param configured: value of the option.
    :param own: name of the account that dfmeta's package makes.
    """
    if configured:
        return configured
    try:
        pwd.getpwnam(own)
    except KeyError:
        return ""
    return own


def check_user(option: str, value: str) -> None:
    """Check the name of a user that a process becomes; an empty one is right.

    :param option: the option's group and name.
    :raises ConfigError: when there is no such user, it is root, or other programs are this user.
    """
    if not value:
        return
    try:
        uid = pwd.getpwnam(value).pw_uid
    except (KeyError, ValueError):
        cause = "there is no such user"
    else:
        if uid and uid != NOBODY and value != "nobody":
            return
        cause = "other programs may run as this user, and read secrets" if uid else "it is root"
    raise ConfigError(
        option=option,
        value=value,
        cause=cause,
        remedy="Leave it empty, or name a user that no other program runs as",
    )
