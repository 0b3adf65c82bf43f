"""Probes of proc(5), systemd's files, DMI and a store's file, below a folder of the test's own."""

import os
import socket
import sqlite3
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path

import pytest

from dfmeta.errors import ConfigError
from dfmeta.host.listeners import client_user
from dfmeta.host.process import AccountFacts, read_account, read_process, read_sockets
from dfmeta.host.system import SETTINGS as MANAGED
from dfmeta.host.system import read_networkd, runs
from dfmeta.store.db import HEAD
from dfmeta.store.db.database_facts import look
from dfmeta.store.db.repository import Repository

RULES, ROUTES = MANAGED
DEVICE = "lo"
USER = 65534


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


NETWORKD: list[tuple[dict[str, str], tuple[str, ...]]] = [
    ({}, MANAGED),
    ({"etc/systemd/networkd.conf": f"[Network]\n#{RULES}=no\n; {ROUTES}=no\n"}, MANAGED),
    ({"etc/systemd/networkd.conf": f"[DHCPv4]\n{RULES}=no\n"}, MANAGED),
    ({"etc/systemd/networkd.conf": f"[Network]\n {ROUTES} = off \n{RULES}=maybe\n"}, (RULES,)),
    # The first main file counts alone.
    (
        {
            "etc/systemd/networkd.conf": "[Network]\n",
            "usr/lib/systemd/networkd.conf": f"[Network]\n{RULES}=no\n",
        },
        MANAGED,
    ),
    # A later drop-in overrides an earlier.
    (
        {
            "usr/lib/systemd/networkd.conf.d/20-b.conf": f"[Network]\n{RULES}=yes\n",
            "etc/systemd/networkd.conf.d/10-a.conf": f"[Network]\n{RULES}=no\n{ROUTES}=no\n",
        },
        (RULES,),
    ),
    # Of two of one name, /etc's counts, and hides the other.
    (
        {
            "usr/lib/systemd/networkd.conf.d/10-a.conf": f"[Network]\n{RULES}=no\n",
            "run/systemd/networkd.conf.d/10-a.conf": f"[Network]\n{ROUTES}=no\n",
            "etc/systemd/networkd.conf.d/10-a.conf": "",
        },
        MANAGED,
    ),
]


def test_files_of_networkd_are_read_in_its_own_order(tmp_path: Path) -> None:
    for number, (files, managed) in enumerate(NETWORKD):
        root = tmp_path / str(number)
        for name, text in files.items():
            write(root, name, text)
        assert read_networkd(root, DEVICE).managed == managed, files


def test_networkd_runs_when_its_process_does_and_not_for_what_it_has_left(tmp_path: Path) -> None:
    write(tmp_path, "run/systemd/netif/state", "")
    assert read_networkd(tmp_path, DEVICE).running  # where no process can be seen at all
    write(tmp_path, "proc/1/comm", "systemd\n")
    assert not read_networkd(tmp_path, DEVICE).running
    write(tmp_path, "proc/77/comm", "systemd-network\n")
    assert read_networkd(tmp_path, DEVICE).running
    assert [runs(name, tmp_path) for name in ("systemd", "firewalld")] == [True, False]


def test_device_that_networkd_configures_is_known_by_its_file(tmp_path: Path) -> None:
    state = f"run/systemd/netif/links/{socket.if_nametoindex(DEVICE)}"
    file = "NETWORK_FILE=/etc/systemd/network/a.network\n"
    for text, network in (
        (f"# private\nADMIN_STATE=configured\n{file}", "/etc/systemd/network/a.network"),
        (f"ADMIN_STATE=unmanaged\n{file}", ""),
        ("", ""),
    ):
        write(tmp_path, state, text)
        assert read_networkd(tmp_path, DEVICE).network == network
    assert read_networkd(tmp_path, "no-such-device").network == ""


def test_the_process_is_found_by_the_lock_that_it_holds(tmp_path: Path) -> None:
    lock = f"dfmeta-agent {os.getpid()}"
    with socket.socket(socket.AF_UNIX) as holder:
        holder.bind(f"\0{lock}")
        inode = os.fstat(holder.fileno()).st_ino
        link = f"socket:[{inode}]"
    head = "Num       RefCount Protocol Flags    Type St Inode Path"
    line = f"0000000000000000: 00000002 00000000 00010000 0001 01 {inode} @{lock}"
    write(tmp_path, "net/unix", f"{head}\n0000: 2 0 0 1 1 12\n{line}\n")
    status = "State:\tS (sleeping)\nPPid:\t1\nUid:\t0\t7\t0\t0\nGid:\t0\t8\t0\t0\n"
    status += "Groups:\t4 5 \nCapEff:\t0000000000003000\n"
    limits = "Max open files            1024                 4096                 files\n"
    write(tmp_path, "9/cmdline", "python\0/usr/bin/dfmeta-agent\0")
    write(tmp_path, "9/status", status)
    write(tmp_path, "9/limits", limits)
    (tmp_path / "9/fd").mkdir()
    (tmp_path / "9/fd/3").symlink_to(link)
    for pid, state, command in (
        ("10", "S", "dfmeta.cmd.worker"),
        ("11", "Z", "dfmeta.cmd.worker"),
        ("12", "S", "dfmeta.cmd.holder"),
    ):
        write(tmp_path, f"{pid}/cmdline", f"python\0-m\0{command}\0")
        write(tmp_path, f"{pid}/status", f"State:\t{state}\nPPid:\t9\n")
        (tmp_path / pid / "fd").mkdir()
    process = read_process(lock, proc=tmp_path)
    assert process is not None
    assert (process.pid, process.uid, process.groups) == (9, 7, (8, 4, 5))
    assert (process.descriptors, process.open, process.workers) == (1024, 1, (10,))
    assert process.can("CAP_NET_ADMIN")
    assert not process.can("CAP_SETUID")
    assert read_process("another", proc=tmp_path) is None
    assert read_process(lock, proc=tmp_path / "none") is None
    write(tmp_path, "a", "")
    (tmp_path / "a").chmod(0o640)
    (file,) = read_sockets([str(tmp_path / "a"), str(tmp_path / "gone")])
    assert (file.path, file.mode, file.uid) == (str(tmp_path / "a"), 0o640, os.getuid())


def test_account_is_shared_by_processes_that_are_not_the_daemons(tmp_path: Path) -> None:
    uid, root = 61500, 0
    for pid, parent, uids in (
        (9, 1, (root,) * 4),
        (10, 9, (uid,) * 4),
        (11, 9, (uid,) * 4),
        (12, 1, (root, uid, root, root)),
        (13, 1, (uid + 1,) * 4),
    ):
        line = "\t".join(map(str, uids))
        write(tmp_path, f"{pid}/status", f"State:\tS\nPPid:\t{parent}\nUid:\t{line}\n")
    write(tmp_path, "12/comm", "dnsmasq\n")
    shared = read_account([10], 9, proc=tmp_path)
    assert shared == AccountFacts(users=[str(uid)], sharers=["dnsmasq (pid 12)"])
    assert read_account([14], 9, proc=tmp_path) is None


def test_a_look_at_a_database_makes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    assert not look(f"sqlite:///{path}").exists
    assert list(tmp_path.iterdir()) == []
    with Repository(f"sqlite:///{path}"):
        # With a log that somebody is writing.
        assert look(f"sqlite:///{path}").revision == HEAD
    names = sorted(path_.name for path_ in tmp_path.iterdir())
    facts = look(f"sqlite:///{path}")
    assert (facts.revision, facts.cause, facts.open_files) == (HEAD, "", ())
    assert sorted(path_.name for path_ in tmp_path.iterdir()) == names
    path.chmod(0o640)
    assert look(f"sqlite:///{path}").open_files == (str(path),)


def test_a_database_without_a_schema_or_none_at_all(tmp_path: Path) -> None:
    assert look(f"sqlite:///{tmp_path}/none.db").exists is False
    path = tmp_path / "other.db"
    for table in ("other (a)", "alembic_version (version_num TEXT)"):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"CREATE TABLE {table}")
            connection.commit()
        assert look(f"sqlite:///{path}").revision is None
    path.write_text("nothing of the sort " * 100)
    assert look(f"sqlite:///{path}").cause == "file is not a database"
    assert look(f"sqlite:///{tmp_path}").cause == "it is not a regular file"


def test_url_that_names_no_database_is_named() -> None:
    for url in ("sqlite://", "nonsense", "mysql://h/d", "sqlite:///a?b=c"):
        with pytest.raises(ConfigError, match=r"\[store\] connection"):
            look(url)


def test_a_client_that_closes_its_socket_meanwhile_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel reads the user and the inode one after the other."""
    rest = "0100007F:25E2 0100007F:25E1 01 00000000:00000000 00:00000000 00000000"
    ends = ((ip_address("127.0.0.1"), 0x25E2), (ip_address("127.0.0.1"), 0x25E1))
    for second, user in ((f"{USER} 0 0", None), ("0 0 0", None), ("0 0 11", 0)):
        texts = iter([f"heading\n 0: {rest} {end}\n" for end in ("0 0 11", second)])
        monkeypatch.setattr(
            Path, "read_text", lambda file, texts=texts: next(texts) if file.name == "tcp" else ""
        )
        assert client_user(*ends) == user, second
