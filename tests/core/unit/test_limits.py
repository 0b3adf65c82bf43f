"""What a guest may take should be what the options say, and by default what the code says."""

from __future__ import annotations

from dataclasses import fields

from dfmeta.conf.limits import OPTS
from dfmeta.proxy.limits import Limits
from dfmeta.proxy.rate import RateSettings, Window
from dfmeta.wiring.limits import limits, rates, share
from tests.core.unit.support import Load


def test_without_a_configuration_the_limits_are_those_of_the_code(load: Load) -> None:
    assert limits(load()) == Limits()
    assert rates(load()) == RateSettings()


def test_every_limit_has_an_option_that_is_read(load: Load) -> None:
    numbers = {f"guest_limits__{option.name}": 2000 + n for n, option in enumerate(OPTS)}
    numbers |= {
        f"guest_limits__{option.name}": n + 20
        for n, option in enumerate(OPTS)
        if "timeout" in option.name
    }
    numbers["guest_limits__header_lines_max"] = 99
    read = limits(load(**numbers))
    values = [getattr(read, one.name) for one in fields(read) if one.name != "head"]
    values += [read.head.request_line, read.head.header, read.head.lines]
    assert sorted(values) == sorted(numbers.values())
    assert (read.body, read.requests_per_port) == (
        numbers["guest_limits__body_max"],
        numbers["guest_limits__requests_per_port"],
    )


def test_the_rates_are_neutrons(load: Load) -> None:
    group = {
        "rate_limit_enabled": True,
        "ip_versions": "4,6",
        "base_window_duration": 60,
        "base_query_rate_limit": 50,
        "burst_window_duration": 1,
        "burst_query_rate_limit": 5,
        "delay_max": 1,
        "tolerated_queries": 7,
    }
    read = rates(
        load(**{f"metadata_rate_limiting__{name}": value for name, value in group.items()})
    )
    assert read == RateSettings(
        enabled=True,
        ip_versions=frozenset({4, 6}),
        base=Window(50, 60),
        burst=Window(5, 1),
        delay_max=1,
        tolerated=7,
    )


def test_workers_share_what_a_port_is_served_and_refuse_none_sooner() -> None:
    whole = Limits(connections_per_port=16, waiting_per_port=48, requests_per_port=9)
    assert share(whole, 1) == whole
    part = share(whole, 3)
    assert (part.connections_per_port, part.requests_per_port) == (6, 3)
    assert part.connections_per_port + part.waiting_per_port == 64
    assert part.connections == whole.connections
    assert share(whole, 64).requests_per_port == 1
