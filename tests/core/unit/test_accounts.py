"""haproxy and workers should become accounts that no other program has."""

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from dfmeta.conf import kinds as option
from dfmeta.errors import ConfigError
from dfmeta.host import accounts
from dfmeta.host.accounts import NUMBERS, SMALL_NUMBERS, Account

IN_ORDER = list
"""Tries the lowest number first."""
FIRST, SMALL = NUMBERS[0], SMALL_NUMBERS[0]


def map_ids(proc: Path, *lines: str) -> None:
    """Give the user namespace these user ids: first inside, first outside, and how many."""
    (proc / "self").mkdir(exist_ok=True)
    (proc / "self" / "uid_map").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def process(tmp_path: Path) -> Callable[..., None]:
    """Makes a process in the folder that stands for proc(5)."""
    map_ids(tmp_path, "0 0 4294967295")

    def make(pid: int, *uids: int) -> None:
        (tmp_path / str(pid)).mkdir()
        line = "\t".join(map(str, uids))
        (tmp_path / str(pid) / "status").write_text(
            f"Name:\tUid:\nUid:\t{line}\nGid:\t0\t0\t0\t0\n"
        )

    return make


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Name → user id of each account of the host."""
    users: dict[str, int] = {}

    def by_name(name: str) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", users[name], 7, "", "/", ""))

    def by_number(number: int) -> pwd.struct_passwd:
        return by_name({uid: name for name, uid in users.items()}[number])

    monkeypatch.setattr(pwd, "getpwnam", by_name)
    monkeypatch.setattr(pwd, "getpwuid", by_number)
    return users


def test_unused_account_is_no_users_and_no_process(
    process: Callable[..., None], named: dict[str, int], tmp_path: Path
) -> None:
    assert accounts.unused(proc=tmp_path, order=IN_ORDER) == Account(FIRST, FIRST)
    for place in range(4):
        uids = [0, 0, 0, 0]
        uids[place] = FIRST + place
        process(10 + place, *uids)
    named["other"] = FIRST + 4
    assert accounts.unused(proc=tmp_path, order=IN_ORDER).uid == FIRST + 5


def test_user_namespace_maps_the_account(process: Callable[..., None], tmp_path: Path) -> None:
    map_ids(tmp_path, "0 1000 1", "1 100000 65535")
    process(10, SMALL, 0, 0, 0)
    assert accounts.unused(proc=tmp_path, order=IN_ORDER) == Account(SMALL + 1, SMALL + 1)


def test_unused_account_is_another_one_each_time() -> None:
    assert len({accounts.unused() for _ in range(5)}) > 1


def test_host_without_unused_account_is_error(process: Callable[..., None], tmp_path: Path) -> None:
    process(10, FIRST, 0, 0, 0)
    with pytest.raises(OSError, match="all user ids from 65536 to 99999 are in use"):
        accounts.unused(proc=tmp_path, order=lambda numbers: numbers[:1])


def test_sharers_exclude_the_asking_process(process: Callable[..., None], tmp_path: Path) -> None:
    process(os.getpid(), 990, 990, 990, 990)
    process(3, 0, 0, 0, 0)
    assert accounts.others(990, proc=tmp_path) == []
    process(4, 0, 0, 990, 0)
    assert accounts.others(990, proc=tmp_path) == [4]


def test_named_account_has_the_group_of_its_user(named: dict[str, int]) -> None:
    named |= {"dfmeta-haproxy": 990, "toor": 0}
    assert accounts.named("dfmeta-haproxy") == Account(990, 7)
    for user, error in (("absent", "there is no user absent"), ("toor", "user toor is root")):
        with pytest.raises(OSError, match=error):
            accounts.named(user)


def test_account_is_the_configured_one_else_the_packages_else_unused(named: dict[str, int]) -> None:
    assert option.account_of("", option.WORKER_ACCOUNT) == ""
    named[option.WORKER_ACCOUNT] = 991
    assert option.account_of("", option.WORKER_ACCOUNT) == "dfmeta-worker"
    assert option.account_of("web", option.WORKER_ACCOUNT) == "web"


def test_user_of_other_programs_is_a_wrong_value(named: dict[str, int]) -> None:
    named |= {"nobody": 99, "nfsnobody": 65534, "own": 990}
    for user in ("nobody", "nfsnobody"):
        with pytest.raises(ConfigError, match="other programs may run as this user") as caught:
            option.check_user("[haproxy] user", user)
        assert "Leave it empty" in str(caught.value)
    option.check_user("[haproxy] user", "own")
    option.check_user("[haproxy] user", "")
