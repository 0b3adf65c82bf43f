"""What the kernel tells of its connection tracking: as files of Linux 6.1 and 6.18 have it."""

from pathlib import Path

import pytest

from dfmeta.host import system
from dfmeta.host.system import ConntrackFacts, read_conntrack

TABLE = (
    "ipv4     2 tcp      6 117 TIME_WAIT src=128.0.0.2 dst=169.254.169.254 sport=40001 dport=18080 "
    "src=169.254.169.254 dst=128.0.0.2 sport=18080 dport=40001 [ASSURED] mark=0 zone=0 use=2\n"
    "ipv4     2 tcp      6 9 CLOSE src=128.0.255.254 dst=169.254.169.254 sport=50000 dport=18080 "
    "src=169.254.169.254 dst=128.0.255.254 sport=18080 dport=50000 mark=0 zone=0 use=2\n"
    "ipv4     2 tcp      6 431999 ESTABLISHED src=10.0.0.1 dst=10.0.0.2 sport=50002 dport=18080 "
    "src=10.0.0.2 dst=10.0.0.1 sport=18080 dport=50002 [ASSURED] mark=0 zone=0 use=2\n"
    "ipv4     2 tcp      6 431999 ESTABLISHED src=10.0.0.1 dst=169.254.169.254 sport=50002 "
    "dport=180801 src=169.254.169.254 dst=10.0.0.1 sport=180801 dport=50002 mark=0 zone=0 use=2\n"
    "ipv4     2 udp      17 28 src=10.0.0.1 dst=169.254.169.254 sport=39000 dport=18080 "
    "[UNREPLIED] src=169.254.169.254 dst=10.0.0.1 sport=18080 dport=39000 mark=0 zone=0 use=2\n"
)
COUNTERS = (
    "entries  clashres found new invalid ignore delete chainlength insert insert_failed drop "
    "early_drop icmp_error  expect_new expect_create expect_delete search_restart\n"
    "0003fffe  00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000002 "
    "00000010 00000000 00000000  00000000 00000000 00000000 00000000\n"
    "0003fffe  00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000001 "
    "00000003 0000fffd 00000000  00000000 00000000 00000000 00000000\n"
)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(system, "_CONNTRACK", tmp_path)
    monkeypatch.setattr(system, "_CONNTRACK_TABLE", tmp_path / "table")
    monkeypatch.setattr(system, "_CONNTRACK_COUNTERS", tmp_path / "counters")
    return tmp_path


def test_the_files_of_the_kernel_are_read_as_far_as_they_exist(proc: Path) -> None:
    assert read_conntrack("169.254.169.254", 18080) == ConntrackFacts()
    values = {"nf_conntrack_max": 8192, "nf_conntrack_count": 5}
    values["nf_conntrack_tcp_timeout_time_wait"] = 60
    for name, value in values.items():
        (proc / name).write_text(f"{value}\n")
    (proc / "table").write_text(TABLE)
    (proc / "counters").write_text(COUNTERS)
    expected = ConntrackFacts(room=8192, count=5, guests=2, kept=60, dropped=16, evicted=0xFFFD)
    assert read_conntrack("169.254.169.254", 18080) == expected
    assert read_conntrack("169.254.169.254", None).guests is None


def test_a_lost_race_is_no_full_table(proc: Path) -> None:
    for failed in (3, 4):
        (proc / "counters").write_text(f"drop insert_failed early_drop\n3 {failed} 0\n")
        assert read_conntrack("169.254.169.254", 18080) == ConntrackFacts()
