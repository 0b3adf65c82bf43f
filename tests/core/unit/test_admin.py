"""The admin listener should tell health, metrics, version and listings, and nothing else."""

import gzip
import platform
from importlib.metadata import version
from pathlib import Path

import eventlet
import pytest
import webob
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families
from webob.dec import wsgify

from dfmeta.admin import listener as admin
from dfmeta.admin.listener import AdminApplication, ListingCache
from dfmeta.errors import StartError
from dfmeta.runtime import clock
from dfmeta.runtime.clock import CHECK_INTERVAL
from dfmeta.runtime.hub import Health
from tests.harness.tier import CLOCK

ROWS = [{"port": "tap1", "ofport": 13}]


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def application(health: Health) -> AdminApplication:
    metrics = CollectorRegistry()
    Counter("dfmeta_test", "A counter", registry=metrics).inc(3)
    return AdminApplication(health, metrics.collect, {"/ports": lambda: ROWS})


def ask(application: AdminApplication, path: str, method: str = "GET") -> webob.Response:
    request = webob.Request.blank(path, method=method)
    return request.get_response(wsgify(application))


def test_liveness_is_200_before_readiness(application: AdminApplication, health: Health) -> None:
    health.watch("ovsdb", lambda: False)
    for path in ("/healthz", "/healthz/liveness"):
        response = ask(application, path)
        assert (response.status_int, response.json) == (200, {"status": "UP"})
        assert response.content_type == "application/json"


def test_daemon_is_ready_with_all_conditions(application: AdminApplication, health: Health) -> None:
    conditions = {"ovsdb": False, "flows": False, "proxy": True}
    for name in conditions:
        health.watch(name, lambda name=name: conditions[name])
    response = ask(application, "/healthz/readiness")
    assert response.status_int == 503
    assert response.json == {"status": "DOWN", "missing": ["ovsdb", "flows"]}
    conditions |= {"ovsdb": True, "flows": True}
    response = ask(application, "/healthz/readiness")
    assert (response.status_int, response.json) == (200, {"status": "UP"})


PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPEN = "application/openmetrics-text; version="


def test_metrics_are_in_the_format_that_is_asked_for(application: AdminApplication) -> None:
    for accept, kind in (
        ("", PLAIN),
        ("*/*", PLAIN),
        ("text/plain", PLAIN),
        ("text/plain;version=0.0.4;q=0.5, */*", PLAIN),
        ("text/html,application/xhtml+xml", PLAIN),
        ("application/openmetrics-text; version=x", PLAIN),
        ("application/openmetrics-text;version=9.9.9", PLAIN),
        ("application/openmetrics-text;version=1..0,*/*", PLAIN),
        ("application/openmetrics-text; version=1.0.0", f"{OPEN}1.0.0"),
        ("application/openmetrics-text", OPEN),
        (f"{OPEN}1.0.0;q=0.5,{OPEN}0.0.1;q=0.4,text/plain;q=0.3,*/*;q=0.1", f"{OPEN}1.0.0"),
    ):
        request = webob.Request.blank("/metrics", headers={"Accept": accept})
        response = request.get_response(wsgify(application))
        assert response.status_int == 200
        assert response.headers["Content-Type"].startswith(kind), accept
        assert "dfmeta_test_total 3.0" in response.text
        assert response.text.endswith("# EOF\n") is (kind != PLAIN)
        assert int(response.headers["Content-Length"]) == len(response.body)


def test_metrics_are_compressed_for_a_client_that_accepts_gzip(
    application: AdminApplication,
) -> None:
    plain = (None, "", "identity", "br, deflate", "gzip;q=0", "x;;,")
    gzipped = ("gzip", "deflate, GZIP;q=0.8", "*")
    for accepted in (*plain, *gzipped):
        coding = "gzip" if accepted in gzipped else None
        headers = {} if accepted is None else {"Accept-Encoding": accepted}
        request = webob.Request.blank("/metrics", headers=headers)
        response = request.get_response(wsgify(application))
        assert response.headers.get("Content-Encoding") == coding, accepted
        text = gzip.decompress(response.body) if coding else response.body
        assert b"dfmeta_test_total 3.0" in text, accepted
        assert response.headers["Vary"] == "Accept, Accept-Encoding"
        assert response.headers["Content-Length"] == str(len(response.body))


def test_metrics_of_the_process_are_those_of_this_process(application: AdminApplication) -> None:
    families = text_string_to_metric_families(ask(application, "/metrics").text)
    samples = {sample.name: sample for family in families for sample in family.samples}
    started = Path("/proc/self").stat().st_ctime
    assert abs(samples["process_start_time_seconds"].value - started) < 60
    assert 0 < samples["process_open_fds"].value < samples["process_max_fds"].value
    assert samples["process_resident_memory_bytes"].value > 1 << 20
    build = samples["dfmeta_build_info"]
    assert build.labels == {"version": version("dfmeta"), "python": platform.python_version()}
    assert build.value == 1


def test_version_is_that_of_the_package(application: AdminApplication) -> None:
    assert ask(application, "/version").json == {"version": version("dfmeta")}


def test_an_unknown_path_is_404_and_another_method_405(application: AdminApplication) -> None:
    for path in ("/", "/healthz/x", "/ports/", "/openstack", "/metrics/..", "/no/such", "/%ff"):
        for method in ("GET", "HEAD", "POST", "DELETE"):
            assert ask(application, path, method).status_int == 404, (method, path)
    assert ask(application, "/no/such").json == {"message": "invalid request - route not found"}
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        response = ask(application, "/healthz", method)
        assert (response.status_int, response.headers["Allow"]) == (405, "GET, HEAD"), method
    head = ask(application, "/ports", "HEAD")
    assert (head.status_int, head.body) == (200, b"")


class Api:
    def handles(self, path: str) -> bool:
        return path.startswith("/api")

    def __call__(self, request: webob.Request) -> webob.Response:
        return webob.Response(request.method)


def test_listing_is_made_once_for_requests_that_come_together(health: Health) -> None:
    made = list[float]()

    def rows() -> object:
        made.append(clock.now())
        eventlet.sleep(0.05)
        return ROWS

    application = AdminApplication(health, list, {"/ports": rows, "/probe": rows})
    asks = [eventlet.spawn(ask, application, "/ports") for _ in range(8)]
    assert [request.wait().json for request in asks] == [ROWS] * 8
    assert len(made) == 1
    CLOCK.advance(0.6)
    assert ask(application, "/ports").json == ROWS
    assert len(made) == 2
    for _ in range(2):
        ask(application, "/probe")
    assert len(made) == 4


def test_listing_that_takes_long_is_reused_for_a_second() -> None:
    made = list[None]()

    def rows() -> object:
        made.append(eventlet.sleep(3))
        return len(made)

    listing = ListingCache(rows, apart=lambda encode, value: encode(value))
    assert (listing.text(), listing.text()) == (b"1", b"1")
    CLOCK.advance(CHECK_INTERVAL)
    assert listing.text() == b"2"
    listing.forget()
    assert listing.text() == b"3"


def test_an_api_answers_its_own_paths_and_no_others(health: Health) -> None:
    application = AdminApplication(health, list, {"/ports": lambda: ROWS}, api=Api())
    assert ask(application, "/api/x", "DELETE").text == "DELETE"
    assert ask(application, "/ports").json == ROWS
    assert ask(application, "/healthz", "DELETE").status_int == 405
    assert ask(application, "/no/such").status_int == 404


def test_a_web_page_of_another_site_gets_no_ports(application: AdminApplication) -> None:
    for name in ("Host", "Origin"):
        for path, status in (("/ports", 403), ("/healthz", 200)):
            request = webob.Request.blank(path, headers={name: "http://evil.example"})
            assert request.get_response(wsgify(application)).status_int == status


def test_the_page_is_served_for_get_and_head(health: Health) -> None:
    application = AdminApplication(health, list, {}, page=lambda _: webob.Response("a page"))
    assert ask(application, "/").text == "a page"
    head = ask(application, "/", "HEAD")
    assert (head.status_int, head.body) == (200, b"")
    assert ask(application, "/", "POST").status_int == 405
    assert ask(application, "//").status_int == 404


def test_occupied_address_stops_the_start(application: AdminApplication) -> None:
    server = admin.serve("127.0.0.1:0", application)
    place = f"127.0.0.1:{server.port}"
    with pytest.raises(StartError, match=f"cannot listen on .*admin_listen = {place}: "):
        admin.serve(place, application)
    server.stop(0.0)
