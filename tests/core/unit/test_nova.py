"""Nova should get exactly what it needs to know, and its answer reach the guest as it is."""

import errno
import socket
import ssl
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dfmeta import metrics
from dfmeta.errors import (
    BackendAnswerError,
    BackendError,
    BackendTimeoutError,
    BackendUnreachableError,
)
from dfmeta.http.pool import KeptConnection
from dfmeta.model import GuestRequest, Identity
from dfmeta.proxy.backends import nova, nova_requests
from dfmeta.proxy.backends.nova_requests import explain
from dfmeta.runtime import clock
from dfmeta.runtime.throttle import FIRST_PAUSE
from tests.core.unit.nova_support import PASSWORD, SIGNATURE, Counted, answering, ask, get, nowhere
from tests.core.unit.support import INSTANCE, PROJECT
from tests.core.unit.upstream import OK, Asked, Upstream, close, hang
from tests.harness.examples import examples
from tests.harness.tier import CLOCK

ALLOWED = {
    "host",
    "x-instance-id",
    "x-tenant-id",
    "x-instance-id-signature",
    "x-forwarded-for",
    "accept-encoding",
    "user-agent",
    "accept",
    "content-type",
    "content-length",
    "connection",
}


def test_request_is_signed_and_has_the_guests_identity(upstream: Upstream, backend: Any) -> None:
    answer = ask(backend(upstream), get(query="a=b&c"))
    assert (answer.status, answer.body, answer.content_type) == (200, b"{}", "application/json")
    (request,) = upstream.asked
    assert request.line == "GET /openstack/latest/meta_data.json?a=b&c HTTP/1.1"
    assert request.header("X-Instance-ID") == [INSTANCE]
    assert request.header("X-Tenant-ID") == [PROJECT]
    assert request.header("X-Instance-ID-Signature") == [SIGNATURE]
    assert request.header("X-Forwarded-For") == ["10.0.0.5"]
    assert request.header("Accept-Encoding") == ["identity"]


HOSTILE = ["X-Metadata-Provider", "x-instance-id", "X_Instance_ID", "X-Forwarded-For", "Host"]
NAMES = st.one_of(st.sampled_from(HOSTILE), st.text("abcdefxy-_", min_size=1, max_size=20))
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF), max_size=30)


def test_a_guests_own_headers_never_reach_nova(upstream: Upstream, backend: Any) -> None:
    asking = backend(upstream)

    @settings(deadline=None, max_examples=examples(26))
    @given(st.dictionaries(NAMES.map(str.lower), VALUES, max_size=6), st.sampled_from("GP"))
    @example({"x-metadata-provider": "lb", "x-metadata-provider-signature": "f" * 64}, "G")
    @example({"transfer-encoding": "chunked", "content-length": "5", "expect": "x"}, "P")
    def check(headers: dict[str, str], method: str) -> None:
        upstream.asked.clear()
        if method == "G":
            ask(asking, get(headers=headers))
        else:
            ask(asking, GuestRequest("POST", PASSWORD.path, headers=headers, body=b"x"))
        (request,) = upstream.asked
        names = [name.lower() for name, _value in request.headers]
        assert set(names) <= ALLOWED
        assert len(names) == len(set(names))
        assert request.header("X-Instance-ID") == [INSTANCE]
        assert request.header("X-Instance-ID-Signature") == [SIGNATURE]
        assert request.header("Host") == [upstream.host.authority]

    check()


@pytest.mark.parametrize("fold", ["\r\n ", "\n\t"])
@pytest.mark.parametrize("name", ["accept", "content-type"])
def test_folded_header_carries_none(upstream: Upstream, backend: Any, fold: str, name: str) -> None:
    headers = {name: f"text/plain{fold}x-metadata-provider: lb"}
    ask(backend(upstream), GuestRequest("POST", PASSWORD.path, headers=headers, body=b"x"))
    names = {key.strip().lower() for key, _value in upstream.asked[0].headers}
    assert "x-metadata-provider" not in names


PATHS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="?"))


def test_no_path_leads_to_another_host(upstream: Upstream, backend: Any) -> None:
    asking = backend(upstream)

    @settings(deadline=None, max_examples=examples(26))
    @given(PATHS)
    @example("/evil.example/openstack")
    @example("@evil.example/")
    @example("..//[::1]:80/")
    def check(path: str) -> None:
        upstream.asked.clear()
        ask(asking, get("/" + path))
        (request,) = upstream.asked
        method, target, _version = request.line.split(" ")
        assert method == "GET"
        assert target.startswith("/")
        assert not target.startswith("//")
        assert request.header("Host") == [upstream.host.authority]

    check()


def test_password_is_forwarded_unchanged(upstream: Upstream, backend: Any) -> None:
    request = GuestRequest("POST", PASSWORD.path, headers={"content-type": "x/y"}, body=b"\0\xff")
    ask(backend(upstream), request)
    (received,) = upstream.asked
    assert (received.body, received.header("content-type")) == (b"\0\xff", ["x/y"])
    assert received.header("content-length") == ["2"]


def test_a_get_is_asked_again_until_there_is_an_answer(upstream: Upstream, backend: Any) -> None:
    upstream.script = lambda _request: OK if len(upstream.asked) > 6 else None
    held = metrics.HELD_REQUESTS.labels("backend")
    before = held._value.get()
    assert ask(backend(upstream)).status == 200
    assert held._value.get() == before + 1, "one request, however often it was asked"


def test_unanswered_password_is_sent_once(upstreams: Callable[..., Upstream], backend: Any) -> None:
    for script in (hang, close):
        first, second = upstreams(script), upstreams()
        with pytest.raises(BackendTimeoutError, match=r"has not answered|without an answer"):
            ask(backend(first, second), PASSWORD)
        assert (len(first.asked), len(second.asked)) == (1, 0)


def test_unsent_password_goes_to_the_next_host(upstream: Upstream, backend: Any) -> None:
    assert ask(backend(nowhere(), upstream), PASSWORD).status == 200
    assert len(upstream.asked) == 1


def test_rested_host_is_asked_again(upstreams: Callable[..., Upstream], backend: Any) -> None:
    first, second = upstreams(close), upstreams()
    asking = backend(first, second)
    ask(asking)
    first.script = lambda _request: OK
    CLOCK.advance(nova.REST - 1)
    ask(asking)
    assert len(first.asked) == 1
    CLOCK.advance(1)
    ask(asking)
    assert len(first.asked) == 2


def test_slow_host_leaves_half_the_time(upstreams: Callable[..., Upstream], backend: Any) -> None:
    slow, quick = upstreams(hang), upstreams()
    begun = clock.now()
    assert ask(backend(slow, quick), seconds=100).status == 200
    assert clock.now() - begun == pytest.approx(50)
    assert (len(slow.asked), len(quick.asked)) == (1, 1)


def test_late_request_is_an_error_that_names_the_host(upstream: Upstream, backend: Any) -> None:
    upstream.script = hang
    named = f"nova: {upstream.host.authority} has not answered within 7.0 s"
    with pytest.raises(BackendTimeoutError, match=named):
        ask(backend(upstream), seconds=7)
    with pytest.raises(BackendError):
        ask(backend(upstream), seconds=0)
    assert len(upstream.asked) == 1, "without any time there is no request"


def test_connection_of_a_late_request_is_not_reused(upstream: Upstream, backend: Any) -> None:
    asking = backend(upstream)
    ask(asking)
    before, upstream.script = upstream.script, hang
    with pytest.raises(BackendTimeoutError):
        ask(asking, seconds=7)
    upstream.script = before
    counted = Counted("connections")
    assert ask(asking).status == 200
    assert counted.grown() == {"opened": 1}


def test_last_try_has_time_for_an_answer(upstream: Upstream, backend: Any) -> None:
    def script(_request: Asked) -> None:
        # Too little time is left then for a pause and another try.
        CLOCK.advance(100 - FIRST_PAUSE)

    upstream.script = script
    with pytest.raises(BackendUnreachableError):
        ask(backend(upstream), seconds=100)
    assert len(upstream.asked) == 1


HEAD = GuestRequest("HEAD", "/openstack/latest/meta_data.json")


def saying(upstream: Upstream, answer: bytes) -> None:
    upstream.script = lambda _request: answer


def test_a_head_has_the_length_and_no_body(upstream: Upstream, backend: Any) -> None:
    saying(upstream, b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\nETag: x\r\n\r\n")
    asking = backend(upstream)
    for _ in range(2):
        answer = ask(asking, HEAD)
        assert answer.body == b""
        assert answer.headers == (("etag", "x"), ("content-length", "999"))


def test_404_of_a_common_path_is_an_unknown_instance(upstream: Upstream, backend: Any) -> None:
    asking = backend(upstream)
    for status, path, is_known in (
        (404, "/openstack/latest/meta_data.json", False),
        (404, "/openstack/latest/user_data", True),
        (403, "/openstack/latest/meta_data.json", True),
    ):
        saying(upstream, b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status)
        assert ask(asking, GuestRequest("GET", path)).known == is_known, (status, path)


def test_hop_by_hop_headers_end_here_and_others_pass(upstream: Upstream, backend: Any) -> None:
    saying(
        upstream,
        answering(
            "200 OK\r\nConnection: keep-alive, X-Private\r\nX-Private: 1\r\nKeep-Alive: x\r\n"
            "Upgrade: h2c\r\nTrailer: x\r\nTE: x\r\nProxy-Authenticate: x\r\nServer: nova\r\n"
            "Date: today\r\nX-Shown: 2\r\nETag: abc\r\nx-shown: 1, 3\r\nStatus: odd",
            b"{}",
        ),
    )
    assert ask(backend(upstream)).headers == (
        ("x-shown", "2"),
        ("etag", "abc"),
        ("x-shown", "1, 3"),
        ("status", "odd"),
    )


def test_redirect_is_not_followed(upstream: Upstream, backend: Any) -> None:
    place = "http://127.0.0.1:1/"
    for status in (301, 302, 303, 307, 308):
        saying(upstream, answering(f"{status} x\r\nLocation: {place}"))
        for request in (get(), PASSWORD):
            upstream.asked.clear()
            answer = ask(backend(upstream), request)
            assert (answer.status, answer.headers) == (status, (("location", place),))
            assert len(upstream.asked) == 1, status


def test_too_large_answer_is_not_requested_again(
    upstream: Upstream, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KeptConnection, "body_max", 99)
    saying(upstream, answering("200 OK", b"x" * 100))
    with pytest.raises(BackendAnswerError, match="larger than 99 bytes") as caught:
        ask(backend(upstream))
    assert caught.value.remedy
    assert len(upstream.asked) == 1


def test_malformed_answer_leads_to_the_next_host(upstreams: Any, backend: Any) -> None:
    garbling, sound = upstreams(lambda _request: b"what?\r\n\r\n"), upstreams()
    retries = Counted("retries")
    assert ask(backend(garbling, sound)).status == 200
    assert (len(garbling.asked), retries.grown()) == (1, {"broken": 1})


def test_path_is_forwarded_as_written(upstream: Upstream, backend: Any) -> None:
    asking = backend(upstream)
    for path, query, target in (
        ("//a//b/", "", "/a//b/"),
        ("/a%2Db/../c", "x=%2F&y", "/a%2Db/../c?x=%2F&y"),
        ("/a#b", "#", "/a#b?#"),
        ("/\xe4", "\xfc y", "/%E4?%FC%20y"),
        ("/a\r\nX-Metadata-Provider: x", "", "/a%0D%0AX-Metadata-Provider:%20x"),
    ):
        ask(asking, get(path, query=query))
        assert upstream.asked[-1].line == f"GET {target} HTTP/1.1"


def test_an_id_that_cannot_stand_in_a_header_is_not_sent(upstream: Upstream, backend: Any) -> None:
    asking = backend(upstream)
    odd = ("a\r\nX-Metadata-Provider: x", "a\n", "\xe9", "\u2028", "")
    for ids in (*((text, PROJECT) for text in odd), *(("i", text) for text in odd)):
        with pytest.raises(BackendError, match="not a valid header value") as caught:
            asking.answer(get(), Identity(*ids, "p", "t", incarnation=1), deadline=clock.now() + 60)
        assert caught.value.remedy
    assert upstream.asked == []


def test_status_of_a_fault_comes_with_a_remark(backend: Any, upstream: Upstream) -> None:
    nova_backend = backend(upstream)
    for status, words in (
        (403, "metadata_proxy_shared_secret differs from [neutron]"),
        (400, "nova_metadata_protocol and nova_client_cert"),
        (500, "see its log"),
        (200, ""),
        (404, ""),
    ):
        saying(upstream, answering(f"{status} x"))
        remark = ask(nova_backend, get()).remark
        assert words in remark, status
        assert bool(remark) is bool(words), status


def tls(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, "as OpenSSL says it")
    error.reason = reason
    return error


def unverified(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "as OpenSSL says it")
    error.verify_code, error.verify_message = code, "why"
    return error


@pytest.mark.parametrize(
    ("error", "cause", "remedy"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), "connection refused", "listens there"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "No route to host", "a route to it"),
        (TimeoutError(errno.ETIMEDOUT, "x"), "connection timed out", "firewall"),
        (ConnectionResetError(errno.ECONNRESET, "x"), "closed the connection", "its log"),
        (socket.gaierror(socket.EAI_NONAME, "x"), "cannot be resolved", "nova_metadata_host"),
        (tls("TLSV13_ALERT_CERTIFICATE_REQUIRED"), "CERTIFICATE_REQUIRED", nova_requests.CLIENT),
        (tls("WRONG_VERSION_NUMBER"), "WRONG_VERSION_NUMBER", nova_requests.NO_TLS),
        (tls("SOMETHING_NEW"), "SOMETHING_NEW", nova_requests.READ_LOG),
        (unverified(20), "CERTIFICATE_VERIFY_FAILED: why", nova_requests.AUTHORITY),
        (unverified(10), "CERTIFICATE_VERIFY_FAILED: why", nova_requests.CLOCK),
        (unverified(62), "CERTIFICATE_VERIFY_FAILED: why", nova_requests.NAME),
        (unverified(999), "CERTIFICATE_VERIFY_FAILED: why", "Fix Nova's certificate"),
    ],
    ids=str,
)
def test_failure_has_its_cause_and_a_remedy(error: Exception, cause: str, remedy: str) -> None:
    shown, advice = explain(error)
    assert cause in shown
    assert remedy in advice
    assert "as OpenSSL says it" not in shown
