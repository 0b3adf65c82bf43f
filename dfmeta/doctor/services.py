"""Requests of ``dfmeta doctor`` to other services: Nova, Neutron, libvirt, the store, its upstream.

All requests are sent at once, each in a thread, while doctor checks this host: services that do not
answer cost :data:`ANSWER_TIMEOUT` once in all.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from dfmeta.doctor import checks_services as checks
from dfmeta.doctor.checks_daemon import Owners
from dfmeta.doctor.checks_services import LibvirtFacts, LookupFacts, NeutronFacts
from dfmeta.doctor.checks_system import skew
from dfmeta.doctor.facts import KnownPort
from dfmeta.doctor.finding import Finding, by_files
from dfmeta.errors import ConfigError, DfmetaError, SourceError, TokenFileError
from dfmeta.model import HttpHost
from dfmeta.neutron.client import NeutronApi
from dfmeta.ovsdb.external_ids import southbound_of
from dfmeta.ovsdb.idl import southbound_fault
from dfmeta.proxy.backends.nova_requests import NovaFact, NovaSettings, Question, ask_nova
from dfmeta.runtime import clock
from dfmeta.runtime.clock import ANSWER_TIMEOUT
from dfmeta.sources.domain import NOVA_PREFIX, Folders
from dfmeta.store.db.database_facts import DatabaseFacts, load_driver, look

if TYPE_CHECKING:
    from dfmeta.store.lookup.upstream import Upstream

T = TypeVar("T")

SPARE: Final = 1.0
"""Seconds beyond :data:`ANSWER_TIMEOUT` until a request ends with a time-out of its own: on a busy
host its thread may have started late."""
LATE: Final = f"no answer within {ANSWER_TIMEOUT:g} s"
PORTS_ASKED: Final = 4
GUESTS_ASKED: Final = 10
"""Largest number of guests that Nova is queried about; each query goes to one of its hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """The services that the daemon uses, by its configuration."""

    nova: NovaSettings | None = None
    libvirt: Sequence[Path] | None = None
    """Directories of libvirt_xml_path; None: libvirt is not an identity source."""
    libvirt_wanted: bool = False
    """Whether the configuration names libvirt or its directories, and not only the defaults."""
    neutron: NeutronApi | ConfigError | None = None
    """An error: the options are wrong; None: Neutron is not an identity source."""
    neutron_host: str = ""
    ovn: str | None = None
    """The configured address of OVN's southbound database; None: it is not an identity source."""
    store: str = ""
    """URL of the store's database; empty: it is not used."""
    lookup: Callable[[], Upstream | None] | None = None
    """Builds the client of the upstream store; None: there is none."""
    lookup_url: str = ""
    tokens: str = ""
    """Path of token_file; empty: there is none."""
    secrets: Sequence[tuple[str, str]] = ()
    """Group and name of the secrets that may be others in the daemon, since the files are newer
    than its reading: requests use those of the files."""


class ServiceRequest(Generic[T]):
    """A request that starts at once, in a thread that ends with the process.

    :param late: the facts if there is no answer in time.
    """

    def __init__(self, send: Callable[[], T], late: T) -> None:
        self._late, self._begun = late, clock.now()
        self._future: Future[T] = Future()
        threading.Thread(target=self._run, args=(send,), daemon=True).start()

    def _run(self, send: Callable[[], T]) -> None:
        try:
            self._future.set_result(send())
        except Exception as error:  # facts raises it
            self._future.set_exception(error)

    @cached_property
    def facts(self) -> T:
        """The answer as facts; an exception of the request is raised here."""
        left = self._begun + ANSWER_TIMEOUT - clock.now()
        wait([self._future], max(left, 0.0) + SPARE)
        return self._future.result() if self._future.done() else self._late


class Services:
    """Requests to other services, which start when an instance is made.

    :param ports: guests' ports, so that requests are about guests that exist.
    :param owners: users that may own the daemon's files.
    """

    def __init__(
        self, options: ServiceOptions, ports: Sequence[KnownPort], *, owners: Owners
    ) -> None:
        self._options = options
        self._owners = owners
        if options.store:
            load_driver(options.store)
        self._guests = real_guests(ports) if options.nova is not None else []
        """Guests that Nova should know; guests that fail come first."""
        self._nova = list(_ask_nova(options.nova, self._guests)) if options.nova else []
        self._libvirt = self._neutron = self._store = self._lookup = None
        if (paths := options.libvirt) is not None:
            late = LibvirtFacts(error=f"libvirt_xml_path: {LATE}")
            self._libvirt = ServiceRequest(lambda: _libvirt(paths), late)
        if (neutron := options.neutron) is not None:
            named = _of_nova(ports)
            self._neutron = ServiceRequest(
                lambda: _neutron(neutron, named), NeutronFacts(cause=LATE)
            )
        if options.store:
            self._store = ServiceRequest(lambda: _store(options.store), _no_database(LATE))
        if (lookup := options.lookup) is not None:
            url = options.lookup_url
            self._lookup = ServiceRequest(
                lambda: _lookup(lookup, url), LookupFacts(url, cause=LATE)
            )

    @property
    def skews(self) -> list[tuple[str, float]]:
        """Server and the seconds that its clock is ahead."""
        dates = [(f"Nova at {host.authority}", of.facts.date) for host, _port, of in self._nova]
        if self._lookup is not None:
            dates.append((self._lookup.facts.url, self._lookup.facts.date))
        now = clock.wall()
        return [(name, ahead) for name, date in dates if (ahead := skew(date, now)) is not None]

    def nova(self) -> Iterator[Finding]:
        """Judge each host of Nova."""
        settings = self._options.nova
        first = self._guests[0] if self._guests else None
        for host, port, request in self._nova:
            if port is first and settings is not None:
                finding = checks.nova(
                    request.facts,
                    f"{settings.protocol}://{host.authority}",
                    instance=first.instance if first else "",
                    project=first.project if first else "",
                )
                yield self._by_files(finding, "DEFAULT", "metadata_proxy_shared_secret")

    def nova_guests(self) -> Finding | None:
        """Judge Nova's answers about the guests of this host."""
        if not self._guests:
            return None
        first = self._guests[0]
        facts = [(host, port, request.facts) for host, port, request in self._nova]
        sound = {host for host, port, fact in facts if port is first and fact.takes_signature}
        answers: dict[str, tuple[KnownPort, int]] = {}
        for host, port, fact in facts:
            if port is not None and host in sound:
                answers.setdefault(port.name, (port, 0 if fact.cause else fact.status))
        return checks.nova_guests(list(answers.values()), of=len(self._guests))

    def libvirt(self) -> Finding | None:
        """Judge libvirt's files."""
        if self._libvirt is None:
            return None
        return checks.libvirt(self._libvirt.facts, wanted=self._options.libvirt_wanted)

    def neutron(self) -> Finding | None:
        """Judge Neutron's answer."""
        if self._neutron is None:
            return None
        finding = checks.neutron(self._neutron.facts, self._options.neutron_host)
        return self._by_files(finding, "neutron")

    def ovn(self, external_ids: Mapping[str, str]) -> Finding | None:
        """Judge OVN's southbound database.

        :param external_ids: that column of Open_vSwitch.
        """
        if self._options.ovn is None:
            return None
        remote = self._options.ovn or southbound_of(external_ids)
        return checks.ovn(remote, southbound_fault(remote) if remote else "")

    def store(self, *, running: bool) -> Finding | None:
        """Judge the store's database.

        :param running: whether the daemon runs.
        """
        if self._store is None:
            return None
        finding = checks.store(self._store.facts, running=running)
        return self._by_files(finding, "store", "connection")

    def store_schema(self, *, running: bool) -> Finding | None:
        """Judge the schema of a database that answers.

        :param running: whether the daemon runs.
        """
        if self._store is None:
            return None
        facts = self._store.facts
        if not facts.exists or facts.cause or (facts.cut and running):
            return None
        return checks.store_schema(facts, running=running)

    def store_files(self) -> Finding | None:
        """Judge the files of a database that is a file."""
        facts = self._store.facts if self._store is not None else None
        if facts is None or not facts.file or not facts.exists:
            return None
        return checks.store_files(facts, self._owners)

    def lookup(self) -> Finding | None:
        """Judge the upstream store's answer."""
        if self._lookup is None:
            return None
        return self._by_files(checks.lookup(self._lookup.facts), "store", "lookup_client_secret")

    def tokens(self) -> Finding | None:
        """Judge the file of tokens."""
        from dfmeta.store.auth.tokens import read_tokens

        path = self._options.tokens
        if not path:
            return None
        try:
            return checks.tokens(path, read_tokens(Path(path)), now=clock.wall())
        except TokenFileError as error:
            return checks.tokens(path, error, now=clock.wall())

    def _by_files(self, finding: Finding, group: str, option: str = "") -> Finding:
        """Add to a finding that its check used a secret of the files, if the daemon's differs.

        :param option: the secret that the check used; empty: any secret of the group.
        """
        secrets = self._options.secrets
        differing = [name for name in secrets if name[0] == group and option in ("", name[1])]
        return by_files(finding, (f"[{group}] {name}" for _group, name in differing))


def _ask_nova(
    settings: NovaSettings, guests: Sequence[KnownPort]
) -> Iterator[tuple[HttpHost, KnownPort | None, ServiceRequest[NovaFact]]]:
    """Query each host for the first guest, and one host for each of the other guests."""

    def ask(host: HttpHost, port: KnownPort | None, *, first: bool) -> ServiceRequest[NovaFact]:
        question = Question(port.instance, port.project) if port else made_up
        late = NovaFact(host.authority, cause=LATE, remedy="Read its log")
        return ServiceRequest(
            lambda: ask_nova(host, question, settings, seconds=ANSWER_TIMEOUT, unsigned=first), late
        )

    made_up = Question(str(uuid.uuid4()), uuid.uuid4().hex)
    hosts, first = list(dict.fromkeys(settings.hosts)), guests[0] if guests else None
    for host in hosts:
        yield host, first, ask(host, first, first=True)
    for number, port in enumerate(guests[1:GUESTS_ASKED]):
        host = hosts[number % len(hosts)]
        yield host, port, ask(host, port, first=False)


def real_guests(ports: Sequence[KnownPort]) -> list[KnownPort]:
    """Return ports of guests with a known instance and project; those that fail come first."""
    real = [port for port in ports if port.wired and port.instance and port.project]
    return sorted(real, key=lambda port: port.failure is None)


def _of_nova(ports: Sequence[KnownPort]) -> dict[str, str]:
    """Return some ports that have Nova's names, which Neutron should know: id → name."""
    named = {
        port.iface_id.lower(): port.name
        for port in ports
        if len(port.name) > 2 * NOVA_PREFIX
        and port.iface_id.lower().startswith(port.name[NOVA_PREFIX:].lower())
    }
    return dict(list(named.items())[:PORTS_ASKED])


def _libvirt(paths: Sequence[Path]) -> LibvirtFacts:
    scan = Folders(list(paths)).scan()
    return LibvirtFacts(
        folders=[str(path) for path in paths if path.is_dir()],
        missing=[str(path) for path in paths if not path.is_dir()],
        error=scan.error,
        domains=len({domain.instance_id for domain in scan.domains}),
        active=sum(domain.active for domain in scan.domains),
        broken=scan.broken,
    )


def _neutron(api: NeutronApi | ConfigError, ports: dict[str, str]) -> NeutronFacts:
    if isinstance(api, ConfigError):
        return NeutronFacts(cause=str(api))
    filters = [("id", port_id) for port_id in ports] or [("limit", "1")]
    try:
        rows = api.ask(filters, ("id", "binding:host_id"))
    except SourceError as error:
        status = error.fields.get("status", 0)
        return NeutronFacts(cause=error.cause, status=status if isinstance(status, int) else 0)
    seen = {str(row.get("id")): str(row.get("binding:host_id") or "") for row in rows}
    return NeutronFacts(queried=ports, seen={key: seen[key] for key in seen if key in ports})


def _store(url: str) -> DatabaseFacts:
    try:
        return look(url)
    except ConfigError as error:
        return _no_database(error.cause)


def _no_database(cause: str) -> DatabaseFacts:
    return DatabaseFacts("[store] connection", file=False, cause=cause)


def _lookup(build: Callable[[], Upstream | None], url: str) -> LookupFacts:
    try:
        upstream = build()
        if upstream is None:
            return LookupFacts(url, status=404)
        reply = upstream.try_out(str(uuid.uuid4()), seconds=ANSWER_TIMEOUT)
    except DfmetaError as error:
        return LookupFacts(url, cause=error.cause)
    return LookupFacts(url, status=reply.status, date=reply.header("date"))
