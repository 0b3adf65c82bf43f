"""The bench should read the output of its programs correctly."""

from typing import Any

from bench.load import parse
from bench.targets import HAPROXY, IN_PROCESS, NEUTRON, TWO_WORKERS, targets

SAID = (
    "Running 3s test @ http://169.254.169.254:18080/\n  2 threads and 32 connections\n"
    "Requests/sec:   1000.00\n"
    '{"requests": 3000, "microseconds": 2000000, "p50": 250, "p99": 4000, "max": 9000, '
    '"connect": 1, "read": 2, "write": 3, "status": 400, "timeout": 5}\n'
)


def cell(rate: float, *, p50: float = 1.0, failed: int = 0) -> dict[str, Any]:
    kept = {"p99": 2.0, "requests": 100, "resent": 0, "cpu": 0.5, "memory": 80.0}
    return {"rate": rate, "p50": p50, "failed": failed, **kept}


def report(**cells: dict[str, Any]) -> dict[str, Any]:
    """A run in which each proxy had the same figures under every load."""
    loads = [f"{kind} {count}" for kind in ("new", "keep-alive") for count in (1, 32, 256)]
    return {"throughput": {name: dict.fromkeys(loads, cell) for name, cell in cells.items()}}


def test_the_generators_figures_are_read_behind_its_own_report() -> None:
    outcome = parse(SAID)
    assert (outcome.requests, outcome.seconds) == (3000, 2.0)
    assert (outcome.p50, outcome.p99) == (0.25, 4.0)
    assert (outcome.failed, outcome.causes["status"], outcome.rate) == (411, 400, 1300)


def test_a_target_is_missed_by_a_single_failed_request() -> None:
    run = report(**{IN_PROCESS: cell(200, failed=1), TWO_WORKERS: cell(400)})
    failed = {target.name: target.met for target in targets(run) if "failed" in target.name}
    assert failed == {
        "dfmeta, 32 clients, failed requests": False,
        "dfmeta, 256 clients, failed requests": False,
        "dfmeta, 2 workers, 32 clients, failed requests": True,
        "dfmeta, 2 workers, 256 clients, failed requests": True,
    }


def test_a_target_is_met_by_its_bound_alone() -> None:
    run = report(**{IN_PROCESS: cell(250), NEUTRON: cell(100), HAPROXY: cell(2000)})
    rates = [target for target in targets(run) if "requests a second" in target.name]
    assert [(rate.value, rate.met) for rate in rates] == [(2.5, True), (0.125, False)]
    assert rates[0].wanted == "at least 2.5, aim 4"
