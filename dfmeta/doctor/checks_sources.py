"""Checks of the identity sources: libvirt's files and Neutron's API. Pure.

OVSDB and the store have checks of their own (``ovsdb``, ``ports``; ``store``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dfmeta.doctor.finding import Finding, listed, ok, wrong


@dataclass(frozen=True, slots=True)
class LibvirtFacts:
    """Contents of the directories in libvirt_xml_path."""

    folders: Sequence[str] = ()
    """Directories that exist."""
    missing: Sequence[str] = ()
    error: str = ""
    """A directory that exists and cannot be listed, as ``PATH: CAUSE``; empty: there is none."""
    domains: int = 0
    active: int = 0
    broken: Sequence[str] = ()
    """Files that cannot be read or parsed, each as ``PATH: CAUSE``."""


@dataclass(frozen=True, slots=True)
class NeutronFacts:
    """Neutron's answer to the query for ports of this host."""

    cause: str = ""
    """Why there is no answer; empty when there is one."""
    status: int = 0
    """Status with which Keystone or Neutron refused; else 0."""
    asked: Mapping[str, str] = field(default_factory=dict)
    """Id → name on this host, of the queried ports: Nova plugged them, so Neutron owns them."""
    seen: Mapping[str, str] = field(default_factory=dict)
    """Id → ``binding:host_id`` of the ports in the answer; empty if Neutron does not show it."""


def libvirt(facts: LibvirtFacts, *, wanted: bool) -> Finding:
    """Check that libvirt's domains can be read.

    :param wanted: the configuration names libvirt or its directories; if it does not, libvirt is a
        source by default, and a host without libvirt is not at fault.
    """
    check = "source-libvirt"
    if facts.error:
        return wrong(
            check,
            f"libvirt's domains cannot be listed: {facts.error}",
            "run dfmeta-agent, and doctor, as root or in the group that may read the directory: "
            f"`namei -l {facts.error.partition(': ')[0]}`",
        )
    if facts.broken:
        first = facts.broken[0].partition(": ")[0]
        return wrong(
            check,
            f"{len(facts.broken)} of libvirt's files are skipped, and so are their guests: "
            f"{listed(facts.broken)}",
            f"`ls -l {first}` and `xmllint --noout {first}` show the cause; `systemctl restart "
            "libvirtd` writes the files of running domains again",
        )
    if not facts.folders and wanted:
        return wrong(
            check,
            f"none of libvirt's directories exists: {', '.join(facts.missing)}",
            "start libvirt (`systemctl start libvirtd`), correct [df_metadata] libvirt_xml_path, "
            "or remove libvirt from identity_sources",
        )
    if not facts.folders:
        return ok(check, "this host has no libvirt")
    return ok(
        check, f"{facts.domains} domains of libvirt can be read, {facts.active} of them active"
    )


def neutron(facts: NeutronFacts, host: str) -> Finding:
    """Check that Neutron accepts the account of [neutron] and shows it this host's ports.

    :param host: name of this host, from ``[neutron] host`` or else from the system.
    """
    check = "source-neutron"
    if facts.status == 401:
        return wrong(
            check,
            f"Keystone refuses the account in [neutron] (401): {facts.cause}",
            "correct [neutron] auth_url, username, password, project_name and the domains' names; "
            "`openstack token issue` tests them",
        )
    if facts.status == 403:
        return wrong(
            check,
            f"the account in [neutron] may not list ports (403): {facts.cause}",
            "give it a role that may: `openstack role add --user USER --project service service`",
        )
    if facts.cause:
        return wrong(
            check,
            f"Neutron cannot be queried: {facts.cause}",
            "check that Keystone and Neutron run and can be reached from this host, and [neutron] "
            "auth_url, region_name and endpoint_override: `openstack endpoint list --service "
            "network`",
        )
    return _neutron_ports(facts, host)


def _neutron_ports(facts: NeutronFacts, host: str) -> Finding:
    check = "source-neutron"
    if facts.asked and not facts.seen:
        names = listed(facts.asked.values())
        first = next(iter(facts.asked))
        return wrong(
            check,
            f"the account in [neutron] gets a token and sees none of this host's ports ({names}): "
            "it may not see other projects' ports, or this is another cloud's Neutron",
            "give it a role that may: `openstack role add --user USER --project service service`; "
            f"an admin sees a port with `openstack port show {first}`",
        )
    hosts = {one for one in facts.seen.values() if one}
    if hosts and host not in hosts:
        return wrong(
            check,
            f"Neutron has this host's ports on {listed(sorted(hosts))}, and [neutron] host is "
            f"{host}: at its start dfmeta-agent has to query each port by itself",
            f"set [neutron] host = {min(hosts)}, as [DEFAULT] host of nova.conf, and "
            "`systemctl restart dfmeta-agent`",
        )
    seen = f" and shows it {len(facts.seen)} of this host's ports" if facts.seen else ""
    return ok(check, f"Neutron accepts the account in [neutron]{seen}")
