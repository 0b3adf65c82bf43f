"""Every command of doc/source/store-kvm.rst should do what the page says, as it stands there."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dfmeta.ports.domain import parse
from tests.core.docs.typed import untyped
from tests.harness import domains as libvirt
from tests.harness import netns
from tests.harness.agent import Agent
from tests.harness.cloudinit import METADATA_URL, SEED, Booting
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest, Ids, uuid_of
from tests.harness.ovs import UNPACKED, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.shell import command_with, script
from tests.host.e2e.support import KEY

PAGE = (Path(__file__).parents[3] / "doc/source/store-kvm.rst").read_text(encoding="utf-8")
_BLOCK = re.compile(r"\.\. code-block:: (\w+)\n\n((?: {3}.*\n|\n)+)")
_TITLE = re.compile(r"^(.+)\n(?:=+|-+)$", re.MULTILINE)
WEB1, IMPORTED = uuid_of("web1"), uuid_of("an imported one")
WEB2, WEB3 = re.findall(r"vm-uuid=(\S+)", PAGE)
PROJECT = "5f705ae0b9a94e0c8f0a1d9d5d3b3b1c"
RAN = "/run/ran-on"
USER_DATA = f"#!/bin/sh\nhostname > {RAN}\n"


def blocks(kind: str) -> dict[str, list[str]]:
    """Section → what its blocks of that kind hold, without their margin."""
    found: dict[str, list[str]] = {}
    for block in _BLOCK.finditer(PAGE):
        if block[1] == kind:
            title = [one[1] for one in _TITLE.finditer(PAGE, 0, block.start())][-1]
            found.setdefault(title, []).append(re.sub("^ {3}", "", block[2], flags=re.MULTILINE))
    return found


@dataclass
class Operator:
    """Somebody at a shell on the host, with the daemon's configuration where it is by default."""

    agent: Agent
    folder: Path
    netns_name: str
    pid: int = 0

    def does(self, title: str) -> str:
        """Run a section's commands one after the other; what they print."""
        text = "".join(blocks("sh")[title])
        return "".join(self.run(line) for line in text.splitlines() if line)

    def run(self, line: str) -> str:
        """Run a line; it has to succeed, and to complain of nothing."""
        host = self.agent.host
        if line.startswith("ip "):
            line = line.replace("web2", self.netns_name)
        line = line.replace("/var/lib/dfmeta", str(self.agent.state_path))
        line = f"cd {self.folder}; {line}"
        # Not by ip netns exec: a namespace that is made in there is there alone.
        done = netns.run(
            ["nsenter", f"--net=/run/netns/{host.namespace.name}", "sh", "-euc", line],
            env={
                **host.environment(),
                "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
                "pid": str(self.pid),
                "NSTAT_HISTORY": f"{self.folder}/nstat",
            },
        )
        assert done.stderr == "", line
        return done.stdout


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = netns.temporary_folder("operator")
    (folder / "key.pub").write_text(f"{KEY}\n")
    (folder / "user-data").write_text(USER_DATA)
    (folder / "vendor-data").write_text("#cloud-config\n{}\n")
    (folder / "network-config").write_text("version: 2\n")
    (folder / "web3.json").write_text('{"hostname": "web3"}')
    seed = folder / "seeds" / "web1"
    seed.mkdir(parents=True)
    (seed / "meta-data").write_text("instance-id: iid-1\nlocal-hostname: moved\n")
    (seed / "user-data").write_text(USER_DATA)
    line = {"id": IMPORTED, "ipAddresses": ["10.0.0.7"], "metadata": {"hostname": "imported"}}
    (folder / "records.jsonl").write_text(json.dumps(line) + "\n")
    (folder / "bin").mkdir()
    (folder / "libvirt").mkdir()
    yield folder
    netns.run(["rm", "-r", str(folder)])


@pytest.fixture
def operator(host: OpenvSwitch, make_agent: MakeAgent, folder: Path) -> Iterator[Operator]:
    agent = make_agent(
        {"df_metadata": {"libvirt_xml_path": folder / "libvirt"}, "store": {"defaults": True}}
    )
    script(folder / "bin" / "dfmeta", *command_with(agent.config_file))
    vsctl = (str(UNPACKED / "usr/bin/ovs-vsctl"), f"--db={host.ovsdb_connection}")
    script(folder / "bin" / "ovs-vsctl", *vsctl)
    libvirt.write(folder / "libvirt", "web1", domain(WEB1, "web1"))
    name = f"{netns.PREFIX}{os.getpid()}-web2"
    operator = Operator(agent, folder, name)
    yield operator
    if Path(f"/run/netns/{name}").exists():
        netns.run(["ip", "netns", "del", name])


def domain(instance: str, name: str) -> str:
    """A running domain with the page's interface, as libvirt's status file has it."""
    (interface,) = blocks("xml")["A libvirt domain"]
    return libvirt.status(
        f"<domain type='kvm'><name>{name}</name><uuid>{instance}</uuid>"
        f"<devices>{interface}</devices></domain>"
    )


def plugged_by_libvirt(make_guest: MakeGuest, name: str, instance: str) -> Guest:
    """A guest whose port has what libvirt writes."""
    ids = Ids(iface_id=uuid_of(f"port of {name}"), extra={"vm-id": instance})
    return make_guest(name, ids=ids)


def fetched(guest: Guest, path: str) -> str:
    reply = guest.curl(path)
    assert reply.status == 200, reply
    return reply.text


def test_guests_of_every_kind_get_what_was_put(operator: Operator, make_guest: MakeGuest) -> None:
    web1 = plugged_by_libvirt(make_guest, "web1", WEB1)
    operator.does("A network namespace")
    container = netns.spawn(["unshare", "--net", "sleep", "600"])
    try:
        netns_of = Path(f"/proc/{container.pid}/ns/net")
        wait_until_apart(netns_of)
        operator.pid = container.pid
        operator.does("A container")
        printed = operator.does("Records")
        assert f"{WEB1} (web1): created, with hostname, ssh keys, user-data\n" in printed
        assert printed.endswith("web2")
        path = "/latest/meta-data/local-hostname"
        assert fetched(web1, path) == "web1.example.org"
        assert fetched(web1, "/latest/user-data") == USER_DATA
        assert fetched(web1, "/nocloud/vendor-data") == "#cloud-config\n{}\n"
        assert fetched(web1, "/nocloud/network-config") == "version: 2\n"
        url = f"http://169.254.169.254{path}"
        asked = ["nsenter", f"--net={netns_of}", "curl", "-s", "-m", "10", url]
        assert netns.run(asked).stdout == "web3"
    finally:
        netns.end(container)


def test_without_the_last_line_a_namespace_gets_nothing_and_the_counter_says_so(
    operator: Operator,
) -> None:
    *lines, last = blocks("sh")["A network namespace"][0].splitlines()[:8]
    assert last == "ip netns exec web2 ethtool -K eth0 tx off"
    *_lines, curl = blocks("sh")["Records"][0].splitlines()[:7]
    datapath, counter = (block.strip() for block in blocks("sh")["A userspace datapath"])
    for line in lines:
        operator.run(line)
    operator.run(f"dfmeta store put {WEB2} --hostname web2")
    assert operator.run(datapath) == "netdev\n"
    with pytest.raises(netns.CommandError, match="exit 28"):
        operator.run(f"{curl} -m 2")
    assert int(operator.run(counter).split("TcpInCsumErrors")[1].split()[0]) > 0
    operator.run(last)
    assert operator.run(curl) == "web2"


def wait_until_apart(namespace: Path) -> None:
    ours = Path("/proc/self/ns/net").readlink()
    wait_for(lambda: namespace.readlink() != ours, "the container's namespace")


def test_a_domain_boots_from_the_place_that_its_smbios_names(
    operator: Operator, make_guest: MakeGuest, cloud_init: Callable[..., Booting]
) -> None:
    sysinfo, smbios = blocks("xml")["cloud-init"]
    serial = re.findall(r"<entry name='serial'>(.*)</entry>", sysinfo)
    # The release of cloud-init in the tests is one that has the older word.
    assert serial[0].replace("nocloud;", "nocloud-net;") == f"{SEED}{METADATA_URL}/nocloud/"
    assert smbios.strip() == "<smbios mode='sysinfo'/>"
    web1 = plugged_by_libvirt(make_guest, "web1", WEB1)
    operator.run(blocks("sh")["Records"][0].splitlines()[0])
    boot = cloud_init(web1, mode="NoCloud", files=[RAN]).finish()
    assert boot.errors == []
    assert (boot.datasource, boot.instance_id) == ("NoCloudNet", WEB1)
    assert boot.authorized_keys.splitlines() == [KEY]
    assert boot.files[RAN].strip().startswith("web1")


def test_an_instance_without_a_record_boots_from_the_defaults(
    operator: Operator, make_guest: MakeGuest, cloud_init: Callable[..., Booting]
) -> None:
    libvirt.write(operator.folder / "libvirt", "db", domain(uuid_of("db"), "My DB"))
    guest = plugged_by_libvirt(make_guest, "db", uuid_of("db"))
    assert guest.curl("/latest/meta-data/").status == 404
    lines = "".join(blocks("sh")["Instances without a record"]).splitlines()
    for line in lines[:3]:
        operator.run(line)
    boot = cloud_init(guest, mode="NoCloud").finish()
    assert boot.errors == []
    assert (boot.instance_id, boot.hostname.partition(".")[0]) == (uuid_of("db"), "my-db")
    assert boot.authorized_keys.splitlines() == [KEY]
    assert fetched(guest, "/latest/meta-data/placement/availability-zone") == "rack1"
    assert fetched(guest, "/openstack/latest/password") == ""
    assert guest.curl("/latest/user-data").status == 404, "that is another project's"
    guest.set_external_ids(project_id=PROJECT)
    wait_for(lambda: guest.curl("/latest/user-data").text == USER_DATA, "the project's")
    listed = "".join(operator.run(line) for line in lines[3:])
    assert f"default:host:{socket.gethostname().lower()}" in listed
    assert f"default:project:{PROJECT}: deleted\n" in listed
    assert guest.curl("/latest/user-data").status == 404
    put = f"dfmeta store put {guest.instance_id or uuid_of('db')} --hostname own 2>&1"
    assert "had these from the defaults, and loses them: " in operator.run(put)
    assert fetched(guest, "/latest/meta-data/local-hostname") == "own"
    assert guest.curl("/latest/meta-data/public-keys/").status == 404


def test_what_is_imported_is_what_guests_get(operator: Operator, make_guest: MakeGuest) -> None:
    web1 = plugged_by_libvirt(make_guest, "web1", WEB1)
    printed = operator.does("Import").splitlines()
    decided = f"seeds/web1: {WEB1}, by its directory's name: hostname, user-data"
    assert printed == [
        decided,
        "would be imported: 1 seeds, 1 lines",
        decided,
        "imported: 1 seeds, 1 lines",
    ]
    assert "instance-id: iid-1" in fetched(web1, "/nocloud/meta-data")
    assert "local-hostname: moved" in fetched(web1, "/nocloud/meta-data")
    assert fetched(web1, "/latest/user-data") == USER_DATA


def test_back_ups_are_made_and_restored_under_the_daemon(
    operator: Operator, make_guest: MakeGuest
) -> None:
    web1 = plugged_by_libvirt(make_guest, "web1", WEB1)
    path = "/latest/meta-data/local-hostname"
    ours, sqlites = (block.strip().splitlines() for block in blocks("sh")["Backup"])
    for number, (backup, restore) in enumerate((ours, sqlites)):
        operator.run(f"dfmeta store put web1 --hostname before{number}")
        operator.run(backup)
        operator.run("dfmeta store put web1 --hostname after")
        assert fetched(web1, path) == "after"
        operator.run(restore)
        assert fetched(web1, path) == f"before{number}"
    for name in ("store-backup.db", "store-copy.db"):
        assert (operator.folder / name).stat().st_mode & 0o777 == 0o600


def test_the_interface_of_the_page_is_one_that_a_domain_can_have() -> None:
    found = parse(domain(WEB1, "web1").encode())
    assert (found.domain_name, len(found.nics)) == ("web1", 1)


def test_each_command_is_run_by_a_test_of_this_module() -> None:
    sections = blocks("sh")
    assert sections.keys() == {
        "A network namespace",
        "A userspace datapath",
        "A container",
        "Records",
        "Instances without a record",
        "Import",
        "Backup",
    }
    assert blocks("xml").keys() == {"A libvirt domain", "A userspace datapath", "cloud-init"}
    assert {kind[1] for kind in _BLOCK.finditer(PAGE)} == {"sh", "xml"}
    lines = "".join(text for texts in sections.values() for text in texts).splitlines()
    assert untyped("store-kvm", lines) == []
