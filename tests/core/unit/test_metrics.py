"""What several processes have counted should be added up, family by family."""

import json

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dfmeta import metrics


class Collected(CollectorRegistry):
    def __init__(self, families: list[metrics.Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> list[metrics.Metric]:
        return self._families


def written(families: list[metrics.Metric]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = generate_latest(Collected(families)).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_samples_survive_json() -> None:
    metrics.REQUESTS.labels("2xx", "store").inc()
    sent = metrics.samples_from(json.loads(json.dumps(metrics.samples())))
    before = written(list(metrics.REGISTRY.collect()))
    assert {key: sent[key] for key in before} == before


def test_gauges_of_an_ended_process_are_dropped() -> None:
    counted: metrics.Samples = {
        ("dfmeta_request_seconds_count", ()): 2.0,
        ("dfmeta_hub_longest_stall_seconds", ()): 9.0,
    }
    had: metrics.Samples = {("dfmeta_open_connections", ()): 3.0}
    assert metrics.lasting({**counted, **had}) == counted


def test_counters_and_buckets_are_added_and_the_longest_stall_is_the_longest() -> None:
    metrics.REQUESTS.labels("2xx", "store").inc()
    metrics.REQUEST_SECONDS.observe(0.0003)
    before = written(list(metrics.REGISTRY.collect()))
    other: metrics.Samples = {
        ("dfmeta_requests_total", (("backend", "store"), ("status", "2xx"))): 5.0,
        ("dfmeta_requests_total", (("backend", "nova"), ("status", "9xx"))): 7.0,
        ("dfmeta_request_seconds_bucket", (("le", "0.0005"),)): 2.0,
        ("dfmeta_request_seconds_count", ()): 2.0,
        ("dfmeta_request_seconds_sum", ()): 0.5,
        ("dfmeta_hub_longest_stall_seconds", ()): 9.0,
        ("dfmeta_requests_of_another_kind_total", ()): 1.0,
    }
    both = written(metrics.merged([other, other]))
    changed = {
        key: both[key] - before.get(key, 0.0) for key in both if both[key] != before.get(key)
    }
    wanted = {key: 2 * value for key, value in other.items()}
    del wanted["dfmeta_requests_of_another_kind_total", ()]
    longest = ("dfmeta_hub_longest_stall_seconds", ())
    wanted[longest] = 9.0 - before[longest]
    assert changed == pytest.approx(wanted)
