"""What Nova answers should reach the guest as it is, and nothing else should."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from dfmeta.exceptions import BackendAnswerError, BackendError
from dfmeta.model import Answer, GuestRequest, Identity
from dfmeta.proxy.nova import replies
from dfmeta.runtime import clock
from tests.core.unit.nova_support import PASSWORD, Counted, answering, ask, get
from tests.core.unit.support import PROJECT
from tests.core.unit.upstream import Upstream

HEAD = GuestRequest("HEAD", "/openstack/latest/meta_data.json")


def saying(upstream: Upstream, answer: bytes) -> None:
    upstream.script = lambda _asked: answer


def test_a_head_has_the_length_and_no_body(upstream: Upstream, backend: Any) -> None:
    saying(upstream, b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\nETag: x\r\n\r\n")
    asking = backend(upstream)
    for _ in range(2):
        answer = ask(asking, HEAD)
        assert answer.body == b""
        assert answer.headers == (("etag", "x"), ("content-length", "999"))


def test_body_comes_byte_for_byte(upstream: Upstream, backend: Any) -> None:
    body = gzip.compress(bytes(range(256)) * 400, mtime=0)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=UTF-8\r\nContent-Encoding: gzip"

    def until_the_end(_asked: object) -> None:
        upstream.connections[-1].sendall(b"%b\r\n\r\n%b" % (head, body))

    for script in (
        lambda _asked: b"%b\r\nContent-Length: %d\r\n\r\n%b" % (head, len(body), body),
        until_the_end,
    ):
        upstream.script = script
        wanted = Answer(200, body, headers=(("content-encoding", "gzip"),))
        assert ask(backend(upstream)) == wanted


def test_hop_by_hop_headers_end_here_and_others_pass(upstream: Upstream, backend: Any) -> None:
    saying(
        upstream,
        answering(
            "200 OK\r\nConnection: keep-alive, X-Private\r\nX-Private: 1\r\nKeep-Alive: x\r\n"
            "Upgrade: h2c\r\nTrailer: x\r\nTE: x\r\nProxy-Authenticate: x\r\nServer: nova\r\n"
            "Date: today\r\nX-Shown: 2\r\nETag: abc\r\nContent-Location: /x\r\nStatus: odd",
            b"{}",
        ),
    )
    assert ask(backend(upstream)).headers == (
        ("x-shown", "2"),
        ("etag", "abc"),
        ("content-location", "/x"),
        ("status", "odd"),
    )


def test_headers_of_one_name_stay_apart_and_in_order(upstream: Upstream, backend: Any) -> None:
    lines = "Set-Cookie: a=1, x\r\nWarning: 1\r\nset-cookie: b=2"
    saying(upstream, answering(f"200 OK\r\n{lines}", b"{}"))
    assert ask(backend(upstream)).headers == (
        ("set-cookie", "a=1, x"),
        ("warning", "1"),
        ("set-cookie", "b=2"),
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


def test_an_answer_that_is_too_large_is_asked_for_once(
    upstream: Upstream, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(replies.read_reply.__kwdefaults__, "body_max", 99)
    saying(upstream, answering("200 OK", b"x" * 100))
    with pytest.raises(BackendAnswerError, match="larger than 99 bytes") as caught:
        ask(backend(upstream))
    assert caught.value.remedy
    assert len(upstream.asked) == 1


def test_malformed_answer_leads_to_the_next_host(upstreams: Any, backend: Any) -> None:
    garbling, sound = upstreams(lambda _asked: b"what?\r\n\r\n"), upstreams()
    retries = Counted("retries")
    assert ask(backend(garbling, sound)).status == 200
    assert (len(garbling.asked), retries.grown()) == (1, {"broken": 1})


def test_path_goes_on_as_it_was_written(upstream: Upstream, backend: Any) -> None:
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
    for ids in (*((one, PROJECT) for one in odd), *(("i", one) for one in odd)):
        with pytest.raises(BackendError, match="not a valid header value") as caught:
            asking.answer(get(), Identity(*ids, "p", "t", incarnation=1), deadline=clock.now() + 60)
        assert caught.value.remedy
    assert upstream.asked == []


def test_status_of_a_fault_comes_with_a_remark(backend: Any, upstream: Upstream) -> None:
    for status, words in (
        (403, "metadata_proxy_shared_secret differs from [neutron]"),
        (400, "nova_metadata_protocol and nova_client_cert"),
        (500, "see its log"),
        (502, "a proxy in front of it"),
        (503, "see its log"),
        (200, ""),
        (204, ""),
        (404, ""),
        (409, ""),
    ):
        remark = backend(upstream).remark(status)
        assert words in remark, status
        assert bool(remark) is bool(words), status
