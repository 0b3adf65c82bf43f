"""The text of haproxy's configuration; tests/host/haproxy has haproxy itself follow it."""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import ip_address

from dfmeta.proxy.haproxy.config import map_name, render, server_names, waiting
from dfmeta.proxy.haproxy.plan import Plan
from dfmeta.proxy.limits import Limits
from tests.core.unit.haproxy.support import FOUR, GIVEN, OTHER, PLANS, SIX


def test_no_certificate_passes_unseen_unless_the_operator_says_so() -> None:
    text = render(PLANS["tls"], replace(GIVEN, ca=8, cert=9))
    servers = [line for line in text.splitlines() if " server nova" in line]
    assert len(servers) == 4
    for line in servers:
        assert "verify required verifyhost nova.example ca-file /proc/self/fd/8" in line
        assert "sni str(nova.example) check-sni nova.example crt /proc/self/fd/9" in line
    assert "verify none" not in text
    system = render(PLANS["tls"], GIVEN)
    assert "ca-file @system-ca" in system
    assert " crt " not in system
    insecure = render(PLANS["tls, insecure"], replace(GIVEN, ca=8))
    assert "verify none" in insecure
    assert "verify required" not in insecure
    assert "ssl" not in render(PLANS["plain"], GIVEN)


def test_slow_host_of_several_has_half_of_the_time_and_then_rests() -> None:
    alone, several = (render(PLANS[name], GIVEN) for name in ("plain", "several hosts"))
    for text, milliseconds in ((alone, 8000), (several, 4000)):
        assert re.findall(r"timeout server (\d+)", text)[0] == str(milliseconds)
        assert "timeout queue 8000\n" in text
    assert several.count("acl late date(0,ms),sub(txn.begun) ge 4000\n") == 2
    assert "acl late" not in alone
    assert several.count("retry-on conn-failure empty-response junk-response response-timeout") == 2
    assert alone.count("retry-on conn-failure empty-response\n") == 2
    assert (several.count("    retries 3\n"), alone.count("    retries 3\n")) == (2, 2)


def test_each_of_several_hosts_has_the_value_of_its_own_host_header_as_its_name() -> None:
    servers = (FOUR, SIX, replace(SIX, address=ip_address("2001:db8::2")), OTHER)
    plan = replace(PLANS["several hosts"], servers=servers)
    text = render(plan, GIVEN)
    names = re.findall(r"^    server (\S+) \S+ check", text, flags=re.MULTILINE)
    assert names[:4] == names[4:]
    assert names[0] == "nova.example:8775"
    assert names[3] == "other.example:1"
    assert len(set(names)) == 4
    assert {name.lower() for name in names} == {"nova.example:8775", "other.example:1"}
    assert text.count("http-send-name-header Host") == 2
    backends = ("nova", "nova_closes")
    assert server_names(plan) == [f"{one}/{name}" for one in backends for name in names[:4]]


def test_lone_host_has_its_host_header_and_no_name() -> None:
    for name in ("plain", "both families", "several hosts, an address"):
        text = render(PLANS[name], GIVEN)
        assert "http-send-name-header" not in text, name
        assert text.count('\\r\\nHost: nova.example:8775"\n') == 2, name
        assert " server nova0 192.0.2.1:8775 check" in text, name
    assert " server nova1 [2001:db8::1]:8775 check" in render(PLANS["both families"], GIVEN)


def test_map_has_the_name_of_its_file_and_is_compared_before_each_answer() -> None:
    assert map_name(GIVEN) == "/proc/self/fd/6"
    text = render(PLANS["plain"], GIVEN)
    assert text.count("map_ip(/proc/self/fd/6)") == 7
    assert text.count("http-response deny deny_status 500 if doubt !same") == 2


def test_answer_waits_in_lua_for_at_most_hold_timeout() -> None:
    plan = replace(PLANS["plain"], hold_timeout=3.0)
    text = waiting(plan, GIVEN)
    assert 'Map.new("/proc/self/fd/6", Map._ip)' in text
    assert "for _ = 1, 150 do" in text
    assert "core.msleep(20)" in text
    assert render(plan, replace(GIVEN, waiting=8)).count("lua.settle if doubt") == 2
    assert "lua" not in render(plan, GIVEN)


def test_options_have_their_lines() -> None:
    large = render(PLANS["large"], GIVEN)
    for line in ("maxconn 65536", "nbthread 2", "timeout queue 1", f"abns@{'n' * 40} "):
        assert f" {line}" in large, line
    limits = Limits(header_timeout=2, keepalive_timeout=3, send_timeout=4, connections_per_port=5)
    text = render(Plan(servers=(FOUR,), handover="h", limits=limits), GIVEN)
    for line in ("timeout http-request 2000", "timeout http-keep-alive 3000"):
        assert f"    {line}\n" in text, line
    assert "    timeout client 4000\n" in text
    most = limits.connections_per_port + limits.waiting_per_port
    assert f"reject if {{ sc0_conn_cur gt {most} }}" in text
    assert f"acl crowded sc0_conn_cur gt {limits.requests_per_port}\n" in text
    closed = "option httpclose"
    assert (closed in render(PLANS["no keepalive"], GIVEN), closed in text) == (True, False)
    for name, line in (
        ("forwarded", "'x-forwarded-for'"),
        ("debug", '"%HM %B %Ta %Tr %Tw %[var(sess.claim)]'),
        ("subports", "{ path_beg /openstack/ }"),
        ("503", "default_backend nova\n"),
        ("close", "default_backend nova_closes\n"),
        ("no server", "use_backend daemon \n"),
    ):
        assert line in render(PLANS[name], GIVEN), name
    assert "use_backend nova_closes if openstack" in render(PLANS["plain"], GIVEN)


def test_nova_without_an_answer_is_answered_as_the_backend_is_for() -> None:
    text = render(PLANS["plain"], GIVEN)
    for name, file in (("nova", "/proc/self/fd/7"), ("nova_closes", "/dev/null")):
        backend = text[text.index(f"backend {name}\n") :]
        for status in (502, 503, 504):
            assert f"    errorfile {status} {file}\n" in backend[: backend.index("balance")], status


def test_counts_of_guests_belong_to_no_proxy() -> None:
    """haproxy empties the stick-tables of its proxies every second while it ends."""
    text = render(PLANS["plain"], GIVEN)
    tables = text[text.index("peers counts\n    disabled\n") :]
    assert tables.count("    table of_") == 2
    assert "stick-table" not in text
