"""Pages should have the numbers, names and words of the code."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

import pytest

from dfmeta import conf, state
from dfmeta.admin import page as status_http
from dfmeta.admin import status
from dfmeta.cli.token_command import token
from dfmeta.cmd import central, status_page
from dfmeta.conf import agent, auth, limits, metadata, rate
from dfmeta.devices import validate
from dfmeta.devices.schema import TAG_MAX
from dfmeta.flows.key import SLOTS, VID_MAX
from dfmeta.flows.meta_key import MetaKeys
from dfmeta.flows.pipeline import (
    COOKIE_VERSION,
    META_NUMBERS,
    META_PURPOSES,
    META_TABLES,
    RATES,
    Layout,
    MetaPurpose,
    MetaStage,
    Purpose,
)
from dfmeta.guest import snippet, tag_devices
from dfmeta.host_wide import RESERVE
from dfmeta.model import TAP_VLAN
from dfmeta.ports.meta_ids import IDS, PROVIDER_IDS
from dfmeta.ports.meta_rows import mark_of
from dfmeta.ports.meta_writer import SKIP_CLEANUP
from dfmeta.proxy import recent
from dfmeta.store.auth import caller, keys, oidc, scopes
from dfmeta.store.db.schema import HEAD, REVISIONS
from tests.core.docs.page import rows
from tests.core.docs.sources import ROOT

SOURCE = ROOT / "doc/source"
DEFAULTS = {one.name: one.default for one in (*agent.OPTS, *rate.OPTS, *limits.OPTS)}
LISTEN = DEFAULTS["admin_listen"]
META = MetaKeys(IPv4Network("240.0.0.0/16"), IPv6Network("fd00::/64"), "fa:16:ee:00:00:00")


def text(page: str) -> str:
    """Return a page on one line."""
    return " ".join((SOURCE / f"{page}.rst").read_text(encoding="utf-8").split())


def _decisions() -> Iterable[str]:
    assert (len(SLOTS), VID_MAX.bit_length()) == (7, 12)
    (inner,) = TAP_VLAN.cvlans
    yield f"from {Layout().table_base} up"
    yield f"``tag={TAP_VLAN.tag} vlan_mode={TAP_VLAN.vlan_mode} cvlans={inner}``"
    yield f"``backend = {DEFAULTS['backend']}``"
    yield f"``timeout_answer = {DEFAULTS['timeout_answer']}``"
    yield f"``hold_timeout``, {DEFAULTS['hold_timeout']} seconds"
    limit, window = DEFAULTS["base_query_rate_limit"], DEFAULTS["base_window_duration"]
    yield f"the default is {limit} in {window} seconds"


def _device_tags_guest() -> Iterable[str]:
    options = tag_devices.parser().parse_args([])
    for action in tag_devices.parser()._actions:
        for option in {*action.option_strings} - {"-h", "--help", "--sysfs"}:
            yield f"``{option}"
    yield from (f"``--source {source}``" for source in ("auto", "service", "config-drive"))
    yield f"request, {options.timeout:g} unless given"
    yield f"addresses, {options.attempts} unless given"
    yield f"more than {tag_devices.MAX_ENCODED} bytes when encoded"
    yield f"after the {tag_devices.MAX_TAGS}th"
    yield f"more than {tag_devices.MAX_VALUE} bytes"
    size = f"{tag_devices.MAX_BYTES >> 20} MiB, {tag_devices.MAX_DEPTH} levels"
    yield f"{size} and {tag_devices.MAX_DEVICES:,} devices"
    yield f"the first {tag_devices.MAX_INTERFACES} interfaces"
    yield from (tag_devices.RULES, tag_devices.DOCUMENT, snippet.PER_BOOT, tag_devices.IPV4)
    source = Path(tag_devices.__file__).read_text(encoding="utf-8")
    assert ast.parse(source, feature_version=(3, 6))
    yield "any Python from 3.6 on"


def _device_tags_use() -> Iterable[str]:
    yield from (f"rm {tag_devices.RULES}", f"rm {snippet.PER_BOOT}")
    yield f"rm -r {Path(snippet.PROGRAM).parent}"
    yield f"A tag has 1 to {TAG_MAX} characters"


def _limits() -> Iterable[str]:
    yield from (f"``[guest_limits] {one.name}``" for one in limits.OPTS)
    yield f"{RATES[Purpose.SYN]}"


def _meta_ip() -> Iterable[str]:
    yield f"{len(META.slots(4)):,} by default"
    yield f"at most {META.most(4)} over IPv4 and {META.most(6)} over IPv6 at a time"
    assert RESERVE == 8, "One eighth"
    options = {option.name for option in metadata.OPTS} - {"host_proxy_listen_port"}
    for name in options | {*IDS, *(f"Port.other_config:{one}" for one in PROVIDER_IDS[:1])}:
        yield f"``{name}``"
    key, value = mark_of("br-int")
    yield f'``{key}="{value}"``'
    yield "``{}={}``".format(*SKIP_CLEANUP)
    mode, vlans = f"``vlan_mode = {TAP_VLAN.vlan_mode}``", f"``cvlans = {TAP_VLAN.cvlans[0]}``"
    yield f"VLAN {TAP_VLAN.tag} with {mode} and {vlans}"


def _status() -> Iterable[str]:
    yield f"http://{LISTEN}/"
    yield f"ssh -L {LISTEN.rpartition(':')[2]}:{LISTEN} "
    yield f"every {status_http.REFRESH} seconds"
    yield f"up to {status_http.REFRESH_MAX} seconds"
    yield f"At most {status.SHOWN} rows"
    yield f"twice a minute, {status_page.NAMES_ASKED} at a time"
    yield f"and {recent.KINDS_KEPT} failures that differ"
    yield f"The last {status.FAILURES_SHOWN} of all"
    yield f"until {recent.PORTS} others"
    paths = ("/openstack", "/latest", "/nocloud", "/metadata", "/x", "")
    yield from (f"``{kind}``" for kind in map(recent.kind_of, paths))


def _store_auth() -> Iterable[str]:
    operations = {"upsert": "push or refresh", "read": "read", "delete": "delete"}
    kinds = {"metadata": "metadata", "userdata": "user-data"}
    yield from (option.name for option in auth.OPTS)
    for operation in scopes.OPERATIONS:
        for kind in scopes.KINDS:
            names = ", ".join(f"``{one}``" for one in scopes.accepted(operation, kind))
            yield f"* - {operations[operation]} {kinds[kind]} - {names} "
    listed = ", ".join(f"``{one}``" for one in scopes.accepted_for_any("read"))
    yield f"* - list records - {listed} "
    messages = (caller.MISSING, caller.MALFORMED, caller.INVALID, keys.UNAVAILABLE)
    yield from (f"``{message}" for message in messages)
    yield from (f"dfmeta token {name} --config-file FILE" for name in token.commands)
    yield f"with {oidc.LEEWAY:g} seconds for clocks"
    yield f"every {keys.LIFESPAN:g} seconds"
    yield f"once in {keys.SEARCH_PAUSE:g} seconds at most"
    yield f"may take {oidc.TIMEOUT:g} seconds and have {oidc.ANSWER_MAX} bytes"
    yield f"RSA keys of {keys.RSA_BITS} bits"
    *most, last = (*keys.RSA_ALGORITHMS, *keys.CURVES.values())
    yield f"signed with {', '.join(most)} or {last} by"


def _store_central() -> Iterable[str]:
    yield f"after {central.GRACE:g} seconds"
    yield "what is missing: ``threads``, ``store``, ``proxy``"


def _upgrade() -> Iterable[str]:
    yield f"version {COOKIE_VERSION} in the cookie"
    yield f"``{state.FILE}`` in ``state_path`` - format {state.VERSION} "
    yield f"schema {HEAD} "
    yield f"dfmeta store schema --to {REVISIONS[-2]}"
    yield f"closed after {round(central.GRACE)} seconds"


FACTS: Mapping[str, Callable[[], Iterable[str]]] = {
    "decisions": _decisions,
    "device-tags-guest": _device_tags_guest,
    "device-tags-use": _device_tags_use,
    "limits": _limits,
    "meta-ip": _meta_ip,
    "status": _status,
    "store-auth": _store_auth,
    "store-central": _store_central,
    "upgrade": _upgrade,
}
"""Page → words of the code that it must have."""


def missing(page: str, content: str) -> list[str]:
    """Return the facts that are not on a page."""
    return [fact for fact in FACTS[page]() if fact not in content]


@pytest.mark.parametrize("page", FACTS)
def test_page_has_the_facts_of_the_code(page: str) -> None:
    assert missing(page, text(page)) == []


def test_fact_that_is_not_on_a_page_is_reported() -> None:
    fact = f"At most {status.SHOWN} rows"
    assert missing("status", text("status").replace(fact, "")) == [fact]


def test_page_on_meta_ips_has_each_table_with_its_flows() -> None:
    assert {*META_PURPOSES} == {*MetaPurpose}
    for stage in MetaStage:
        begin = f"* - {META_NUMBERS[stage]}, {META_TABLES[stage].name} - "
        entry = text("meta-ip").partition(begin)[2].partition(" * - ")[0]
        purposes = {one.name for one, place in META_PURPOSES.items() if place.stage is stage}
        assert set(re.findall(r"META_[A-Z_]+", entry.partition(" On the host")[0])) == purposes


def test_page_on_status_has_each_state_in_the_order_of_the_status_page() -> None:
    page = (SOURCE / "status.rst").read_text(encoding="utf-8")
    described = re.findall(r"^   \* - ``([\w ]+)``$", page, re.MULTILINE)
    assert sorted(described) == sorted(status.STATES)
    assert described == sorted(described, key=status.rank)
    block = re.search(r'^ {4}"requests": .*?(?=\n\n)', page, re.DOTALL | re.MULTILINE)
    assert block is not None
    requests = json.loads("{" + block.group() + "}")["requests"]
    assert set(requests) == {*recent.CLASSES, "last_at", "last_status"}


def test_page_on_upgrades_lists_each_former_name_of_an_option() -> None:
    page = (SOURCE / "upgrade.rst").read_text(encoding="utf-8")
    former = {
        (f"[{one.group or group or 'DEFAULT'}] {one.name}", f"[{group or 'DEFAULT'}] {option.name}")
        for group, options in conf.own_opts()
        for option in options
        for one in option.deprecated_opts
    }
    assert set(re.findall(r"^   \* - ``(\[.+)``\n     - ``(.+)``\n", page, re.MULTILINE)) == former


def test_page_on_limits_names_no_option_as_absent_that_exists() -> None:
    names = {one.name for _group, options in conf.own_opts() for one in options}
    assert not names & {*re.findall(r"no option ``(\w+)``", text("limits"))}


def test_tags_of_the_examples_are_those_that_they_look_for() -> None:
    page = (SOURCE / "device-tags-use.rst").read_text(encoding="utf-8")
    tags = set(re.findall(r"(?:,tag=|--tag )(\w+)", page))
    assert set(re.findall(r"^ +/dev/disk/by-role/(\w+) ", page, re.MULTILINE)) == {"oracledb"}
    assert re.findall(r"^ +Property=DFMETA_TAGS=(\w+)$", page, re.MULTILINE) == ["storage"]
    assert {"oracledb", "storage"} <= tags
    validate({"devices": [{"type": "disk", "bus": "pci", "tags": sorted(tags)}]})


def test_ratios_of_the_comparison_are_the_measured_ones() -> None:
    measurements = (SOURCE / "performance-new.inc").read_text(encoding="utf-8")
    tables = re.split(r"^\.\. list-table:: ", measurements, flags=re.MULTILINE)
    compared = (SOURCE / "comparison.rst").read_text(encoding="utf-8")
    ratios = [row for row in rows(compared) if re.search(r", of \w+$", row[0])]
    assert len(ratios) == 4
    for first, *shares in ratios:
        proxy, _, peer = first.rpartition(", of ")
        for clients, share in zip((1, 32, 256), shares, strict=True):
            (table,) = [one for one in tables if re.match(rf"{clients} clients?, a conn", one)]
            measured = {row[0]: row for row in rows(table)}
            assert share == measured[proxy][{"haproxy": 2, "Neutron": 3}[peer]], (first, clients)


def test_decisions_have_their_four_parts() -> None:
    page = (SOURCE / "decisions.rst").read_text(encoding="utf-8")
    _, *pieces = re.split(r"^(\S.*)\n-+\n", page, flags=re.MULTILINE)
    parts = ["Decided", "Instead of", "Because", "Otherwise if"]
    for title, body in zip(pieces[::2], pieces[1::2], strict=True):
        assert re.findall(r"^:([\w ]+): \S", body, re.MULTILINE) == parts, title


def test_index_has_a_line_for_each_page() -> None:
    index = (SOURCE / "index.rst").read_text(encoding="utf-8")
    listed = re.findall(r"^   ([\w-]+)$", index, re.MULTILINE)
    assert re.findall(r"^\* :doc:`([\w-]+)`: \S.*\.$", index, re.MULTILINE) == listed
