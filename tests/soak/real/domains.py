"""Domains like that of doc/source/first-hour-libvirt.rst, and what their guests say of themselves.

User-data has a guest write lines to its serial line: ``@@`` subject ``@@`` value ``@@``
(:func:`user_data`).
"""

import json
from typing import Any
from xml.etree import ElementTree

from tests.core.docs.typed import page
from tests.harness.console import blocks
from tests.harness.poll import wait_for
from tests.soak.real.libvirt import Libvirt

BOOT = 600
"""Seconds from the start of a guest to the end of its cloud-init, on a busy machine."""
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGxpYnZpcnQuLi4uLi4uLi4uLi4uLi4uLi4uLi4uLi4u root@host"
OTHER_KEY = KEY.replace("root@host", "root@defaults")
(XML, CONFIGURATION) = (
    next(block.text for block in blocks(page("first-hour-libvirt")) if block.caption == caption)
    for caption in ("web1.xml", "/etc/dfmeta/dfmeta.conf")
)
ADDRESSES = """
ip address add 192.168.150.1/24 dev br-int
ip link set br-int up
dnsmasq --interface=br-int --bind-interfaces --except-interface=lo --port=0 \\
    --dhcp-range=192.168.150.10,192.168.150.200
"""
"""The host's side of the guests' network, with DHCP."""

_SAY = """\
#!/bin/sh
say() { printf '\\n@@%s@@%s@@\\n' "$1" "$2" > /dev/ttyS0; }
until [ -e /run/cloud-init/result.json ]; do sleep 1; done
say result "$(tr -d '\\n' < /run/cloud-init/result.json)"
"""
_EACH_BOOT = """\
#!/bin/sh
systemd-run --quiet /usr/local/bin/report
"""


def user_data(report: str, *files: dict[str, Any]) -> str:
    """A cloud-config whose guest reports at each boot, once its cloud-init has ended.

    :param report: lines of shell; the function ``say SUBJECT VALUE`` writes a line.
    :param files: further members of ``write_files``.
    """
    written = [
        {"path": path, "permissions": "0755", "content": content}
        for path, content in (
            ("/usr/local/bin/report", _SAY + report),
            ("/var/lib/cloud/scripts/per-boot/report", _EACH_BOOT),
        )
    ]
    # The disk of guests has no locale but C, and cloud-init would choose another.
    config = {"locale": False, "write_files": [*written, *files]}
    return f"#cloud-config\n{json.dumps(config, indent=1)}\n"


def reports(host: Libvirt, name: str, what: str) -> list[str]:
    """What a guest has said of itself, the newest last."""
    lines = (line.strip().split("@@") for line in host.console(name).splitlines())
    return [line[2] for line in lines if len(line) == 4 and line[1] == what]


def wait_reports(host: Libvirt, name: str, what: str, count: int) -> list[str]:
    """Wait for so many of them."""
    return wait_for(
        lambda: found if len(found := reports(host, name, what)) >= count else [],
        f"{name} to say {what!r}",
        deadline=BOOT,
        interval=1,
    )


def another(name: str, number: int) -> str:
    """web1's definition with a name, a UUID, a MAC and a disk of its own."""
    text = XML
    for old, new in (
        ("web1", name),
        ("1f5b1f6f3f10", f"1f5b1f6f3f1{number}"),
        ("00:00:01'", f"00:00:0{number}'"),
    ):
        assert old in text
        text = text.replace(old, new)
    return text


def by_recipe(xml: str, recipe: str) -> str:
    """Return a domain with the SMBIOS of a recipe of doc/source/guests.rst, and no other."""
    (text,) = (
        block.text for block in blocks(page("guests")) if block.caption == f"libvirt, {recipe}"
    )
    domain = ElementTree.fromstring(xml)
    for element in ElementTree.fromstring(f"<domain>{text}</domain>"):
        before = domain.find(element.tag)
        assert before is not None
        domain.remove(before)
        domain.append(element)
    return ElementTree.tostring(domain, encoding="unicode")
