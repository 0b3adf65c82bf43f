"""What is wrong with the page on all that dfmeta owns, in sentences: the text against the code.

:func:`faults` takes the page's text, so that a test can hand it a page that it has damaged. What a
host has at run time ``tests/host/e2e/test_owns.py`` compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from dfmeta import model, state
from dfmeta.cmd import keeping
from dfmeta.conf import agent
from dfmeta.flows import key, pipeline
from dfmeta.flows.desired import Guest, fixed_flows, guest_flows
from dfmeta.flows.metering import FIRST_IDS, LAST_ID
from dfmeta.flows.pipeline import RATES, TABLES, Layout, Purpose, Stage
from dfmeta.flows.service import Tap
from dfmeta.host import device, ipv6, netlink
from dfmeta.model import Endpoint
from dfmeta.ports import attachments, one_change, ovsdb, ovsdb_facts, trunk_bridge
from dfmeta.proxy import tokens
from tests.core.docs.page import rows

LAYOUT = Layout()
DEFAULTS = {one.name: one.default for one in agent.OPTS}
IPV4_ONLY = Tap(ofport=1, mac=key.NEXT_HOP_MAC, port=DEFAULTS["port"])
BOTH = replace(IPV4_ONLY, ip6=DEFAULTS["host_ip6"], guest_ip6=tuple(DEFAULTS["ip6"]))
FIXED, FIXED4 = (len(fixed_flows(tap)) for tap in (BOTH, IPV4_ONLY))
EACH, EACH4 = (len(guest_flows(Guest(Endpoint(2), None), tap)) for tap in (BOTH, IPV4_ONLY))
VIF_KEYS = ("iface-id", "attached-mac", "vm-uuid", "vm-id", "project-id", model.TAP_MARK[0])
FACTS: tuple[str, ...] = (
    "``{}={}``".format(*model.TAP_MARK),
    f"VLAN {model.TAP_VLAN.tag}",
    "``external_ids:{}={}``".format(*trunk_bridge.MARK),
    f"Port ``{trunk_bridge.OUTER}``",
    f"Bridge ``{trunk_bridge.BRIDGE}``",
    f"``trunks=[{trunk_bridge.UNTAGGED}]``",
    f"Port ``{attachments.INNER}``",
    f"Port ``{attachments.OUTER}``",
    f"``external_ids:{model.ATTACHMENT_KEY}``",
    f"controller id {pipeline.CONTROLLER_ID:#x}",
    f"{RATES[Purpose.SYN]} a second",
    f"{RATES[Purpose.GUEST_SYN]} a second",
    f"a host without guests has {FIXED} flows, each guest's port adds {EACH}, and each address",
    f"these numbers are {FIXED4}, {EACH4} and",
    f"numbers are {FIRST_IDS[Purpose.SYN]} and {FIRST_IDS[Purpose.GUEST_SYN]} plus",
    f"from {min(FIRST_IDS.values())} to {LAST_ID}",
    f"{key.NEXT_HOP} lladdr {key.NEXT_HOP_MAC}",
    f"{key.NEXT_HOP6} lladdr {key.NEXT_HOP_MAC}",
    f"inet6 {DEFAULTS['host_ip6']}/128",
    f"{netlink.RULE_FROM}: from",
    f"{netlink.RULE_OIF}: from",
    f"lookup {DEFAULTS['route_table']}",
    f"{DEFAULTS['metadata_interface']} (``metadata_interface``)",
    f"at priority {LAYOUT.hook_priority}",
    f"TCP ``host_ip``:{DEFAULTS['port']}",
    f"TCP ``host_ip6``:{DEFAULTS['port']}",
    f"TCP {DEFAULTS['admin_listen']}",
    *(f"``{name}``" for name in keeping.FD_NAMES.values()),
    f"* - {state.FILE}",
    f"* - {tokens.KEY_FILE}",
    f"{tokens.KEY_BYTES} random bytes",
    ".".join(device.ARP_IGNORE.parts[3:]),
    *(
        f"net.ipv6.conf.{DEFAULTS['metadata_interface']}.{name} = {value}"
        for name, value in ipv6.SETTINGS.items()
    ),
    *(f"``{name}``" for name in VIF_KEYS),
)
"""What has to be said, made of the code."""


def faults(page: str) -> list[str]:
    """Everything that is wrong, in the page's order as far as there is one."""
    return [*_missing(page), *_tables(page), *_cookie(page), *_columns(page)]


def _missing(page: str) -> Iterator[str]:
    flat = " ".join(page.split())
    for fact in FACTS:
        if fact not in flat:
            yield f"{fact!r} is not said"


def _rows(page: str) -> Mapping[str, str]:
    return {row[0]: row[1] for row in rows(page)}


def _tables(page: str) -> Iterator[str]:
    there = _rows(page)
    for stage in Stage:
        if there.get(str(LAYOUT.number(stage))) != TABLES[stage].name:
            yield f"table {LAYOUT.number(stage)} is {TABLES[stage].name}"


def _cookie(page: str) -> Iterator[str]:
    there = _rows(page)
    purposes = ", ".join(f"{one.value} {one.name}" for one in sorted(Purpose))
    wanted = {
        "63 to 32": f"{pipeline.COOKIE_PREFIX >> 32:#x}, in every version",
        "31 to 24": f"version of the flow's form, now {pipeline.COOKIE_VERSION}",
        "23 to 16": "table: " + ", ".join(f"{one.value} {TABLES[one].name}" for one in Stage),
        "15 to 0": f"purpose: {purposes}",
    }
    for bits, text in wanted.items():
        if there.get(bits) != text:
            yield f"bits {bits} of a cookie: {text}"
    sets = {field for table in TABLES.values() for field in table.sets | table.matches}
    if any(field.startswith(("xreg", "xxreg", "ct_", "metadata")) for field in sets):
        yield "a conntrack zone or OpenFlow's metadata is used"
    numbers = sorted(field.removeprefix("reg") for field in sets if field.startswith("reg"))
    if f"registers {', '.join(numbers[:-1])} and {numbers[-1]} only" not in " ".join(page.split()):
        yield f"the registers {numbers} are used"


def _columns(page: str) -> Iterator[str]:
    there = _rows(page)
    for table, columns in ovsdb.COLUMNS.items():
        others = (ovsdb_facts._COLUMNS, one_change._COLUMNS)
        read = {*columns, *(name for one in others for name in one.get(table, ()))} - {"_uuid"}
        if set(there.get(table, "").split(", ")) != read:
            yield f"of {table} these are read: {', '.join(sorted(read))}"
