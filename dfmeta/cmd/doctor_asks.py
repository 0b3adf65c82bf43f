"""``dfmeta doctor``'s questions to others: Nova, Neutron, PostgreSQL, the store that ours asks.

All are asked at once, each in a thread, while this host is looked at: whoever is dead costs
:data:`SECONDS` once.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from oslo_config import cfg

from dfmeta.cmd import neutron_client, nova_settings
from dfmeta.cmd.gather import explicit
from dfmeta.cmd.later import Later
from dfmeta.exceptions import ConfigError, SourceError, StoreError, TokenFileError
from dfmeta.inspect import checks_nova, checks_sources, checks_store
from dfmeta.inspect.checks_nova import NovaFact
from dfmeta.inspect.checks_sources import LibvirtFacts, NeutronFacts
from dfmeta.inspect.checks_store import LookupFacts, StoreFacts, TokenFacts
from dfmeta.inspect.checks_system import skew
from dfmeta.inspect.facts import KnownPort
from dfmeta.inspect.finding import Finding
from dfmeta.model import HttpHost, PortState
from dfmeta.ports.folders import Folders
from dfmeta.ports.neutron_api import NeutronApi
from dfmeta.proxy.ask_nova import Question, ask_nova
from dfmeta.store.look import look
from dfmeta.store.revisions import REVISIONS

T = TypeVar("T")

SECONDS: Final = 3.0
"""For each of them."""
SPARE: Final = 0.3
"""Seconds more that are waited for who bounds its own time."""
LATE: Final = f"no answer within {SECONDS:g} s"
PORTS_ASKED: Final = 4
_NOVA_PREFIX: Final = 3
"""Letters of a device that Nova names; as much of its port's id follows as there is room for."""


class Asks:
    """What is asked of others; asked from the moment that this is made.

    :param ports: guests' ports, to ask about one that there is.
    :param running: the daemon runs.
    """

    def __init__(self, conf: cfg.ConfigOpts, ports: Sequence[KnownPort], *, running: bool) -> None:
        self._conf = conf
        self._running = running
        self._begun = time.monotonic()
        self._sources = conf.df_metadata.identity_sources
        self._real = _real(ports) if conf.df_metadata.backend == "nova" else None
        self.skews: list[tuple[str, float]] = []
        """Who has said what time it is → seconds after our clock; filled by :meth:`findings`."""
        self._nova = self._ask_nova()
        self._libvirt = Later(lambda: _libvirt(conf)) if "libvirt" in self._sources else None
        self._neutron = self._ask_neutron(ports) if "neutron" in self._sources else None
        has_store = conf.df_metadata.backend == "store"
        self._store = (
            Later(lambda: _store(conf.store.connection))
            if has_store or "store" in self._sources
            else None
        )
        asks = has_store and conf.store.lookup_base_url
        self._lookup = Later(lambda: _lookup(conf)) if asks else None

    def findings(self) -> Iterator[Finding]:
        """Judge the answers, waiting for those that are still out."""
        yield from self._judge_nova()
        if self._libvirt is not None:
            default = LibvirtFacts(error=f"libvirt_xml_path: {LATE}")
            facts = self._get(self._libvirt, default)
            options = ("identity_sources", "libvirt_xml_path")
            wanted = any(explicit(self._conf, one, "df_metadata") for one in options)
            yield checks_sources.libvirt(facts, wanted=wanted)
        if self._neutron is not None:
            found = self._get(self._neutron, NeutronFacts(cause=LATE))
            yield checks_sources.neutron(found, neutron_client.host(self._conf))
        if self._store is not None:
            yield from self._judge_store(self._store)
        if self._lookup is not None:
            url = self._conf.store.lookup_base_url
            answer = self._get(self._lookup, LookupFacts(url, cause=LATE))
            self._note(url, answer.date)
            yield checks_store.lookup(answer)
        if self._conf.df_metadata.backend == "store" and self._conf.store.token_file:
            yield checks_store.tokens(_tokens(self._conf.store.token_file))

    def _ask_nova(self) -> list[tuple[HttpHost, Later[NovaFact]]]:
        if self._conf.df_metadata.backend != "nova":
            return []
        settings = nova_settings.build(self._conf)
        question = self._real or Question(str(uuid.uuid4()), uuid.uuid4().hex)

        def ask(host: HttpHost) -> Later[NovaFact]:
            return Later(lambda: ask_nova(host, question, settings, seconds=SECONDS))

        return [(host, ask(host)) for host in dict.fromkeys(settings.hosts)]

    def _judge_nova(self) -> Iterator[Finding]:
        real = self._real or Question("", "")
        protocol = self._conf.nova_metadata_protocol
        for host, asked in self._nova:
            late = NovaFact(host.authority, cause=LATE, remedy="Look into its log")
            fact = self._get(asked, late)
            self._note(f"Nova at {host.authority}", fact.date)
            url = f"{protocol}://{host.authority}"
            yield checks_nova.nova(fact, url, instance=real.instance_id, project=real.project_id)

    def _ask_neutron(self, ports: Sequence[KnownPort]) -> Later[NeutronFacts]:
        asked = _of_nova(ports)
        try:
            # Here, for it registers options, which is nothing for a thread.
            api = neutron_client.build(self._conf)
        except ConfigError as error:
            cause = str(error)
            return Later(lambda: NeutronFacts(cause=cause))
        return Later(lambda: _neutron(api, asked))

    def _judge_store(self, asked: Later[StoreFacts]) -> Iterator[Finding]:
        facts = self._get(asked, StoreFacts("[store] connection", file=False, cause=LATE))
        yield checks_store.database(facts, running=self._running)
        if facts.there and not facts.cause:
            yield checks_store.schema(facts, running=self._running)
        if facts.file and facts.there:
            yield checks_store.files(facts)

    def _get(self, asked: Later[T], late: T) -> T:
        left = self._begun + SECONDS + SPARE - time.monotonic()
        found = asked.get(max(left, 0.0))
        return late if found is None else found

    def _note(self, who: str, date: str) -> None:
        seconds = skew(date, time.time())
        if seconds is not None:
            self.skews.append((who, seconds))


def _real(ports: Sequence[KnownPort]) -> Question | None:
    """An instance of this host whose project is known."""
    for port in ports:
        if port.state is PortState.SERVED and port.project:
            return Question(port.instance, port.project)
    return None


def _of_nova(ports: Sequence[KnownPort]) -> dict[str, str]:
    """Ports that Nova has named, and so are Neutron's, a few of them: id → name."""
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


def _store(url: str) -> StoreFacts:
    try:
        found = look(url)
    except ConfigError as error:
        return StoreFacts("[store] connection", file=False, cause=str(error.fields["cause"]))
    return StoreFacts(
        found.shown,
        file=found.file,
        there=found.there,
        cause=found.cause,
        revision=found.revision,
        known=REVISIONS,
        open_files=found.open_files,
    )


def _lookup(conf: cfg.ConfigOpts) -> LookupFacts:
    from dfmeta.cmd import lookup

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
    from dfmeta.store.auth_tokens import read_tokens

    now = time.time()
    try:
        found = read_tokens(Path(path))
    except TokenFileError as error:
        fields = error.fields
        return TokenFacts(path, cause=str(fields["cause"]), remedy=str(fields["remedy"]))
    old = sum(one.expired(now) for one in found)
    return TokenFacts(path, there=Path(path).exists(), valid=len(found) - old, expired=old)
