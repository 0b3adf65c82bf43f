"""Accounts that processes become: named ones, and numbers that no program has.

A process with secrets needs an account that no other program has: each process of an account may
read the memory and the descriptors of the others (ptrace(2), "Ptrace access mode checking").
Without a named account, a process takes a number of a range that nothing allocates from: it is
above the users of systemd (systemd.exec(5), DynamicUser=, ends at 65519) and below the subordinate
ids of containers (login.defs(5), SUB_UID_MIN, 100000).

Only the standard library is imported: haproxy and workers start with this module.
"""

import contextlib
import grp
import os
import pwd
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dfmeta.host.process import PROC, users

NUMBERS: Final = range(65536, 100_000)
"""User and group ids for accounts without a name."""
SMALL_NUMBERS: Final = range(65520, 65534)
"""Those of a user namespace with 65,536 ids, which systemd does not allocate either."""


class Account(NamedTuple):
    """User id and group id that a process becomes."""

    uid: int
    gid: int


def named(user: str) -> Account:
    """Return the account of that name.

    :raises OSError: when there is none, or it is root.
    """
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise FileNotFoundError(f"there is no user {user}") from None
    if not entry.pw_uid:
        raise PermissionError(f"user {user} is root")
    return Account(entry.pw_uid, entry.pw_gid)


def unused(
    *, proc: Path = PROC, order: Callable[[Sequence[int]], Iterable[int]] | None = None
) -> Account:
    """Return an account that no process has, and that has no name.

    Two callers at one time may get the same account: each calls :func:`others` after it has become
    it.

    :param order: return numbers in the order in which they are tried; by default at random.
    :raises OSError: when all numbers are taken, or the processes cannot be listed.
    """
    taken = {uid for _pid, uids in users(proc=proc) for uid in uids}
    numbers = NUMBERS if _is_mapped(NUMBERS, proc) else SMALL_NUMBERS
    for number in order(numbers) if order else random.sample(numbers, len(numbers)):
        if number not in taken and not _has_name(number):
            return Account(number, number)
    raise ProcessLookupError(f"all user ids from {numbers[0]} to {numbers[-1]} are in use")


def others(uid: int, *, proc: Path = PROC) -> list[int]:
    """Return the other processes that have this user id.

    Also where proc(5) hides processes (hidepid), a process sees those that may read its memory.
    """
    return [pid for pid, uids in users(proc=proc) if uid in uids and pid != os.getpid()]


def _is_mapped(numbers: range, proc: Path) -> bool:
    """Return whether this user namespace has all of *numbers* (user_namespaces(7))."""
    lines = (proc / "self/uid_map").read_text().splitlines()
    maps = ([int(part) for part in line.split()] for line in lines)
    return any(first <= numbers[0] and numbers[-1] < first + count for first, _, count in maps)


def _has_name(number: int) -> bool:
    """Return whether a user or a group has that number."""
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwuid(number))
    with contextlib.suppress(KeyError):
        return bool(grp.getgrgid(number))
    return False
