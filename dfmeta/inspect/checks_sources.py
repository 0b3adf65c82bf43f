"""Judgements on the identity sources: libvirt's files and Neutron's API. Pure.

OVSDB has lines of its own (``ovsdb``, ``ports``), and so does the store (``store``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dfmeta.inspect.finding import Finding, listed, ok, wrong


@dataclass(frozen=True, slots=True)
class LibvirtFacts:
    """What libvirt_xml_path's folders hold."""

    folders: Sequence[str] = ()
    """Those that are there."""
    missing: Sequence[str] = ()
    error: str = ""
    """A folder that is there and cannot be listed, and why."""
    domains: int = 0
    active: int = 0
    broken: Sequence[str] = ()
    """Files that cannot be read or parsed, each with its cause."""


@dataclass(frozen=True, slots=True)
class NeutronFacts:
    """What Neutron answers about ports of this host."""

    cause: str = ""
    """Why it does not; empty when it does."""
    status: int = 0
    """Keystone's or Neutron's, where one of them refused; else 0."""
    asked: Mapping[str, str] = field(default_factory=dict)
    """Ids of ports that Nova has named on this host, and so Neutron's → the port's name."""
    seen: Mapping[str, str] = field(default_factory=dict)
    """Those that it has shown → ``binding:host_id``; empty where that is not shown."""


def libvirt(facts: LibvirtFacts, *, wanted: bool) -> Finding:
    """Whether libvirt's domains can be read.

    :param wanted: the configuration names libvirt or its folders; else it is there by default, and
        a host without libvirt lacks nothing.
    """
    check = "source-libvirt"
    if facts.error:
        return wrong(
            check,
            f"libvirt's domains cannot be listed: {facts.error}",
            "run dfmeta-agent, and doctor, as root or in the group that may read the folder: "
            f"`namei -l {facts.error.partition(': ')[0]}`",
        )
    if facts.broken:
        first = facts.broken[0].partition(": ")[0]
        return wrong(
            check,
            f"{len(facts.broken)} of libvirt's files are passed over, and their guests with them: "
            f"{listed(facts.broken)}",
            f"see `ls -l {first}` and `xmllint --noout {first}`; `systemctl restart libvirtd` "
            "writes those of running domains anew",
        )
    if not facts.folders and wanted:
        return wrong(
            check,
            f"none of libvirt's folders is there: {', '.join(facts.missing)}",
            "start libvirt (`systemctl start libvirtd`), mend [df_metadata] libvirt_xml_path, or "
            "take libvirt out of identity_sources",
        )
    if not facts.folders:
        return ok(check, "this host has no libvirt")
    return ok(
        check, f"{facts.domains} domains of libvirt can be read, {facts.active} of them active"
    )


def neutron(facts: NeutronFacts, host: str) -> Finding:
    """Whether Neutron takes our account and shows it this host's ports.

    :param host: this host, as ``[neutron] host`` or the system has it.
    """
    check = "source-neutron"
    if facts.status == 401:
        return wrong(
            check,
            f"Keystone refuses the account in [neutron] (401): {facts.cause}",
            "mend [neutron] auth_url, username, password, project_name and the domains' names; "
            "try them: `openstack token issue`",
        )
    if facts.status == 403:
        return wrong(
            check,
            f"the account in [neutron] may not list ports (403): {facts.cause}",
            "give it the role that may: `openstack role add --user USER --project service service`",
        )
    if facts.cause:
        return wrong(
            check,
            f"Neutron cannot be asked: {facts.cause}",
            "see that Keystone and Neutron run and are reached from here, [neutron] auth_url, "
            "region_name and endpoint_override: `openstack endpoint list --service network`",
        )
    return _neutron_ports(facts, host)


def _neutron_ports(facts: NeutronFacts, host: str) -> Finding:
    check = "source-neutron"
    if facts.asked and not facts.seen:
        names = listed(facts.asked.values())
        first = next(iter(facts.asked))
        return wrong(
            check,
            f"Neutron gives a token and shows none of this host's ports ({names}): the account may "
            "not see other projects' ports, or it is another cloud's Neutron",
            "give it a role that may: `openstack role add --user USER --project service service`; "
            f"an admin sees it with `openstack port show {first}`",
        )
    hosts = {one for one in facts.seen.values() if one}
    if hosts and host not in hosts:
        return wrong(
            check,
            f"Neutron has this host's ports on {listed(sorted(hosts))}, and [neutron] host is "
            f"{host}: at the start each port is asked for by itself",
            f"set [neutron] host = {min(hosts)}, as [DEFAULT] host of nova.conf, and "
            "`systemctl restart dfmeta-agent`",
        )
    seen = f" and shows {len(facts.seen)} of this host's ports" if facts.seen else ""
    return ok(check, f"Neutron takes our account{seen}")
