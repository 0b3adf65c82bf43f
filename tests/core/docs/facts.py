"""Words that the pages must have, made of the code: see :data:`FACTS`."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from dfmeta import model
from dfmeta.admin import server as admin_server
from dfmeta.admin import status
from dfmeta.apps import floods, reconciler
from dfmeta.attach.drivers import local
from dfmeta.cli.store_target import TOKEN
from dfmeta.cli.token_command import token
from dfmeta.cmd import keepers, service, status_page
from dfmeta.conf import DEFAULT_FILES, agent, limits, metadata, store
from dfmeta.devices.schema import DEPTH_MAX, DEVICES_MAX, SCHEMA, TAG_MAX
from dfmeta.flows import pipeline
from dfmeta.flows.integration_bridge import ServedEndpoint, Tap, fixed_flows, guest_flows
from dfmeta.flows.pipeline import (
    BR_INT,
    COOKIE_PREFIX,
    COOKIE_PREFIX_MASK,
    COOKIE_VERSION,
    RATE_OF_VM,
    RATES,
    TABLES,
    Layout,
    Register,
    Stage,
)
from dfmeta.guest import snippet, tag_devices
from dfmeta.guest.cni import VERSIONS, cnm, host_api
from dfmeta.guest.cni.cni import UNDO_PATIENCE
from dfmeta.host import device, ipv6, netlink
from dfmeta.http import connection
from dfmeta.http.limits import BACKLOG, CROWDED
from dfmeta.identity import key, registry, slots
from dfmeta.identity.host_wide_allocator import RESERVE
from dfmeta.identity.key import MetaKeys
from dfmeta.model import TAP_VLAN, Endpoint
from dfmeta.ovsdb import trunk_bridge
from dfmeta.ovsdb.external_ids import META_KEYS, PROVIDER_IDS
from dfmeta.ovsdb.meta_bridge import SKIP_CLEANUP, mark_of
from dfmeta.proxy import recent, tokens
from dfmeta.proxy.engines import engine
from dfmeta.proxy.engines.workers import workers
from dfmeta.runtime import clock, saved_state, throttle
from dfmeta.store import strictjson
from dfmeta.store.api import admin, representations, requests, routes
from dfmeta.store.auth import caller, oidc
from dfmeta.store.db import HEAD, repository
from dfmeta.store.db.record import HTTP_TOKENS, Kind
from dfmeta.store.guest import documents, ec2, openstack

DEFAULTS = {opt.name: opt.default for opt in (*agent.OPTS, *limits.RATE_OPTS, *limits.OPTS)}
LISTEN = DEFAULTS["admin_listen"]
LAYOUT = Layout()
META = MetaKeys(IPv4Network("240.0.0.0/16"), IPv6Network("fd00::/64"), "fa:16:ee:00:00:00")
IPV4_ONLY = Tap(ofport=1, mac=key.NEXT_HOP_MAC, port=DEFAULTS["port"])
BOTH = replace(IPV4_ONLY, ip6=DEFAULTS["host_ip6"], guest_ip6=tuple(DEFAULTS["ip6"]))
EACH, EACH4 = (len(guest_flows(ServedEndpoint(Endpoint(2)), tap)) for tap in (BOTH, IPV4_ONLY))
"""Flows of a port, on a host with IPv6 and without."""


def _decisions() -> Iterable[str]:
    assert (len(key.SLOTS), model.VID_MAX.bit_length()) == (7, 12)
    (inner,) = TAP_VLAN.cvlans
    yield f"from {Layout().table_base} up"
    yield f"``tag={TAP_VLAN.tag} vlan_mode={TAP_VLAN.vlan_mode} cvlans={inner}``"
    yield f"``backend = {DEFAULTS['backend']}``"
    yield f"``timeout_answer = {DEFAULTS['timeout_answer']}``"
    yield f"``hold_timeout``, *{DEFAULTS['hold_timeout']} seconds, in total"
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
    yield "any Python from 3.6 on"


def _meta_ip() -> Iterable[str]:
    yield f"{len(META.slots(4)):,} by default"
    yield f"at most {META.most(4)} over IPv4 and {META.most(6)} over IPv6 at a time"
    assert RESERVE == 8, "One eighth"
    options = {option.name for option in metadata.OPTS} - {"host_proxy_listen_port"}
    for name in options | {
        *META_KEYS,
        *(f"Port.other_config:{provider_id}" for provider_id in PROVIDER_IDS[:1]),
    }:
        yield f"``{name}``"
    key, value = mark_of("br-int")
    yield f'``{key}="{value}"``'
    yield "``{}={}``".format(*SKIP_CLEANUP)
    mode, vlans = f"``vlan_mode = {TAP_VLAN.vlan_mode}``", f"``cvlans = {TAP_VLAN.cvlans[0]}``"
    yield f"VLAN {TAP_VLAN.tag} with {mode} and {vlans}"


def _status() -> Iterable[str]:
    yield f"http://{LISTEN}/"
    yield f"ssh -L {LISTEN.rpartition(':')[2]}:{LISTEN} "
    yield f"every {status.REFRESH} seconds"
    yield f"up to {status.REFRESH_MAX} seconds"
    yield f"At most {status.SHOWN} rows"
    yield f"twice a minute, {status_page.NAMES_ASKED} at a time"
    yield f"and {recent.KINDS_KEPT} failures that differ"
    yield f"the last {status.FAILURES_SHOWN} of all"
    yield f"are behind it, {status.BEHIND} at"
    yield f"more than {status.TILES} guests"
    yield f"until {throttle.PORTS} others"
    paths = ("/openstack", "/latest", "/nocloud", "/metadata", "/x", "")
    yield from (f"``{kind}``" for kind in map(recent.kind_of, paths))


def _scopes(operation: str) -> str:
    """The scopes of an operation on either kind of content."""
    (names,) = {
        tuple(
            re.sub(f":{kind}$", ":KIND", name) for name in caller.accepted_scopes(operation, kind)
        )
        for kind in caller.KINDS
    }
    return ", ".join(f"``{name}``" for name in names)


def _store_access() -> Iterable[str]:
    operations = {"upsert": "push, refresh", "read": "read", "delete": "delete"}
    assert operations.keys() == set(caller.OPERATIONS)
    yield from store.AUTH
    yield from (f"* - {text} - {_scopes(name)} " for name, text in operations.items())
    listed = ", ".join(f"``{scope}``" for scope in caller.scopes_for_any("read"))
    yield f"* - list records - {listed} "
    yield from (f"``{message}``" for message in (caller.INVALID, oidc.UNAVAILABLE))
    yield from (f"dfmeta token {name} --config-file FILE" for name in token.commands)
    yield f"with {oidc.LEEWAY:g} seconds for clocks"
    yield f"every {oidc.LIFESPAN:g} seconds"
    yield f"once in {throttle.LONGEST_PAUSE:g} seconds at most"
    yield f"may take {clock.ANSWER_TIMEOUT:g} seconds and have {oidc.ANSWER_MAX} bytes"
    yield f"RSA keys of {oidc.RSA_BITS} bits"
    *most, last = (*oidc.RSA_ALGORITHMS, *oidc.CURVES.values())
    yield f"signed with {', '.join(most)} or {last} by"


def _store_central() -> Iterable[str]:
    yield f"after {service.GRACE:g} seconds"
    yield "what is missing: ``threads``, ``store``, ``proxy``"
    yield from _store_access()


def _upgrade() -> Iterable[str]:
    yield f"version {COOKIE_VERSION} in the cookie"
    yield f"``{saved_state.FILE}`` in ``state_path`` - format {saved_state.VERSION} "
    yield f"schema {HEAD} "
    yield f"closed after {round(service.GRACE)} seconds"


def _devices() -> Iterable[str]:
    yield f"A tag has 1 to {TAG_MAX} characters"
    yield f"at most {DEVICES_MAX} devices and {DEPTH_MAX} levels"
    vlan = SCHEMA["$defs"]["nicdevice"]["properties"]["vlan"]
    yield f"{vlan['minimum']} to {vlan['maximum']}"
    yield from (f"rm {tag_devices.RULES}", f"rm {snippet.PER_BOOT}")
    yield f"rm -r {Path(snippet.PROGRAM).parent}"
    yield from _device_tags_guest()


def _dfmeta_cni() -> Iterable[str]:
    *most, last = VERSIONS
    yield f"versions {', '.join(most)} and {last}"
    yield from (f"``{verb}``" for verb in ("ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"))
    yield from (f"``{place}``" for place in (cnm.DOCKER, cnm.STATE))
    yield f"labels of the attachment, at most {host_api.MAX_LABELS}"
    yield f"takes {host_api.STATUS_PATIENCE} at most"
    yield f"up to {UNDO_PATIENCE} more"
    yield "needs Python 3.8 or later at ``/usr/bin/python3``"


def _migrate() -> Iterable[str]:
    yield f"queue has {BACKLOG} places"
    yield f"{service.GRACE:g} seconds"
    tables = [LAYOUT.number(stage) for stage in TABLES if stage is not min(TABLES)]
    yield f"dfmeta's are {tables[0]} and {tables[1]}"
    hooks = {
        LAYOUT.priority(purpose) for purpose in BR_INT.purposes if LAYOUT.priority(purpose) >= 300
    }
    yield f"hooks have {min(hooks)}"


def _owns() -> Iterable[str]:
    yield "``{}={}``".format(*model.TAP_MARK)
    yield f"VLAN {TAP_VLAN.tag}"
    yield "``external_ids:{}={}``".format(*trunk_bridge.MARK)
    yield f"``external_ids:{model.ATTACHMENT_KEY}``"
    yield f"Bridge ``{trunk_bridge.BRIDGE}``"
    for port in (trunk_bridge.OUTER, local.INNER, local.OUTER):
        yield f"Port ``{port}``"
    yield f"``trunks=[{trunk_bridge.UNTAGGED}]``"
    yield f"controller id {pipeline.CONTROLLER_ID:#x}"
    fixed, fixed4 = (len(fixed_flows(tap)) for tap in (BOTH, IPV4_ONLY))
    yield f"a host without guests has {fixed} flows"
    yield f"each guest's port adds {EACH}, and each address"
    yield f"these numbers are {fixed4}, {EACH4} and"
    yield from (f"{hop} lladdr {key.NEXT_HOP_MAC}" for hop in (key.NEXT_HOP, key.NEXT_HOP6))
    yield f"inet6 {DEFAULTS['host_ip6']}/128"
    yield from (f"{rule}: from" for rule in (netlink.RULE_FROM, netlink.RULE_OIF))
    yield f"lookup {DEFAULTS['route_table']}"
    yield f"{DEFAULTS['metadata_interface']} (``metadata_interface``)"
    yield f"at priority {LAYOUT.hook_priority}"
    yield from (f"TCP ``{name}``:{DEFAULTS['port']}" for name in ("host_ip", "host_ip6"))
    yield f"TCP {LISTEN}"
    yield from (f"``{name}``" for name in keepers.FD_NAMES.values())
    yield from (f"* - {file}" for file in (saved_state.FILE, tokens.KEY_FILE))
    yield f"{tokens.KEY_BYTES} random bytes"
    yield ".".join(device.ARP_IGNORE.parts[3:])
    for name, value in ipv6.SETTINGS.items():
        yield f"net.ipv6.conf.{DEFAULTS['metadata_interface']}.{name} = {value}"
    for name in ("iface-id", "attached-mac", "vm-uuid", "vm-id", "project-id", model.TAP_MARK[0]):
        yield f"``{name}``"
    numbers = [LAYOUT.number(table) for table in TABLES if table is not Stage.CLASSIFY]
    yield f"tables {min(numbers)} to {max(numbers)}"
    used = {field for table in TABLES.values() for field in table.sets | table.matches}
    assert not [field for field in used if field.startswith(("xreg", "xxreg", "ct_", "metadata"))]
    own = {field.removeprefix("reg") for field in used if field.startswith("reg")}
    shown = Register.CHECKED.removeprefix("reg")
    *most, last = sorted(own - {shown})
    yield f"registers {', '.join(most)} and {last} only"
    yield f"has 1 in register {shown} when"


def _pipeline() -> Iterable[str]:
    yield f"``classification_table`` ({LAYOUT.classification_table})"
    yield f"``table_base`` ({LAYOUT.table_base})"
    yield {5: "the four numbers after it"}[pipeline.TABLES_TAKEN]
    yield f"id {pipeline.CONTROLLER_ID} ({pipeline.CONTROLLER_ID:#x})"
    fixed = [purpose.name for purpose in pipeline.BR_INT.purposes if purpose.is_needed]
    yield f"except {', '.join(fixed[:-1])} and {fixed[-1]}"
    yield f"in bundles of {reconciler.BATCH}"
    yield f"every {clock.FULL_CHECK_INTERVAL:g} seconds"
    yield {1.0: "every second"}[clock.CHECK_INTERVAL]
    yield f"``{(COOKIE_PREFIX >> 32).to_bytes(4, 'big').decode()}``"
    yield f"The version is {COOKIE_VERSION}."
    yield f"cookie={COOKIE_PREFIX:#x}/{COOKIE_PREFIX_MASK:#x}"
    yield from (f"``{register}``" for register in Register)
    yield from _pipeline_floods()
    yield from _pipeline_keys()


def _pipeline_floods() -> Iterable[str]:
    yield from (f"* - {purpose.name} - {number} " for purpose, number in RATES.items())
    yield f"{RATE_OF_VM} first packets a second"
    yield {1.0: "once a second"}[clock.CHECK_INTERVAL]
    yield f"{floods.LONGEST:g} seconds"


def _pipeline_keys() -> Iterable[str]:
    yield f"{key.BASE:#x} | slot << {key.SLOT_SHIFT} | VID << {key.VID_SHIFT} | ofport"
    yield f"in the order {', '.join(map(str, key.SLOTS))};"
    yield f"rest for {registry.REST:g} seconds"
    yield f"{key.PREFIX6}"
    yield f"from {key.SLOTS6[0] - key.SLOT6} to {key.SLOTS6[-1] - key.SLOT6}"
    yield f"slot 1 of port 7 is {key.IN_PORT.key_of(Endpoint(7), key.SLOTS6[0])}"
    often, at_once = slots.DISPLACED_PER_SECOND, slots.DISPLACED_AT_ONCE
    yield f"most {often:g} addresses of a port are evicted per second, and {at_once} at once"


def _proxy() -> Iterable[str]:
    yield f"(1 to {model.TTL_MAX})"
    yield f"``{tokens.TOKEN_PATH}``"
    yield "``X-aws-ec2-metadata-token``"
    yield "``X-aws-ec2-metadata-token-ttl-seconds``"
    yield {0.75: "fewer than three quarters of ``connections``"}[CROWDED]
    yield f"{connection.LINGER:g} second"
    yield f"{connection.LINGER_MAX} bytes"
    yield {60.0: "once a minute"}[throttle.QUIET]
    yield f"({recent.TEXT_MAX} characters at most)"
    yield {1.0: "once a second"}[clock.CHECK_INTERVAL]
    yield f"not answered for {workers.SILENT * clock.CHECK_INTERVAL:g} s"
    yield f"After {engine.HANGS * clock.CHECK_INTERVAL:g} s it is killed"
    yield f"{clock.ANSWER_TIMEOUT:g} s after its time"
    yield f"full for {workers.SETTLE_TIMEOUT:g} s"
    yield f"after {service.GRACE:g} seconds"
    yield f"{engine.DRAIN:g} seconds to finish"


def _commands() -> Iterable[str]:
    names = (TOKEN, tokens.KEY_FILE, saved_state.FILE, tag_devices.RULES, *DEFAULT_FILES)
    yield from (f"``{name}``" for name in names)


def _dfmeta_agent() -> Iterable[str]:
    yield f"closes the rest after {service.GRACE:g} seconds"


def _store_api() -> Iterable[str]:
    yield f"``Accept: {representations.ENVELOPE}``"
    yield f"{requests.ADDRESSES_MAX} at most"
    yield f"{repository.PAGE} records at most"
    yield f"{strictjson.DEPTH_MAX} arrays and objects inside each other at most"
    yield {60: "nothing came for a minute"}[int(admin_server.SILENCE)]
    yield "``[store] max_body``"
    yield from (f"``{mode}``" for mode in (*HTTP_TOKENS, *requests.ENCODINGS))
    for route in routes.ROUTES:
        if route.kind is not Kind.USERDATA:
            yield f"``{route.method} {route.path.replace('{id}', 'ID')}"
    for name in requests.SELECTORS:
        yield f"``{name}={'BUS:' if name == 'address' else ''}{name.upper()}``"
    yield f"more than {admin.REFUSALS} refused requests in a minute"


def _store_documents() -> Iterable[str]:
    *dated, latest = ec2.VERSIONS
    assert latest == openstack.LATEST
    yield f"from {dated[0]} to {dated[-1]}"
    yield f"Nova has those to {ec2.NOVA_VERSIONS[-1]}"
    yield f"tags from {ec2.TAGS_SINCE} on"
    yield f"from {openstack.VERSIONS[0]} to {openstack.VERSIONS[-1]}"
    yield f"{documents.RANDOM_SEED_BYTES} bytes"
    yield from (f"``{name}``" for name in store.TEMPLATES)


FACTS: Mapping[str, Callable[[], Iterable[str]]] = {
    "commands": _commands,
    "decisions": _decisions,
    "devices": _devices,
    "dfmeta-agent": _dfmeta_agent,
    "dfmeta-cni": _dfmeta_cni,
    "meta-ip": _meta_ip,
    "migrate": _migrate,
    "owns": _owns,
    "pipeline": _pipeline,
    "proxy": _proxy,
    "status": _status,
    "store-api": _store_api,
    "store-central": _store_central,
    "store-documents": _store_documents,
    "upgrade": _upgrade,
}
"""Page → words of the code that it must have."""
