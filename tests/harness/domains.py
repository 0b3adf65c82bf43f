"""libvirt's domain files as Nova defines them, in a directory of the test."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NOVA = "http://openstack.org/xmlns/libvirt/nova/1.1"


@dataclass(frozen=True, kw_only=True)
class Interface:
    """An ``<interface>``; empty values are omitted."""

    dev: str = ""
    iface_id: str = ""
    mac: str = ""

    def xml(self) -> str:
        """Return the element as XML."""
        parts = ["<interface type='bridge'>"]
        if self.mac:
            parts.append(f"<mac address='{self.mac}'/>")
        if self.iface_id:
            parts.append(
                "<virtualport type='openvswitch'>"
                f"<parameters interfaceid='{self.iface_id}'/></virtualport>"
            )
        if self.dev:
            parts.append(f"<target dev='{self.dev}'/>")
        return "".join([*parts, "</interface>"])


def definition(
    instance: str,
    *,
    project: str = "",
    name: str = "",
    interfaces: Sequence[Interface] = (),
    nova: str = NOVA,
    domain: str = "instance-00000001",
) -> str:
    """Return a ``<domain>``, as below /etc/libvirt/qemu."""
    owner = f"<nova:owner><nova:project uuid='{project}'>p</nova:project></nova:owner>"
    metadata = (
        f"<metadata><nova:instance xmlns:nova='{nova}'><nova:name>{name}</nova:name>"
        f"{owner if project else ''}</nova:instance></metadata>"
    )
    return (
        f"<domain type='kvm'><name>{domain}</name><uuid>{instance}</uuid>"
        f"{metadata if project or name else ''}"
        f"<devices>{''.join(interface.xml() for interface in interfaces)}</devices></domain>\n"
    )


def status(text: str) -> str:
    """Return a ``<domstatus>`` around a definition, as below /run/libvirt/qemu."""
    return f"<domstatus state='running' reason='booted' pid='1'>{text}</domstatus>\n"


def write(folder: Path, name: str, text: str) -> Path:
    """Write a file atomically, as libvirt does."""
    new = folder / f"{name}.new"
    new.write_text(text)
    path = folder / f"{name}.xml"
    os.replace(new, path)
    return path
