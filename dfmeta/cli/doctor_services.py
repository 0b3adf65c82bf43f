"""``dfmeta doctor``'s requests to other services: Nova, Neutron, PostgreSQL, the upstream store.

All requests are sent at once, each in a thread, while doctor checks this host: services that do not
answer cost :data:`SECONDS` once in all.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from oslo_config import cfg

from dfmeta.cli.concurrent import Later
from dfmeta.cli.gather import explicit
from dfmeta.conf.daemons import Name, shown
from dfmeta.doctor import checks_nova, checks_sources, checks_store
from dfmeta.doctor.checks_daemon import Owners
from dfmeta.doctor.checks_nova import GuestFact
from dfmeta.doctor.checks_sources import LibvirtFacts, NeutronFacts
from dfmeta.doctor.checks_store import LookupFacts, StoreFacts, TokenFacts
from dfmeta.doctor.checks_system import skew
from dfmeta.doctor.facts import KnownPort
from dfmeta.doctor.finding import Finding, by_files
from dfmeta.errors import ConfigError, SourceError, StoreError, TokenFileError
from dfmeta.model import HttpHost
from dfmeta.neutron.client import NeutronApi
from dfmeta.proxy.backends.nova.ask import NovaFact, Question, ask_nova
from dfmeta.runtime import clock
from dfmeta.sources.folders import Folders
from dfmeta.store.db import HEAD
from dfmeta.store.db.database_facts import load_driver, look
from dfmeta.wiring import neutron_client, nova_settings

T = TypeVar("T")

SECONDS: Final = 3.0
"""Time limit of each request."""
SPARE: Final = 0.3
"""Seconds added to the wait for a request that has a time-out of its own."""
GRACE: Final = 1.0
"""Least wait for each answer in seconds, however long the checks of this host took."""
LATE: Final = f"no answer within {SECONDS:g} s"
PORTS_ASKED: Final = 4
GUESTS_ASKED: Final = 10
"""Largest number of guests that Nova is queried about; each query goes to one of its hosts."""
_NOVA_PREFIX: Final = 3
"""Letters at the beginning of a device name of Nova; the first part of the port's id follows."""


class Services:
    """Requests to other services, which start when an instance is made.

    :param ports: guests' ports, so that requests are about guests that exist.
    :param running: whether the daemon runs.
    :param owners: users that may own the daemon's files.
    :param secrets: secrets that differ in the daemon; requests use the secrets in the files.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        ports: Sequence[KnownPort],
        *,
        running: bool,
        owners: Owners,
        secrets: Collection[Name] = (),
    ) -> None:
        self._conf = conf
        self._secrets = secrets
        self._running = running
        self._sources = conf.df_metadata.identity_sources
        nova, has_store = (conf.df_metadata.backend == one for one in ("nova", "store"))
        needs_store = has_store or "store" in self._sources
        if needs_store:
            load_driver(conf.store.connection)
        self._begun = clock.now()
        self._real = real_guests(ports) if nova else []
        """Guests that Nova should know; guests that fail come first."""
        self.skews: list[tuple[str, float]] = []
        """Server and the seconds that its clock is ahead; filled by :meth:`findings`."""
        self._nova: list[tuple[HttpHost, Later[NovaFact]]] = []
        self._guests: list[tuple[KnownPort, HttpHost, Later[NovaFact]]] = []
        if nova:
            self._ask_nova()
        self._libvirt = Later(lambda: _libvirt(conf)) if "libvirt" in self._sources else None
        self._neutron = self._ask_neutron(ports) if "neutron" in self._sources else None
        self._store = Later(lambda: _store(conf.store.connection, owners)) if needs_store else None
        asks = has_store and conf.store.lookup_base_url
        self._lookup = Later(lambda: _lookup(conf)) if asks else None

    def findings(self) -> Iterator[Finding]:
        """Yield the findings, waiting for answers that have not arrived yet."""
        yield from self._judge_nova()
        if self._libvirt is not None:
            default = LibvirtFacts(error=f"libvirt_xml_path: {LATE}")
            facts = self._get(self._libvirt, default)
            options = ("identity_sources", "libvirt_xml_path")
            wanted = any(explicit(self._conf, one, "df_metadata") for one in options)
            yield checks_sources.libvirt(facts, wanted=wanted)
        if self._neutron is not None:
            found = self._get(self._neutron, NeutronFacts(cause=LATE))
            finding = checks_sources.neutron(found, neutron_client.host(self._conf))
            yield self._by_files(finding, "neutron")
        if self._store is not None:
            yield from self._judge_store(self._store)
        if self._lookup is not None:
            url = self._conf.store.lookup_base_url
            answer = self._get(self._lookup, LookupFacts(url, cause=LATE))
            self._note(url, answer.date)
            yield self._by_files(checks_store.lookup(answer), "store", "lookup_client_secret")
        if self._conf.df_metadata.backend == "store" and self._conf.store.token_file:
            yield checks_store.tokens(_tokens(self._conf.store.token_file))

    def _ask_nova(self) -> None:
        """Query each host for the first guest, and one host for each of the other guests."""
        settings = nova_settings.build(self._conf)

        def ask(host: HttpHost, question: Question, *, first: bool) -> Later[NovaFact]:
            return Later(
                lambda: ask_nova(host, question, settings, seconds=SECONDS, unsigned=first)
            )

        hosts = list(dict.fromkeys(settings.hosts))
        if self._real:
            question = _question(self._real[0])
        else:
            question = Question(str(uuid.uuid4()), uuid.uuid4().hex)
        self._nova = [(host, ask(host, question, first=True)) for host in hosts]
        for number, port in enumerate(self._real[1:GUESTS_ASKED]):
            host = hosts[number % len(hosts)]
            self._guests.append((port, host, ask(host, _question(port), first=False)))

    def _judge_nova(self) -> Iterator[Finding]:
        first = self._real[0] if self._real else None
        protocol = self._conf.nova_metadata_protocol
        sound: dict[HttpHost, NovaFact] = {}
        for host, asked in self._nova:
            fact = self._get(asked, _late(host))
            self._note(f"Nova at {host.authority}", fact.date)
            if fact.takes_signature:
                sound[host] = fact
            finding = checks_nova.nova(
                fact,
                f"{protocol}://{host.authority}",
                instance=first.instance if first else "",
                project=first.project if first else "",
            )
            yield self._by_files(finding, "DEFAULT", "metadata_proxy_shared_secret")
        if first is None:
            return
        found = [_guest(first, fact) for fact in list(sound.values())[:1]]
        found += [
            _guest(port, self._get(asked, _late(host)))
            for port, host, asked in self._guests
            if host in sound
        ]
        yield checks_nova.guests(found, of=len(self._real))

    def _ask_neutron(self, ports: Sequence[KnownPort]) -> Later[NeutronFacts]:
        asked = _of_nova(ports)
        try:
            # Not in the thread, since it registers options of the shared configuration.
            api = neutron_client.build(self._conf)
        except ConfigError as error:
            cause = str(error)
            return Later(lambda: NeutronFacts(cause=cause))
        return Later(lambda: _neutron(api, asked))

    def _judge_store(self, asked: Later[StoreFacts]) -> Iterator[Finding]:
        facts = self._get(asked, StoreFacts("[store] connection", file=False, cause=LATE))
        finding = checks_store.database(facts, running=self._running)
        yield self._by_files(finding, "store", "connection")
        if facts.there and not facts.cause and not (facts.cut and self._running):
            yield checks_store.schema(facts, running=self._running)
        if facts.file and facts.there:
            yield checks_store.files(facts)

    def _by_files(self, finding: Finding, group: str, option: str = "") -> Finding:
        """Add to a finding that its check used a secret of the files, if the daemon's differs.

        :param option: the secret that the check used; empty: any secret of the group.
        """
        other = [one for one in self._secrets if one[0] == group and option in ("", one[1])]
        return by_files(finding, map(shown, other))

    def _get(self, asked: Later[T], late: T) -> T:
        left = self._begun + SECONDS + SPARE - clock.now()
        # On a busy host the thread may have started late; its own time-out limits its wait.
        found = asked.get(max(left, GRACE))
        return late if found is None else found

    def _note(self, who: str, date: str) -> None:
        seconds = skew(date, clock.wall())
        if seconds is not None:
            self.skews.append((who, seconds))


def real_guests(ports: Sequence[KnownPort]) -> list[KnownPort]:
    """Return ports of guests with a known instance and project; those that fail come first."""
    real = [port for port in ports if port.wired and port.instance and port.project]
    return sorted(real, key=lambda port: port.failure is None)


def _question(port: KnownPort) -> Question:
    return Question(port.instance, port.project)


def _guest(port: KnownPort, fact: NovaFact) -> GuestFact:
    return GuestFact(port.name, port.instance, port.project, 0 if fact.cause else fact.status)


def _late(host: HttpHost) -> NovaFact:
    return NovaFact(host.authority, cause=LATE, remedy="Read its log")


def _of_nova(ports: Sequence[KnownPort]) -> dict[str, str]:
    """Return some ports that have Nova's names, which Neutron should know: id → name."""
    named = {
        port.iface_id.lower(): port.name
        for port in ports
        if len(port.name) > 2 * _NOVA_PREFIX
        and port.iface_id.lower().startswith(port.name[_NOVA_PREFIX:].lower())
    }
    return dict(list(named.items())[:PORTS_ASKED])


def _libvirt(conf: cfg.ConfigOpts) -> LibvirtFacts:
    paths = [Path(path) for path in conf.df_metadata.libvirt_xml_path]
    scan = Folders(paths).scan()
    return LibvirtFacts(
        folders=[str(path) for path in paths if path.is_dir()],
        missing=[str(path) for path in paths if not path.is_dir()],
        error=scan.error,
        domains=len({one.instance_id for one in scan.domains}),
        active=sum(one.active for one in scan.domains),
        broken=scan.broken,
    )


def _neutron(api: NeutronApi, asked: dict[str, str]) -> NeutronFacts:
    filters = [("id", one) for one in asked] or [("limit", "1")]
    try:
        rows = api.ask(filters, ("id", "binding:host_id"))
    except SourceError as error:
        status = error.fields.get("status", 0)
        return NeutronFacts(
            cause=str(error.fields["cause"]), status=status if isinstance(status, int) else 0
        )
    seen = {str(row.get("id")): str(row.get("binding:host_id") or "") for row in rows}
    return NeutronFacts(asked=asked, seen={one: host for one, host in seen.items() if one in asked})


def _store(url: str, owners: Owners) -> StoreFacts:
    try:
        found = look(url)
    except ConfigError as error:
        return StoreFacts("[store] connection", file=False, cause=str(error.fields["cause"]))
    return StoreFacts(
        found.shown,
        file=found.file,
        there=found.there,
        cut=found.cut,
        cause=found.cause,
        revision=found.revision,
        known=(HEAD,),
        open_files=found.open_files,
        strange=owners.strange(dict(found.owners)),
        rightful=owners.rightful,
    )


def _lookup(conf: cfg.ConfigOpts) -> LookupFacts:
    from dfmeta.wiring import lookup

    url = conf.store.lookup_base_url
    try:
        upstream = lookup.connect(conf)
        if upstream is None:
            return LookupFacts(url, status=404)
        reply = upstream.try_out(str(uuid.uuid4()), seconds=SECONDS)
    except (StoreError, ConfigError) as error:
        return LookupFacts(url, cause=str(error.fields["cause"]))
    return LookupFacts(url, status=reply.status, date=reply.date)


def _tokens(path: str) -> TokenFacts:
    from dfmeta.store.auth.tokens import read_tokens

    now = clock.wall()
    try:
        found = read_tokens(Path(path))
    except TokenFileError as error:
        fields = error.fields
        return TokenFacts(path, cause=str(fields["cause"]), remedy=str(fields["remedy"]))
    old = sum(one.expired(now) for one in found)
    return TokenFacts(path, there=Path(path).exists(), valid=len(found) - old, expired=old)
