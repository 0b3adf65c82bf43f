"""A boot of cloud-init that begins with its modules imported should be as one that imports them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.harness import netns, nursery
from tests.harness.cloudinit import RELEASES, Boot, Booting, Release
from tests.harness.guest import METADATA_IP
from tests.harness.nova import RecordingNova
from tests.harness.nova_tree import Instance

INSTANCE_ID = "11111111-2222-4333-8444-555555555555"
RAN = "/run/ran"
SCRIPT = f"""#!/bin/sh
exec >{RAN}
env
umask
ulimit -a
hostname
ip -o link
ls / /opt
grep -E '^(Sig(Blk|Ign|Cgt)|Cap|Seccomp|NoNewPrivs|Groups)' /proc/self/status
awk '{{ print $4, $5, $6 }}' /proc/self/mountinfo
ls -A /proc/self/fd /dev/shm /tmp
"""
"""Tells what a process of the guest has from cloud-init."""
VARYING = (
    (r"tmp\w{8}", "NAME"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+", "TIME"),
    (r"\w{3}, \d+ \w{3} \d{4} \d\d:\d\d:\d\d \+0000", "DATE"),
    (r"\d+\.\d{2,}", "SECONDS"),
    (r"0x[0-9a-f]+", "ADDRESS"),
    (r"\d+ (bytes|chars)", "SIZE"),
    # It logs what took longer than 10 ms.
    (r".* took \S+ seconds\n", ""),
    # A set has no order.
    (r"\{'text/cloud-config.*?\}", "SET"),
    # Modules of earlier releases read it as they are imported.
    (r".*/schema-cloud-config-v1\.json.*\n", ""),
)
"""What differs between any two boots: times, addresses in memory, names, what the machine does."""


INSTANCE = Instance(
    instance_id=INSTANCE_ID, project_id="p", hostname="web-1", user_data=SCRIPT.encode()
)


@pytest.fixture
def guest() -> Iterator[netns.Namespace]:
    with netns.Namespace("guest") as namespace:
        yield namespace


def boots(guest: netns.Namespace, release: Release) -> list[Boot]:
    """One as a fork, and one as an interpreter."""
    found = []
    for nursery.enabled in (True, False):
        booting = Booting(guest, release=release, files=[RAN])
        found.append(booting.finish())
    return found


def same(text: str) -> str:
    for pattern, name in VARYING:
        text = re.sub(pattern, name, text)
    return text


@pytest.mark.parametrize("program", RELEASES)
def test_a_boot_is_the_same(guest: netns.Namespace, program: str) -> None:
    with netns.Namespace("service") as namespace:
        netns.veth(guest, "eth0", namespace, "eth0")
        namespace.ip(f"addr add {METADATA_IP}/16 dev eth0")
        guest.ip("addr add 169.254.1.1/16 dev eth0")
        with RecordingNova(namespace, host=METADATA_IP, port=80, direct=INSTANCE_ID) as nova:
            nova.put(INSTANCE)
            forked, real = boots(guest, RELEASES[program])
    assert same(forked.log) == same(real.log)
    assert same(forked.output) == same(real.output)
    assert forked.files == real.files
    assert forked.instance_data == real.instance_data
    assert forked.result == real.result
    assert (forked.hostname, forked.instance_id) == (real.hostname, real.instance_id)
    assert forked.datasource == "OpenStack"
    assert "eth0" in forked.files[RAN]
