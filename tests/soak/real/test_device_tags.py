"""A libvirt guest should find its devices by the roles that their tags give them.

dfmeta-tag-devices comes with the vendor data, and the examples of doc/source/devices.rst
with the user-data. Real devices: virtio and SCSI disks with serials, two NICs, and a disk that is
plugged in while the guest runs.
"""

import re
from textwrap import dedent

import pytest

from tests.core.docs.typed import page
from tests.harness.poll import wait_for
from tests.soak.real.domains import BOOT, KEY, another, reports, user_data, wait_reports
from tests.soak.real.libvirt import Libvirt

pytestmark = pytest.mark.long

NAME, NUMBER = "web4", 4
NIC = "52:54:00:00:01:04"
DATA = "/var/lib/libvirt/data"
ORACLE, LOGS, BACKUP = "vol-oracle", "vol-logs", "vol-backup"
FSTAB, NETWORK = re.findall(
    r"^In ``(?:/etc/fstab|/etc/systemd/network/20-storage.network)``[^:]*::\n\n((?:   .*\n|\n)+)",
    page("devices"),
    re.MULTILINE,
)
USER_DATA = user_data(
    """\
disks=$(ls /sys/block)
while :; do
    if [ "$(ls /sys/block)" != "$disks" ]; then
        disks=$(ls /sys/block)
        /var/lib/cloud/scripts/per-boot/50-dfmeta-tag-devices
        say ran "$?"
    fi
    for role in /dev/disk/by-role/*; do
        serial=$(udevadm info --query=property --name="$role" | sed -n 's/^ID_SERIAL=//p')
        [ -e "$role" ] && say role "${role##*/} $(basename "$(readlink "$role")") $serial"
    done
    nic=$(udevadm trigger --dry-run --verbose --tag-match=dfmeta-storage)
    mac=$(cat "$nic/address")
    say nic "$mac $(ip -4 -o address show dev "${nic##*/}" | tr -s ' ' | cut -d ' ' -f 4)"
    say mounted "$(findmnt -n -o SOURCE /var/lib/oracle) $(cat /var/lib/oracle/name)"
    say end "$(cat /proc/sys/kernel/random/boot_id)"
    sleep 2
done
""",
    # The disk's file system is ext4: the guest has no tools for xfs.
    {
        "path": "/etc/fstab",
        "append": True,
        "content": dedent(FSTAB).strip("\n").replace("xfs", "ext4") + "\n",
    },
    {
        "path": "/etc/systemd/network/20-storage.network",
        "content": dedent(NETWORK).strip("\n") + "\n",
    },
)


def disk(target: str, bus: str, serial: str) -> str:
    """A disk's element."""
    return (
        "<disk type='file' device='disk'><driver name='qemu' type='raw'/>"
        f"<source file='{DATA}/{serial}'/><target dev='{target}' bus='{bus}'/>"
        f"<serial>{serial}</serial></disk>"
    )


def domain() -> str:
    """web1's definition with two more disks, one of them on SCSI, and a second NIC."""
    more = (
        disk("vdb", "virtio", ORACLE)
        + "<controller type='scsi' index='0' model='virtio-scsi'/>"
        + disk("sda", "scsi", LOGS)
        + f"<interface type='bridge'><mac address='{NIC}'/><source bridge='br-int'/>"
        "<virtualport type='openvswitch'/><model type='virtio'/></interface>"
    )
    return another(NAME, NUMBER).replace("</devices>", f"{more}</devices>")


def tag(host: Libvirt, *more: str) -> None:
    """Store the devices of the domain as it is, with the roles."""
    rules = (f"nic:{NIC}=storage", f"disk:{ORACLE}=oracledb", f"disk:{LOGS}=logs", *more)
    options = [word for rule in rules for word in ("--tag", rule)]
    xml = host.virsh("dumpxml", NAME)
    host.run("dfmeta", "devices", "from-libvirt", "-", *options, "--store", stdin=xml)


def roles(host: Libvirt) -> dict[str, list[str]]:
    """Role → device and serial, of the guest's last complete report."""
    result: dict[str, list[str]] = {}
    whole = host.console(NAME).rpartition("@@end@@")[0].rpartition("@@end@@")[2]
    for line in whole.splitlines():
        words = line.strip().split("@@")
        if len(words) == 4 and words[1] == "role":
            role, *device = words[2].split()
            result[role] = device
    return result


@pytest.fixture(scope="module")
def guest(host: Libvirt) -> str:
    """A guest whose devices have roles, at the end of its first boot."""
    host.shell(
        f"""
mkdir -p {DATA}/files
echo the oracle > {DATA}/files/name
mke2fs -q -t ext4 -d {DATA}/files {DATA}/{ORACLE} 16M
truncate -s 16M {DATA}/{LOGS} {DATA}/{BACKUP}
"""
    )
    host.define(host.emulated(domain()))
    written = host.write("user-data", USER_DATA)
    host.dfmeta(
        *("store", "put", NAME, "--hostname", "tagged", "--ssh-key", KEY, "--tag-devices"),
        *("--user-data", written),
    )
    tag(host)
    host.virsh("start", NAME)
    wait_reports(host, NAME, "end", 2)
    return NAME


def test_devices_have_their_roles_in_the_first_boot(host: Libvirt, guest: str) -> None:
    assert '"errors": []' in reports(host, guest, "result")[0]
    result = roles(host)
    assert result["oracledb"] == ["vdb", ORACLE]
    assert result["logs"][0] == "sda"
    assert set(result) == {"oracledb", "logs"}
    assert reports(host, guest, "nic")[-1].split()[0] == NIC


def test_a_disk_that_is_plugged_in_gets_its_role_at_the_next_run(host: Libvirt, guest: str) -> None:
    device = host.write("backup.xml", disk("vdc", "virtio", BACKUP))
    ran = len(reports(host, guest, "ran"))
    # The record first: the guest looks when it sees the disk.
    host.virsh("suspend", guest)
    host.virsh("attach-device", guest, device, "--live", "--config")
    tag(host, f"disk:{BACKUP}=backup")
    host.virsh("resume", guest)
    assert wait_reports(host, guest, "ran", ran + 1)[-1] == "0"
    wait_for(
        lambda: roles(host).get("backup") == ["vdc", BACKUP], "the role", deadline=BOOT, interval=1
    )
    assert roles(host)["oracledb"] == ["vdb", ORACLE]


def test_the_examples_of_the_page_hold_from_the_second_boot_on(host: Libvirt, guest: str) -> None:
    before = set(reports(host, guest, "end"))
    host.virsh("reboot", guest)

    def rebooted() -> bool:
        return bool(set(reports(host, guest, "end")[-2:-1]) - before)

    wait_for(rebooted, "a report of the second boot", deadline=BOOT, interval=1)
    assert roles(host)["oracledb"] == ["vdb", ORACLE]
    assert reports(host, guest, "mounted")[-1] == "/dev/vdb the oracle"
    mac, address = wait_for(
        lambda: words if len(words := reports(host, guest, "nic")[-1].split()) == 2 else [],
        "the NIC's address",
        deadline=BOOT,
        interval=1,
    )
    assert mac == NIC
    assert address.startswith("192.168.150.")
