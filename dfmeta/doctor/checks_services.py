"""Checks of Nova, Neutron, libvirt, the store and the upstream store. Pure.

Nova's answers are those of ``nova/api/metadata/handler.py``. With [neutron] service_metadata_proxy
a request without dfmeta's headers gets 400, a wrong signature 403, and an instance that does not
exist, or not in that project, 404. Without it Nova ignores the headers, looks up the instance by
the address of the client, and answers 404.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from dfmeta.doctor.checks_daemon import Owners
from dfmeta.doctor.facts import KnownPort
from dfmeta.doctor.finding import Finding, listed, ok, unknown, wrong
from dfmeta.errors import TokenFileError
from dfmeta.proxy.backends.nova_requests import NovaFact
from dfmeta.store.db import HEAD, database_facts

if TYPE_CHECKING:
    from dfmeta.store.auth.tokens import StaticToken

_ROLE: Final = "give it a role that may: `openstack role add --user USER --project service service`"
_PROJECT: Final = "compare the project with Nova's: `openstack server show {} -c project_id`"
_NOVA_LOG: Final = "read its log on that host: `journalctl -u nova-api-metadata`"


def nova(fact: NovaFact, url: str, *, instance: str = "", project: str = "") -> Finding:
    """Check that a host of Nova's metadata API answers signed requests.

    :param url: URL of that host, for the commands of remedies.
    :param instance: the instance of this host in the request; empty: a made-up one was used.
    :param project: the instance's project.
    """
    where = f"Nova's metadata API at {fact.authority}"
    if fact.cause:
        return wrong(f"{where}: {fact.cause}", f"{fact.remedy}; see `curl -sv {url}/`")
    if fact.status == HTTPStatus.FORBIDDEN:
        return wrong(
            f"{where} refuses dfmeta's signature (403): metadata_proxy_shared_secret here differs "
            "from [neutron] metadata_proxy_shared_secret in Nova's nova.conf",
            "give both the same value and `systemctl reload dfmeta-agent`",
        )
    if fact.status == HTTPStatus.NOT_FOUND and fact.unsigned in (
        HTTPStatus.OK,
        HTTPStatus.NOT_FOUND,
    ):
        return wrong(
            f"{where} ignores dfmeta's headers (404, and {fact.unsigned} without them): [neutron] "
            "service_metadata_proxy is off in Nova, or this is not a metadata API",
            "on that host `crudini --set /etc/nova/nova.conf neutron service_metadata_proxy true`, "
            "and restart nova-api-metadata",
        )
    if fact.status == HTTPStatus.NOT_FOUND and instance:
        return wrong(
            f"{where} accepts dfmeta's signature and has no instance {instance} in project "
            f"{project or '(none)'} (404)",
            _PROJECT.format(instance),
        )
    if fact.status == (HTTPStatus.OK if instance else HTTPStatus.NOT_FOUND):
        return ok(f"{where} accepts dfmeta's signature")
    return _other(fact, where, url)


def _other(fact: NovaFact, where: str, url: str) -> Finding:
    if fact.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return wrong(f"{where}, or a proxy in front of it, has failed ({fact.status})", _NOVA_LOG)
    why = (
        "it is not a metadata API, or a proxy in front of it drops dfmeta's headers"
        if fact.status == HTTPStatus.BAD_REQUEST
        else "Nova never gives such an answer"
    )
    return wrong(
        f"{where} answers {fact.status} to a signed request: {why}",
        f"name nova-api-metadata itself in nova_metadata_host: `curl -s {url}/` lists versions",
    )


def nova_guests(answers: Sequence[tuple[KnownPort, int]], *, of: int) -> Finding:
    """Check that Nova knows the guests of this host in the projects that dfmeta sends.

    :param answers: the queried guests, each with the status of the answer of a host that accepts
        dfmeta's signature; 0: there was no answer.
    :param of: number of guests whose project is known.
    """
    answers = [(port, status) for port, status in answers if status]
    if not answers:
        return unknown("no Nova host has answered a request for a guest here")
    bound = f"{len(answers)} queried guests, of {of} with a project"
    absent = [port for port, status in answers if status == HTTPStatus.NOT_FOUND]
    if absent:
        names = listed(
            f"{port.name} (instance {port.instance}, project {port.project})" for port in absent
        )
        return wrong(
            f"Nova has no such instance in that project (404) for {len(absent)} of {bound}: "
            f"{names}",
            _PROJECT.format(absent[0].instance),
        )
    others = [f"{port.name} ({status})" for port, status in answers if status != HTTPStatus.OK]
    if others:
        return wrong(
            f"Nova answers neither 200 nor 404 for {len(others)} of {bound}: {listed(others)}",
            _NOVA_LOG,
        )
    return ok(f"Nova has the instance in that project for each of {bound}")


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
    queried: Mapping[str, str] = field(default_factory=dict)
    """Id → name on this host, of the queried ports: Nova plugged them, so Neutron owns them."""
    seen: Mapping[str, str] = field(default_factory=dict)
    """Id → ``binding:host_id`` of the ports in the answer; empty if Neutron does not show it."""


def libvirt(facts: LibvirtFacts, *, wanted: bool) -> Finding:
    """Check that libvirt's domains can be read.

    :param wanted: the configuration names libvirt or its directories; if it does not, libvirt is a
        source by default, and a host without libvirt is not at fault.
    """
    if facts.error:
        return wrong(
            f"libvirt's domains cannot be listed: {facts.error}",
            f"run as a user that may read it: `namei -l {facts.error.partition(': ')[0]}`",
        )
    if facts.broken:
        first = facts.broken[0].partition(": ")[0]
        return wrong(
            f"{len(facts.broken)} of libvirt's files are skipped, and so are their guests: "
            f"{listed(facts.broken)}",
            f"`xmllint --noout {first}` shows the cause",
        )
    if not facts.folders and wanted:
        return wrong(
            f"none of libvirt's directories exists: {', '.join(facts.missing)}",
            "`systemctl start libvirtd`, or remove libvirt from [df_metadata] identity_sources",
        )
    if not facts.folders:
        return ok("this host has no libvirt")
    return ok(f"{facts.domains} domains of libvirt can be read, {facts.active} of them active")


def neutron(facts: NeutronFacts, host: str) -> Finding:
    """Check that Neutron accepts the account of [neutron] and shows it this host's ports.

    :param host: name of this host, from ``[neutron] host`` or else from the system.
    """
    if facts.status == 401:
        return wrong(
            f"Keystone refuses the account in [neutron] (401): {facts.cause}",
            "correct the account in [neutron]: `openstack token issue` tests it",
        )
    if facts.status == 403:
        return wrong(f"the account in [neutron] may not list ports (403): {facts.cause}", _ROLE)
    if facts.cause:
        return wrong(
            f"Neutron cannot be queried: {facts.cause}",
            "check [neutron] auth_url: `openstack endpoint list --service network`",
        )
    if facts.queried and not facts.seen:
        names = listed(facts.queried.values())
        return wrong(
            f"the account in [neutron] gets a token and sees none of this host's ports ({names})",
            _ROLE,
        )
    hosts = {name for name in facts.seen.values() if name}
    if hosts and host not in hosts:
        return wrong(
            f"Neutron has this host's ports on {listed(sorted(hosts))}, and [neutron] host is "
            f"{host}",
            f"set [neutron] host = {min(hosts)} and `systemctl restart dfmeta-agent`",
        )
    seen = f" and shows it {len(facts.seen)} of this host's ports" if facts.seen else ""
    return ok(f"Neutron accepts the account in [neutron]{seen}")


def ovn(remote: str, fault: str) -> Finding:
    """Check that OVN's southbound database can be read.

    :param remote: its address; empty: none is known.
    :param fault: why it cannot be read; empty: it can.
    """
    where = f"OVN's southbound database at {remote}"
    if not remote:
        return wrong(
            "OVSDB has no address of OVN's southbound database (external_ids:ovn-remote)",
            "set [ovn] ovn_sb_connection, or remove ovn from [df_metadata] identity_sources",
        )
    if fault:
        return wrong(f"{where}: {fault}", f"try `ovn-sbctl --no-leader-only --db={remote} show`")
    return ok(f"{where} answers")


@dataclass(frozen=True, slots=True)
class LookupFacts:
    """The answer of the upstream store."""

    url: str
    status: int = 0
    cause: str = ""
    """Why there is no answer; empty when there is one."""
    date: str = ""
    """The answer's Date header, unparsed."""


def store(facts: database_facts.DatabaseFacts, *, running: bool) -> Finding:
    """Check that the store's database answers.

    :param running: the daemon runs, and so has made its file.
    """
    if facts.file and not facts.exists and not running:
        return ok(f"{facts.shown} does not exist yet: dfmeta-agent makes it")
    if running and facts.file and (facts.cut or not facts.exists):
        gone = "deleted" if not facts.exists else "truncated to 0 bytes"
        return wrong(
            f"{facts.shown} was {gone} while dfmeta-agent runs: guests get 503",
            "restore a backup: `dfmeta store restore FILE`",
        )
    if facts.cause and facts.file:
        return wrong(
            f"{facts.shown} cannot be read: {facts.cause}",
            f"check it: `sqlite3 {facts.shown} 'PRAGMA integrity_check'`",
        )
    if facts.cause:
        return wrong(
            f"PostgreSQL does not answer: {facts.shown}: {facts.cause}",
            "check [store] connection: `pg_isready -h HOST -p PORT`",
        )
    return ok(f"{facts.shown} answers")


def store_schema(facts: database_facts.DatabaseFacts, *, running: bool) -> Finding:
    """Check that the database has the schema of this dfmeta."""
    if facts.revision == HEAD:
        return ok(f"the schema is {HEAD}, this dfmeta's own")
    if facts.revision is not None:
        return wrong(
            f"the schema is {facts.revision}, made by a newer dfmeta; this dfmeta knows {HEAD} and "
            "does not start with a newer one",
            "install the newer dfmeta again, or restore a backup: `dfmeta store restore FILE`",
        )
    if running:
        return wrong(
            f"the database is empty, and the running dfmeta-agent needs {HEAD}: another program "
            "has changed or replaced the database",
            "`systemctl restart dfmeta-agent`, which migrates it to that schema",
        )
    return ok(f"the database is empty; dfmeta-agent migrates it to {HEAD} at its start")


def store_files(facts: database_facts.DatabaseFacts, owners: Owners) -> Finding:
    """Check that only the owner can access the database's files.

    They contain user-data and passwords of guests.
    """
    if facts.open_files:
        return wrong(
            f"users other than the owner may read or write {listed(facts.open_files)}",
            f"`chmod 600 {' '.join(facts.open_files)}`",
        )
    if strange := owners.strange(dict(facts.owners)):
        return wrong(
            f"{listed(strange)} belongs to another user than the daemon's",
            f"`chown {owners.rightful}: {' '.join(strange)}`",
        )
    return ok(f"{facts.shown} belongs to the daemon's user or root, and is closed to other users")


def lookup(facts: LookupFacts) -> Finding:
    """Check that the upstream store answers and accepts the token of lookups."""
    store = f"the upstream store at {facts.url}"
    if facts.status == HTTPStatus.UNAUTHORIZED:
        return wrong(
            f"{store} does not accept the token of lookups (401)",
            "make one there for [store] lookup_token_file: `dfmeta token create --scope read`",
        )
    if facts.status == HTTPStatus.FORBIDDEN:
        return wrong(
            f"{store} accepts the token of lookups, but it has no right to read (403)",
            "use a token with the scope read: `dfmeta token create --scope read` on that host",
        )
    answers = f"cannot be queried: {facts.cause}" if facts.cause else f"answers {facts.status}"
    if facts.cause or facts.status not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
        return wrong(
            f"{store} {answers}", f"check [store] lookup_base_url: `curl -sv {facts.url}/healthz`"
        )
    return ok(f"{store} answers")


def tokens(path: str, tokens: Sequence[StaticToken] | TokenFileError, *, now: float) -> Finding:
    """Check that the daemon, and no other user, can read the admin API's static tokens.

    :param now: seconds of Unix time.
    """
    if isinstance(tokens, TokenFileError):
        return wrong(f"{path}: {tokens.fields['cause']}", str(tokens.fields["remedy"]))
    expired = sum(token.expired(now) for token in tokens)
    if expired == len(tokens):
        return wrong(
            f"{path} has no valid token ({expired} have expired)",
            "`dfmeta token create --scope read`, or remove [store] token_file",
        )
    old = f", {expired} have expired" if expired else ""
    return ok(f"{path} has {len(tokens) - expired} valid tokens{old}")
