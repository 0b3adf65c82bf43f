"""What doctor says of the probe, in each case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from oslo_config import cfg

from dfmeta.cli import gather
from dfmeta.exceptions import NotRunningError
from dfmeta.flows.family import IPV6
from dfmeta.inspect.checks_path import PathFacts, path
from tests.core.unit.inspect.values import OK, SERVICE6, SETTINGS, TAP6, UNKNOWN, WRONG, expect


def test_probe_is_judged_for_each_version() -> None:
    wanted = replace(SETTINGS, ip6=SERVICE6, host_ip6=TAP6.ip6).over(IPV6)
    silent = PathFacts(cause="the host is silent")
    six = path(silent, wanted)
    expect(
        [
            (path(None, SETTINGS), UNKNOWN, "does not run"),
            (path(PathFacts(asked=False, cause="not connected"), SETTINGS), UNKNOWN, "not connect"),
            (path(PathFacts(answered=True, seconds=0.0012), SETTINGS), OK, "in 1.2 ms"),
            (path(PathFacts(answered=True, whole=False), SETTINGS), WRONG, "incomplete TCP checks"),
            (path(silent, SETTINGS), WRONG, "the host is silent"),
            (path(PathFacts(answered=True), wanted), OK, "[fd00:a9fe:a9fe:a9fe::a9fe]:18080"),
            (six, WRONG, "the host is silent", "firewall-ipv6 name", "`ip6tables-save`"),
        ]
    )
    assert [path(silent, one).check for one in (SETTINGS, wanted)] == ["path", "path-ipv6"]
    assert "rp_filter" not in six.remedy


def test_no_probe_is_sent_by_a_switch_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """That it has no answer would show nothing about the host."""
    for ip6 in ((), ("fe80::a9fe:a9fe",)):
        answers = {"/service": {"ip6": ip6}}
        monkeypatch.setattr(gather, "ask_agent", lambda _conf, place, found=answers: found[place])
        facts = gather.path_facts(cfg.ConfigOpts(), silent=True)
        assert bool(facts.ip6) == bool(ip6)
        for one, wanted in ((facts, SETTINGS), (facts.ip6, SETTINGS.over(IPV6))):
            if one is not None:
                text = "the switch, which sends the SYN, does not answer"
                expect([(path(one, wanted), UNKNOWN, text)])
                assert path(one, wanted).text.endswith("see the line openflow")


def test_results_of_both_versions_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    one: dict[str, Any] = {
        "sent": True,
        "answered": True,
        "cause": "",
        "seconds": 0.5,
        "whole_checksum": True,
    }
    plain = PathFacts(answered=True, seconds=0.5)
    six = {**one, "answered": False, "cause": "c", "seconds": 2}
    for document, facts in (
        (one, plain),
        ({**one, "ip6": None}, plain),
        (
            {**one, "ip6": six},
            replace(plain, ip6=PathFacts(answered=False, cause="c", seconds=2.0)),
        ),
    ):
        monkeypatch.setattr(gather, "ask_agent", lambda _conf, _path, found=document: found)
        assert gather.path_facts(cfg.ConfigOpts()) == facts
    for nonsense in ([], {**one, "ip6": 7}, {}):
        monkeypatch.setattr(gather, "ask_agent", lambda _conf, _path, found=nonsense: found)
        assert "of another version" in gather.path_facts(cfg.ConfigOpts()).cause


def test_addresses_that_the_daemon_serves_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for document, ip6 in (
        ({"ip": "169.254.169.254", "ip6": ["FE80::A9FE:A9FE", "fd00:ec2::254"]}, SERVICE6),
        ({"ip": None, "ip6": []}, ()),
        ({"ip6": ["nonsense"]}, ()),
        ([], ()),
        ({}, ()),
    ):
        monkeypatch.setattr(gather, "ask_agent", lambda _conf, _path, found=document: found)
        assert gather.served_ip6(cfg.ConfigOpts()) == ip6
    monkeypatch.setattr(gather, "ask_agent", _is_down)
    assert gather.served_ip6(cfg.ConfigOpts()) == ()


def _is_down(_conf: cfg.ConfigOpts, path: str) -> None:
    raise NotRunningError(address="a", cause=f"{path} is answered with 404", remedy="r")
