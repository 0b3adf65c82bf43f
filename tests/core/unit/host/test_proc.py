"""Sockets, processes and counters are read from the files that proc(5) describes."""

import fcntl
import struct
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest

from dfmeta.host import ipv6, system
from dfmeta.host.listeners import TcpListener, client_user, listener_at, tcp_listeners
from dfmeta.host.process import NamedSocket, named_sockets, of_each, read_haproxy
from dfmeta.host.system import checksum_errors

LOOPBACK = "0100007F"
"""127.0.0.1, and its form in IPv6, in words of the machine's byte order."""
MAPPED = "0000000000000000FFFF0000" + LOOPBACK


def tcp(*lines: tuple[str, str, str, int, int]) -> str:
    """Return a file of TCP sockets: local and remote place, state, user and inode of each."""
    text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
    for number, (local, remote, state, uid, inode) in enumerate(lines):
        rest = f"00000000:00000000 00:00000000 00000000 {uid} 0 {inode} 1"
        text += f"  {number}: {local} {remote} {state} {rest}\n"
    return text


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "net").mkdir()
    return tmp_path


def test_only_listeners_are_listeners(proc: Path) -> None:
    (proc / "net/tcp").write_text(
        tcp(
            ("00000000:0050", "00000000:0000", "0A", 9, 13),
            (f"{LOOPBACK}:0050", "00000000:0000", "0A", 7, 11),
            (f"{LOOPBACK}:0050", f"{LOOPBACK}:9C40", "01", 8, 12),
            (f"{LOOPBACK}:0051", "00000000:0000", "07", 9, 14),
        )
    )
    assert list(tcp_listeners(proc=proc)) == [
        TcpListener(IPv4Address("0.0.0.0"), 80, 13, 9),
        TcpListener(IPv4Address("127.0.0.1"), 80, 11, 7),
    ]
    for place, inode in (("127.0.0.1:80", 11), ("127.0.0.2:80", 13)):
        listener = listener_at(place, proc=proc)
        assert listener is not None
        assert listener.inode == inode
    for place in ("127.0.0.1:81", "no.such.name.invalid:80"):
        assert listener_at(place, proc=proc) is None, place


def test_the_user_of_a_client_is_that_of_its_open_connection(proc: Path) -> None:
    client, server = (IPv4Address("127.0.0.1"), 40000), (IPv4Address("127.0.0.1"), 80)
    ends = f"{LOOPBACK}:9C40", f"{LOOPBACK}:0050"
    for connection, user in (
        ((*ends, "01", 7, 11), 7),
        ((*ends, "01", 0, 0), None),
        ((*ends, "06", 7, 11), None),
        ((*ends[::-1], "01", 7, 11), None),
        (("0200007F:9C40", ends[1], "01", 7, 11), None),
        ((ends[0], "0200007F:0050", "01", 7, 11), None),
    ):
        (proc / "net/tcp").write_text(tcp(connection))
        assert client_user(client, server, proc=proc) == user, connection
    (proc / "net/tcp").unlink()
    mapped = f"{MAPPED}:9C40", f"{MAPPED}:0050"
    (proc / "net/tcp6").write_text(tcp((*mapped, "01", 7, 11)))
    assert client_user(client, server, proc=proc) == 7
    assert client_user((IPv6Address("::1"), 40000), server, proc=proc) is None


def test_a_named_socket_listens_by_its_flag(proc: Path) -> None:
    (proc / "net/unix").write_text(
        "Num       RefCount Protocol Flags    Type St Inode Path\n"
        "0: 00000002 00000000 00010000 0001 01 17 @dfmeta\n"
        "0: 00000003 00000000 00000000 0001 03 18 @dfmeta\n"
        "0: 00000003 00000000 0000FFFF 0001 03 19 /run/a b\n"
        "0: 00000003 00000000 00000000 0001 03 20\n"
    )
    assert list(named_sockets(proc=proc)) == [
        NamedSocket("@dfmeta", "17", listens=True),
        NamedSocket("@dfmeta", "18", listens=False),
        NamedSocket("/run/a b", "19", listens=False),
    ]
    assert list(named_sockets(proc=proc / "none")) == []


def test_a_long_file_of_each_process_is_read_whole(proc: Path) -> None:
    text = bytes(range(256)) * 600
    for name in ("7", "self", "8"):
        (proc / name).mkdir()
    (proc / "7/cmdline").write_bytes(text)
    assert dict(of_each("cmdline", proc=proc)) == {7: text}


def test_haproxy_is_read_if_it_is_a_child_of_the_daemon(proc: Path) -> None:
    folder = proc / "7"
    (folder / "fd").mkdir(parents=True)
    for number in range(3):
        (folder / "fd" / str(number)).write_text("")
    (folder / "limits").write_text(
        "Limit Soft Hard\nMax open files            1024    4096 files\n"
    )
    (folder / "status").write_text(
        "Name:\thaproxy\nPPid:\t5\nUid:\t1\t4294967294\t3\t4\n"
        "CapInh:\t1\nCapPrm:\t2\nCapEff:\t4\nCapAmb:\t400\n"
    )
    facts = read_haproxy(7, 5, proc=proc)
    assert facts is not None
    assert (facts.uid, facts.user) == (4294967294, "4294967294")
    assert (facts.capabilities, facts.descriptors, facts.open) == (0x407, 1024, 3)
    assert read_haproxy(7, 6, proc=proc) is None
    assert read_haproxy(8, 5, proc=proc) is None
    (folder / "limits").write_text("Max open files  unlimited  unlimited  files\n")
    facts = read_haproxy(7, 5, proc=proc)
    assert facts is not None
    assert facts.descriptors == 1 << 30
    (folder / "status").write_text("PPid:\t5\nUid:\t1 2\nCapInh:\t0\n")
    assert read_haproxy(7, 5, proc=proc) is None


def test_missing_counter_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "snmp"
    monkeypatch.setattr(system, "_SNMP", file)
    assert checksum_errors() == 0
    for text, number in (
        ("Ip: InCsumErrors\nIp: 9\nTcp: RtoMin InCsumErrors\nTcp: 200 7\n", 7),
        ("Tcp: RtoMin\nTcp: 200\n", 0),
        ("Tcp: RtoMin InCsumErrors\n", 0),
    ):
        file.write_text(text)
        assert checksum_errors() == number, text


def test_the_mtu_is_that_of_the_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def answer(_sock: object, request: int, argument: bytes) -> bytes:
        assert request == 0x8921
        assert argument.startswith(b"tap\0")
        return struct.pack("16si20x", b"tap", mtu)

    monkeypatch.setattr(fcntl, "ioctl", answer)
    monkeypatch.setattr(ipv6, "SYSCTL", tmp_path)
    mtu = 1279
    lack = ipv6.lack_of("tap")
    assert lack is not None
    assert lack.remedy == "`ovs-vsctl set Interface tap mtu_request=1280`"
    mtu = 1280
    assert ipv6.lack_of("tap") is None
