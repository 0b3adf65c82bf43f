"""The page on Meta IPs should say what the code does."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network

import pytest

from dfmeta.conf import metadata
from dfmeta.flows.meta_key import MetaKeys
from dfmeta.flows.pipeline import META_NUMBERS, META_PURPOSES, META_TABLES, MetaPurpose, MetaStage
from dfmeta.host_wide import RESERVE
from dfmeta.model import TAP_VLAN
from dfmeta.ports.meta_ids import IDS, PROVIDER_IDS
from dfmeta.ports.meta_rows import mark_of
from dfmeta.ports.meta_writer import SKIP_CLEANUP
from tests.core.docs.built import SOURCE

PAGE = " ".join((SOURCE / "meta-ip.rst").read_text(encoding="utf-8").split())
KEYS = MetaKeys(IPv4Network("240.0.0.0/16"), IPv6Network("fd00::/64"), "fa:16:ee:00:00:00")


@pytest.mark.parametrize("stage", MetaStage)
def test_each_table_has_its_number_its_name_and_its_flows(stage: MetaStage) -> None:
    begin = f"* - {META_NUMBERS[stage]}, {META_TABLES[stage].name} - "
    assert begin in PAGE
    entry = PAGE.partition(begin)[2].partition(" * - ")[0]
    mine = {one.name for one, declared in META_PURPOSES.items() if declared.stage is stage}
    assert set(re.findall(r"META_[A-Z_]+", entry.partition(" On the host")[0])) == mine


def test_no_flow_is_left_out() -> None:
    assert {*META_PURPOSES} == {*MetaPurpose}
    assert {*META_TABLES} == {*MetaStage} == {*META_NUMBERS}


def test_the_numbers_are_those_of_the_key_scheme() -> None:
    size = KEYS.cidr.num_addresses
    assert (KEYS.slots(4)[0], KEYS.slots(4)[-1]) == (2, size - 2)
    assert (KEYS.slots(6)[0], KEYS.slots(6)[-1]) == (size + 2, 2 * size - 2)
    assert f"{len(KEYS.slots(4)):,} by default" in PAGE
    assert len(KEYS.slots(4)) == len(KEYS.slots(6)) == size - 3
    assert f"at most {KEYS.most(4)} over IPv4 and {KEYS.most(6)} over IPv6 at a time" in PAGE
    assert RESERVE == 8, "One eighth"


def test_it_names_each_option_and_key() -> None:
    options = {option.name for option in metadata.OPTS} - {"host_proxy_listen_port"}
    keys = {*IDS, *(f"Port.other_config:{one}" for one in PROVIDER_IDS[:1])}
    for one in options | keys:
        assert f"``{one}``" in PAGE, one


def test_it_names_the_marks_of_rows_in_ovsdb() -> None:
    key, value = mark_of("br-int")
    assert f'``{key}="{value}"``' in PAGE
    assert "``{}={}``".format(*SKIP_CLEANUP) in PAGE
    vlan = TAP_VLAN
    vlan_mode, cvlans = f"``vlan_mode = {vlan.vlan_mode}``", f"``cvlans = {vlan.cvlans[0]}``"
    assert f"VLAN {vlan.tag} with {vlan_mode} and {cvlans}" in PAGE
