"""A real cloud-init boots from the recording Nova itself, and the host does not notice."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import netns
from tests.harness.cloudinit import boot
from tests.harness.guest import METADATA_IP
from tests.harness.nova import RecordingNova
from tests.harness.nova_tree import Instance

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGWZ root@example.org"
USER_DATA = b"""#cloud-config
runcmd:
  - [sh, -c, "hostname > /run/ran-on"]
write_files:
  - path: /etc/written
    content: by user-data
"""
INSTANCE_ID = "11111111-2222-4333-8444-555555555555"


@pytest.fixture
def guest() -> Iterator[netns.Namespace]:
    with netns.Namespace("guest") as namespace:
        yield namespace


@pytest.fixture
def service(guest: netns.Namespace) -> Iterator[RecordingNova]:
    with netns.Namespace("service") as namespace:
        netns.veth(namespace, "eth0", guest, "eth0")
        namespace.ip(f"addr add {METADATA_IP}/16 dev eth0")
        guest.ip("addr add 169.254.1.1/16 dev eth0")
        with RecordingNova(namespace, host=METADATA_IP, port=80, direct=INSTANCE_ID) as nova:
            yield nova


def test_a_boot_without_a_service_finds_no_source(guest: netns.Namespace) -> None:
    result = boot(guest, timeout=0.2, max_wait=0.5)
    assert result.datasource in ("", "None")
    assert result.hostname == "unnamed"
    assert result.authorized_keys == ""


def fingerprint(*folders: str) -> str:
    """Names, sizes, modes and times of everything in the folders, and the contents of /etc."""
    digest = hashlib.sha256(socket.gethostname().encode())
    for folder in folders:
        for path in sorted(Path(folder).rglob("*")):
            status = os.lstat(path)
            digest.update(f"{path} {status.st_size} {status.st_mode} {status.st_mtime_ns}".encode())
            # No link: /etc/mtab has the mounts of all programs.
            if folder == "/etc" and stat.S_ISREG(status.st_mode):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def mounts() -> set[str]:
    """The mounts of this process, but for the names that any program gives to namespaces."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {line for line in lines if " - nsfs " not in line}


def test_the_host_stays_as_it_is(guest: netns.Namespace, service: RecordingNova) -> None:
    folders = ("/etc", "/root/.ssh", "/home", "/var/lib/cloud", "/run/cloud-init")
    before, mounted = fingerprint(*folders), mounts()
    names = {path.name for path in Path("/root").iterdir()}
    service.put(
        Instance(
            instance_id=INSTANCE_ID,
            project_id="p",
            hostname="web-1",
            keys={"key-1": KEY},
            user_data=USER_DATA,
        )
    )
    result = boot(guest, files=["/run/ran-on", "/etc/written"])
    assert result.files == {"/run/ran-on": "web-1\n", "/etc/written": "by user-data"}
    assert fingerprint(*folders) == before
    assert {path.name for path in Path("/root").iterdir()} == names
    assert mounts() == mounted
    for path in ("/run/ran-on", "/etc/written", "/var/log/cloud-init.log"):
        assert not Path(path).exists()
