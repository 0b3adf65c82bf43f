"""The bench should read the output of its programs correctly."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bench import engine, store_tables, store_targets, store_writes
from bench.chart import chart
from bench.direct import counter
from bench.load import Load, parse
from bench.peers import BODY_SIZE, document
from bench.proxy import chosen
from bench.report import section, sections
from bench.scale import ratios
from bench.store_reads import expected, hostname, record
from bench.store_targets import FORWARDING, SQLITE, WORKERS
from bench.storm import PATHS, request, whole
from bench.tables import Table, restructured, tables
from bench.targets import (
    COMPARED,
    HAPROXY,
    HAPROXY_ALONE,
    IN_HAPROXY,
    IN_PROCESS,
    IPV6,
    NEUTRON,
    TWO_WORKERS,
    pair_name,
    ratio,
    targets,
)
from bench.throughput import LOADS, Cell, bracketed

SAID = (
    "Running 3s test @ http://169.254.169.254:18080/\n  2 threads and 32 connections\n"
    "Requests/sec:   1000.00\n"
    '{"requests": 3000, "microseconds": 2000000, "p50": 250, "p99": 4000, "max": 9000, '
    '"connect": 1, "read": 2, "write": 3, "status": 400, "timeout": 5}\n'
)
CELL = Cell(
    **dict.fromkeys(("rate", "p50", "p99", "cpu", "memory", "idle"), 1.0),
    **dict.fromkeys(("requests", "failed", "resent"), 0),
    rates=[1.0],
    causes={},
)
NETSTAT = (
    "TcpExt: SyncookiesSent TCPSynRetrans TCPOrigDataSent\n"
    "TcpExt: 7 12 900\n"
    "IpExt: InNoRoutes InOctets\n"
    "IpExt: 1 2\n"
)


def cell(rate: float, *, p50: float = 1.0, failed: int = 0) -> dict[str, Any]:
    return {
        "rate": rate,
        "p50": p50,
        "p99": 2.0,
        "requests": 100,
        "failed": failed,
        "resent": 0,
        "cpu": 0.5,
        "memory": 80.0,
    }


def report(**cells: dict[str, Any]) -> dict[str, Any]:
    """A run in which each proxy had the same figures under every load."""
    loads = [f"{kind} {count}" for kind in ("new", "keep-alive") for count in (1, 32, 256)]
    return {"throughput": {name: dict.fromkeys(loads, one) for name, one in cells.items()}}


def test_the_generators_figures_are_read_behind_its_own_report() -> None:
    outcome = parse(SAID)
    assert (outcome.requests, outcome.seconds) == (3000, 2.0)
    assert (outcome.p50, outcome.p99) == (0.25, 4.0)


def test_everything_that_went_wrong_counts_as_failed() -> None:
    outcome = parse(SAID)
    assert outcome.failed == 411
    assert outcome.causes["status"] == 400


def test_an_answer_with_an_errors_status_is_no_part_of_the_rate() -> None:
    assert parse(SAID).rate == 1300


def test_output_without_figures_is_an_error() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        parse("unable to connect to 169.254.169.254:80 Connection refused\n")


@pytest.mark.parametrize(("clients", "threads"), [(1, 1), (8, 1), (32, 4), (256, 32)])
def test_no_guest_has_more_connections_than_its_limits_allow(clients: int, threads: int) -> None:
    assert Load(clients=clients, keep=False).threads == threads


def test_a_counter_is_found_by_its_name() -> None:
    assert counter(NETSTAT, "TcpExt", "TCPSynRetrans") == 12
    assert counter(NETSTAT, "IpExt", "InOctets") == 2


def test_a_counter_that_is_not_there_is_an_error() -> None:
    with pytest.raises(KeyError):
        counter(NETSTAT, "TcpExt", "InOctets")


def test_the_document_has_its_size_and_needs_no_quoting_in_nginx() -> None:
    assert len(document()) == BODY_SIZE
    assert not set("'$\\") & set(document())


def test_a_guest_sends_cloud_inits_28_requests() -> None:
    assert len(PATHS) == 28
    assert request("/openstack").startswith(b"GET /openstack HTTP/1.1\r\nHost: 169.254.169.254\r\n")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
    ],
)
def test_an_answer_is_whole_when_its_body_is(answer: bytes, expected: bool) -> None:
    assert whole(answer) is expected


def test_a_ratio_is_a_multiple_of_the_others_figure() -> None:
    run = report(**{IN_PROCESS: cell(200, p50=3.0), HAPROXY: cell(1000, p50=1.5)})
    assert ratio(run, IN_PROCESS, HAPROXY) == 0.2
    assert ratio(run, IN_PROCESS, HAPROXY, of="p50") == 2.0


def test_a_ratio_to_what_was_not_measured_is_not_a_number() -> None:
    run = report(**{IN_PROCESS: cell(200)})
    assert ratio(run, IN_PROCESS, HAPROXY) != ratio(run, IN_PROCESS, HAPROXY)


def test_a_target_is_missed_by_a_single_failed_request() -> None:
    run = report(**{IN_PROCESS: cell(200, failed=1), TWO_WORKERS: cell(400)})
    failed = {one.name: one.met for one in targets(run) if "failed" in one.name}
    assert failed == {
        "dfmeta, 32 clients, failed requests": False,
        "dfmeta, 256 clients, failed requests": False,
        "dfmeta, 2 workers, 32 clients, failed requests": True,
        "dfmeta, 2 workers, 256 clients, failed requests": True,
    }


def test_a_target_is_met_by_its_bound_alone() -> None:
    run = report(**{IN_PROCESS: cell(250), NEUTRON: cell(100), HAPROXY: cell(2000)})
    rates = [one for one in targets(run) if "requests a second" in one.name]
    assert [(one.value, one.met) for one in rates] == [(2.5, True), (0.125, False)]
    assert rates[0].wanted == "at least 2.5, aim 4"


def test_ipv6_is_compared_with_ipv4_in_each_round() -> None:
    # A single round in which the machine was busy with something else is not the result.
    run = report(
        **{
            IN_PROCESS: {**cell(100), "rates": [100, 100, 50]},
            IPV6: {**cell(100), "rates": [96, 10, 49]},
        }
    )
    found = [one for one in targets(run) if "IPv4" in one.name]
    assert [(one.value, one.bound, one.met) for one in found] == [(0.96, 0.95, True)] * 2


def test_ipv6_is_measured_beside_ipv4() -> None:
    assert {IN_PROCESS, IPV6, HAPROXY, NEUTRON} == set(chosen({IPV6}))
    assert {HAPROXY, NEUTRON, TWO_WORKERS} == set(chosen({TWO_WORKERS}))


def test_the_engine_haproxy_is_compared_with_peers_of_one_thread() -> None:
    ratios = {
        pair_name(mine, other): {"new 32": [2.0, 9.0, bound], "keep-alive 32": [bound - 0.1]}
        for mine, other, bound in COMPARED
    }
    found = [one for one in targets({"engine": {"ratios": ratios}}) if "1 thread's" in one.name]
    assert [(one.value, one.bound, one.met) for one in found] == [
        *((2.0, 1.0, True), (0.9, 1.0, False)),
        *((2.0, 1.5, True), (1.4, 1.5, False)),
    ]


class Turns:
    """Each of two proxies is asked under a load; the rates are given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rates: Iterable[float]) -> None:
        self.asked: list[str] = []
        left = iter(rates)

        def ask(direct: str, _proxy: object, _load: object, *, seconds: int) -> Cell:
            assert seconds == engine.SECONDS
            self.asked.append(direct)
            return replace(CELL, rate=next(left))

        monkeypatch.setattr(engine, "ask", ask)
        places: Any = {name: (SimpleNamespace(direct=name), None) for name in "ab"}
        self.comparison = engine.Comparison(places)


def test_each_turn_gives_a_ratio_whichever_proxy_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch, [1.0, 2.0, 4.0, 3.0, 1.0, 0.0])
    for swapped in (False, True, False):
        turns.comparison.turn(("a", "b"), LOADS[1], swapped=swapped)
    assert turns.asked == ["a", "b", "b", "a", "a", "b"]
    found = turns.comparison.report()
    *ratios, last = found["ratios"]["a / b"]["new 32"]
    assert ratios == [0.5, 0.75]
    assert math.isnan(last)
    assert found["proxies"]["b"]["new 32"]["rate"] == 2.0


def test_haproxys_memory_and_the_time_of_a_change_have_targets() -> None:
    times = {"p50": 1.0, "p99": 5.1, "longest": 9.0}
    run = {
        "memory": {HAPROXY_ALONE: {"0": 15.0, "1000": 24.0}},
        "map": {"10 entries, add": times, "5,000 entries, add": times},
    }
    assert [(one.value, one.bound, one.met) for one in targets(run)] == [
        (24.0, 25.0, True),
        (5.1, 5.0, False),
    ]


def test_a_proxy_that_was_not_measured_with_a_number_of_guests_has_a_dash() -> None:
    (table,) = tables({"memory": {"dfmeta": {"0": 80.0}, "haproxy": {"0": 15.0, "5000": 20.4}}})
    assert table.columns == ("MB with guests", "0", "5,000")
    assert table.rows == [("dfmeta", "80", "-"), ("haproxy", "15", "20")]


def test_the_tables_of_the_engine_haproxy_have_its_peers_and_the_ratios() -> None:
    proxies = report(**{IN_HAPROXY: cell(1000), IN_PROCESS: cell(100)})["throughput"]
    pair = pair_name(IN_HAPROXY, IN_PROCESS)
    ratios = {pair: {"new 32": [1.0, 3.0, 10.0], "keep-alive 32": [7.0]}}
    *_, rates, pairs = tables({"engine": {"proxies": proxies, "ratios": ratios}})
    assert list(rates.rows) == [(IN_HAPROXY, "1,000", "1,000"), (IN_PROCESS, "100", "100")]
    assert list(pairs.rows) == [(pair, "3", "7")]
    assert section(rates.title) == section(pairs.title) == "haproxy"


def test_changes_of_the_map_are_shown_with_their_percentiles() -> None:
    (table,) = tables({"map": {"10 entries, add": {"p50": 1.234, "p99": 2.0, "longest": 9.0}}})
    assert table.rows == [("10 entries, add", "1.23", "2", "9")]
    assert section(table.title) == "map"


def test_a_value_with_both_versions_is_a_multiple_of_that_with_ipv4_alone() -> None:
    both = {"cold flows": 150.0, "warm flow-mods": 0.0, "cold RSS MB": 110.0}
    alone = {"cold flows": 50.0, "warm flow-mods": 0.0, "cold RSS MB": 100.0}
    assert ratios(both, alone) == {"cold flows": 3.0, "cold RSS MB": 1.1}


@pytest.mark.parametrize(
    ("host", "expected"), [("169.254.169.254", "169.254.169.254"), ("fd00::a9fe", "[fd00::a9fe]")]
)
def test_a_url_has_an_ipv6_address_in_brackets(host: str, expected: str) -> None:
    assert bracketed(host) == expected


def test_only_what_was_measured_is_shown() -> None:
    run = report(**{HAPROXY: cell(1000)})
    assert [table.title for table in tables(run)] == [
        f"{clients}, {kind}"
        for kind in ("a connection for each request", "kept connections")
        for clients in ("1 client", "32 clients", "256 clients")
    ]


def test_a_table_is_written_as_docutils_reads_it() -> None:
    table = Table(title="Memory", columns=("MB", "0"), rows=[("dfmeta", "80")])
    assert restructured(table) == (
        ".. list-table:: Memory\n   :header-rows: 1\n\n"
        "   * - MB\n     - 0\n   * - dfmeta\n     - 80\n"
    )


def test_the_chart_has_two_bars_for_each_proxy_and_none_for_the_stand_in() -> None:
    cells = {IN_PROCESS: cell(200), HAPROXY: cell(1000), "nginx alone": cell(9000)}
    bars = [
        one for one in ET.fromstring(chart(report(**cells))).iter() if one.get("height") == "16"
    ]
    widths = [int(one.get("width", "0")) for one in bars]
    assert len(widths) == 4
    assert widths[0] * 5 == widths[1]


def reads(**rates: list[float]) -> dict[str, Any]:
    """A run of bench.store in which each had the same figures with every item and load."""
    loads = [f"{kind} {count}" for kind in ("new", "keep-alive") for count in (1, 32)]
    cells = {name: {**cell(each[0]), "rates": each} for name, each in rates.items()}
    return {
        "store reads": {
            name: {"meta_data.json": dict.fromkeys(loads, one)} for name, one in cells.items()
        }
    }


def test_a_ratio_to_forwarding_is_the_median_of_the_rounds() -> None:
    # One round in which the machine was busy with something else moves nothing.
    run = reads(**{FORWARDING: [100, 10, 100], SQLITE: [200, 180, 160]})
    assert store_targets.ratio(run, SQLITE, "meta_data.json", "new 32") == 2.0


def test_workers_are_held_against_workers() -> None:
    run = reads(
        **{
            FORWARDING: [100],
            SQLITE: [100],
            f"{FORWARDING}{WORKERS}": [300],
            f"{SQLITE}{WORKERS}": [150],
        }
    )
    assert store_targets.ratio(run, f"{SQLITE}{WORKERS}", "meta_data.json", "new 1") == 0.5


def test_the_store_is_wanted_faster_than_forwarding() -> None:
    found = list(store_targets.targets(reads(**{FORWARDING: [100], SQLITE: [149]})))
    assert [one.met for one in found] == [False, False, True]
    assert all("kept connections" in one.name for one in found[:-1])
    assert found[0].wanted == "at least 1.5, aim 2"
    assert found[-1].name == "failed requests in total"


def test_a_run_of_the_store_is_written_beside_the_proxys() -> None:
    run = reads(**{FORWARDING: [100], SQLITE: [200]})
    row = {"rate": 100.0, "p50": 1.0, "p99": 2.0, "writes": 10, "failed": 0}
    run |= {"store writes": {"Repository.push, SQLite": row}}
    assert {part for part, _table in store_tables.tables(run)} == {"targets", "reads", "writes"}
    where = dict.fromkeys(("cores", "processor", "kernel", "date"), "-")
    run |= {"machine": {**where, "load before": 0.0, "load after": 0.0}, "versions": {}}
    assert set(sections(run, "bench.store")) == {
        f"store-{part}" for part in ("machine", "targets", "reads", "writes")
    }


def test_the_first_guest_is_told_its_own_name() -> None:
    assert record(0)["hostname"] == hostname(0)
    assert list(expected(SQLITE).values()) == [f'"hostname": "{hostname(0)}"', hostname(0)]
    assert set(expected(FORWARDING).values()) == {document()}


def test_what_failed_to_be_written_is_counted_apart() -> None:
    found = store_writes.press(lambda _client, number: number % 2 == 0, 0.05)
    assert 0 < found.failed < found.writes
    assert found.rate > 0
