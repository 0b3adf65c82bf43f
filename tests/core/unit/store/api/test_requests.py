"""What is pushed or imported should be stored as it is, or refused with every reason there is."""

import base64
import json
import re
from collections.abc import Iterable
from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfmeta.errors import ApiError
from dfmeta.store import strictjson
from dfmeta.store.api.checks import parse_seed
from dfmeta.store.api.requests import ADDRESSES_MAX, Push, body_of, parse_line, parse_push
from dfmeta.store.db.record import KEEP, Kind, dump_document
from tests.core.unit.store.support import named
from tests.core.unit.support import INSTANCE
from tests.harness.examples import examples

GOOD: dict[str, dict[str, Any]] = {
    Kind.METADATA: {"id": INSTANCE, "metadata": {"hostname": "web1"}},
    Kind.USERDATA: {"id": INSTANCE, "userdata": "#!/bin/sh\n"},
}


def push(kind: Kind = Kind.METADATA, **changed: object) -> Push:
    """Parse a good body with some members changed; None as a value stays null."""
    return parse_push(kind, json.dumps(GOOD[kind] | changed).encode())


def errors(kind: Kind, members: dict[str, object]) -> list[str]:
    with pytest.raises(ApiError) as caught:
        parse_push(kind, json.dumps(members).encode())
    assert (caught.value.status, caught.value.message) == (400, "Invalid request")
    return [
        error.removeprefix("validation failed on ").replace(", condition: ", " ")
        for error in caught.value.errors
    ]


def wrong(kind: Kind = Kind.METADATA, **changed: object) -> list[str]:
    return errors(kind, GOOD[kind] | changed)


def refused(body: bytes, kind: Kind = Kind.METADATA) -> None:
    with pytest.raises(ApiError) as caught:
        parse_push(kind, body)
    assert (caught.value.status, caught.value.message) == (400, "invalid request body")
    assert not caught.value.errors


def test_every_error_is_told_in_the_order_of_the_fields() -> None:
    members: dict[str, object] = {
        "ipAddresses": ["192.0.2.1", "a.b.c.d", "a:b:c:d:e:f:g:h"],
        "http_tokens": "always",
        "metadata": "[]",
        "id": "abc123",
    }
    assert errors(Kind.METADATA, members) == [
        "id uuid",
        "metadata json",
        "ipAddresses[1] ip_addr|cidr",
        "ipAddresses[2] ip_addr|cidr",
        "http_tokens oneof",
    ]


def rejects(error: str, values: Iterable[object], kind: Kind = Kind.METADATA, **more: Any) -> None:
    """Each value of the member that the error names is refused with that error alone."""
    name = re.split(r"[ .\[]", error)[0]
    for value in values:
        assert wrong(kind, **{name: value, **more}) == [error], value


def test_a_value_of_the_wrong_kind_is_refused() -> None:
    uuid = (f"{{{INSTANCE}}}", f"{INSTANCE}\n", INSTANCE.replace("-", ""))
    other = (INSTANCE.replace("6", "\uff16"),)
    rejects("id required", ["", None])
    rejects("id required", ["", None], Kind.USERDATA)
    rejects("id uuid", [*uuid, *other, 5, True, [INSTANCE], {}])
    rejects("metadata required", ["", None])
    rejects("metadata json", ["[]", "null", "{", '{"a":1,"a":2}', "\ufeff{}", 5, [], True])
    keys = ({"ssh_keys": ["ssh-rsa AAAA", "web1"]}, {"ssh_keys": [None, "ssh-rsa AAAA\nx"]})
    rejects("metadata.ssh_keys[1] ssh_key|x509", keys)
    codes = ("A", "A A=", "AA==AA==", "AA-_", "ü", "AAAA\tAAAA")
    rejects("userdata base64", codes, Kind.USERDATA, userdata_encoding="base64")
    encodings = ("", "Base64", "gzip", 5, [], {}, False)
    rejects("userdata_encoding oneof", encodings, Kind.USERDATA)
    rejects("userdata string", [5, [], {}, False], Kind.USERDATA)
    rejects("ipAddresses array", ["10.0.0.1", {}, 5, False])
    rejects("ipAddresses max", [["192.0.2.1"] * (ADDRESSES_MAX + 1)])
    assert len(push(ipAddresses=["192.0.2.1"] * ADDRESSES_MAX).networks) == 1
    addresses = ("", "10.0.0.256", "10.0.0.1/33", "::1/129", "fe80::1%eth0", "10.0.0.1:80", "[::1]")
    more = ("10.0.0.1/", "010.0.0.1", " 10.0.0.1", "10.1", 1, None, [], {})
    rejects("ipAddresses[1] ip_addr|cidr", [["192.0.2.1", value] for value in (*addresses, *more)])
    rejects("http_tokens oneof", ["always", "", 5, [], {}, True])


def test_a_good_value_is_stored_in_its_canonical_form() -> None:
    assert push(id=INSTANCE.upper(), colour="red").record_id == INSTANCE
    document = {"tags": ["ü"], "n": 1.5, "deep": {"null": None}}
    assert push(metadata=document).content == push(metadata=json.dumps(document)).content
    content = bytes(range(256))
    for text in (base64.b64encode(content), base64.encodebytes(content).replace(b"\n", b"\r\n")):
        members = {"userdata": text.decode(), "userdata_encoding": "base64"}
        assert push(Kind.USERDATA, **members).content == content
    assert push(Kind.USERDATA, userdata="AAAA", userdata_encoding=None).content == b"AAAA"
    given = ["2001:db8::9", "10.1.2.9/28", "10.1.2.0/28", "::ffff:192.0.2.7"]
    folded = ["2001:db8::9/128", "10.1.2.0/28", "192.0.2.7/32"]
    assert [str(network) for network in push(ipAddresses=given).networks] == folded


def test_an_absent_member_has_its_default() -> None:
    assert push(ipAddresses=[]).networks == push(ipAddresses=None).networks == push().networks == ()
    assert parse_push(Kind.USERDATA, json.dumps({"id": INSTANCE}).encode()).content == b""
    for more in ({}, {"userdata_encoding": "base64"}):
        assert push(Kind.USERDATA, userdata=None, **more).content == b""
    assert push().http_tokens is KEEP
    for kind in Kind:
        for value in ("off", "optional", "required", None):
            assert push(kind, http_tokens=value).http_tokens == value


def nested(depth: int) -> bytes:
    return b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1)


def test_what_readers_could_read_in_two_ways_is_refused() -> None:
    for body in (
        *(b"", b"null", b"[]", b"{", b"{} x", b'{"id":"a","id":"a"}', b'{"x":{"a":1,"a":1}}'),
        *(b'{"x":NaN}', b'{"x":-Infinity}', b'{"x":1e999}', b'{"x":"\\ud800"}', b'{"\\udfff":1}'),
        *(
            b'{"x":"\\u0000"}',
            b'{"x":"\\\\\\u0000"}',
            b'{"x":"a\0b"}',
            b'{"x":"\xff"}',
            b'{"x":01}',
        ),
        *(b'{"x":"\xed\xa0\x80"}', b"\xef\xbb\xbf{}", '{"id":"x"}'.encode("utf-16")),
        *(
            b'{"x":' + b"9" * 5000 + b"}",
            b'{"x":' + b"[" * 100_000,
            b"[" * 100_000 + b"]" * 100_000,
        ),
        nested(strictjson.DEPTH_MAX + 1),
    ):
        refused(body)
        refused(body, Kind.USERDATA)
    deepest = strictjson.loads(nested(strictjson.DEPTH_MAX))
    assert dump_document(deepest).encode() == nested(strictjson.DEPTH_MAX)
    with pytest.raises(ValueError, match="NUL"):
        strictjson.loads(b"[" * strictjson.DEPTH_MAX + b'"\\u0000"' + b"]" * strictjson.DEPTH_MAX)
    assert strictjson.loads(r'["\\u0000", "\ud83d\ude00"]') == [r"\u0000", "\N{GRINNING FACE}"]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab\\u0é\U0001f600"), inner),
)


@settings(max_examples=examples(30), deadline=None)
@given(st.dictionaries(st.text("xyz"), JSON))
def test_what_is_json_comes_out_as_it_went_in(document: dict[str, Any]) -> None:
    for ascii_only in (True, False):
        text = json.dumps(document, ensure_ascii=ascii_only)
        assert strictjson.loads(text.encode()) == document
    assert strictjson.loads(dump_document(document)) == document


# Seeds and lines


META_DATA = """\
instance-id: iid-local01
local-hostname: web1
public-keys:
  - ssh-ed25519 AAAA one
  - ssh-ed25519 BBBB two
availability-zone: rack1
dsmode: net
network-interfaces: |
  auto eth0
"""


def line(**members: object) -> bytes:
    return json.dumps({"id": INSTANCE, **members}).encode()


def test_a_seed_becomes_a_document() -> None:
    seed = parse_seed(
        {
            "meta-data": META_DATA.encode(),
            "user-data": b"\x1f\x8b\xff",
            "vendor-data": b"#cloud-config\n",
            "network-config": b"version: 2\n",
        }
    )
    assert (seed.instance_id, seed.hostname, seed.userdata) == (
        "iid-local01",
        "web1",
        b"\x1f\x8b\xff",
    )
    assert seed.document == {
        "hostname": "web1",
        "ssh_keys": ["ssh-ed25519 AAAA one", "ssh-ed25519 BBBB two"],
        "availability_zone": "rack1",
        "vendor_data": "#cloud-config\n",
        "network_config": "version: 2\n",
    }
    assert seed.left_out == ("network-interfaces",)


def test_a_seed_may_lack_everything_but_a_file() -> None:
    seed = parse_seed({"meta-data": b""})
    assert (seed.instance_id, seed.document, seed.userdata) == ("", {}, None)
    assert parse_seed({"user-data": b""}).userdata == b""
    assert (
        parse_seed({"meta-data": b"", "vendor-data": b"", "network-config": b"\n"}).document == {}
    )


def test_keys_come_in_each_form_that_cloud_init_takes() -> None:
    for keys, lines in [
        ("a b", ["a b"]),
        ("a b\n\nc d\n", ["a b", "c d"]),
        (["a", "b\n"], ["a", "b"]),
        ({"k": "a", "l": ["b", "c"]}, ["a", "b", "c"]),
        ({"0": {"openssh-key": "a"}}, ["a"]),
        (7, None),
    ]:
        content = json.dumps({"public-keys": keys}).encode()
        assert parse_seed({"meta-data": content}).document.get("ssh_keys") == lines, keys


def test_an_invalid_seed_is_refused_with_its_cause() -> None:
    for files, cause in [
        ({"meta-data": b"- a"}, "meta-data: it is not a mapping"),
        ({"meta-data": b"a: b: c"}, "meta-data: it is not YAML: .* in line 1"),
        ({"meta-data": b"\xff"}, "meta-data: it is not UTF-8"),
        ({"meta-data": b"meta: {when: 2026-01-01}"}, "meta-data: it has a date in it"),
        ({"meta-data": b"meta: {1: a}"}, "meta-data: a name in it is not a string"),
        ({"meta-data": b"meta: .nan"}, "meta-data: a number"),
        ({"user-data": b"", "network-config": b"a: &a [*a]"}, "network-config: it is not YAML: an"),
        ({"meta-data": b'local-hostname: "\\0"'}, "meta-data: a string in it contains NUL"),
        ({"user-data": b"", "vendor-data": b"\xff"}, "vendor-data: it is not UTF-8"),
        ({"user-data": b"", "network-config": b"[]"}, "network-config: it is not a mapping"),
    ]:
        with named(files), pytest.raises(ValueError, match=cause):
            parse_seed(files)


@given(st.binary() | st.text().map(str.encode))
def test_any_meta_data_is_taken_or_refused(content: bytes) -> None:
    try:
        seed = parse_seed({"meta-data": content})
    except ValueError:
        return
    assert dump_document(seed.document)


# Lines


def test_a_line_is_a_body_of_the_admin_api() -> None:
    (push,) = parse_line(
        line(ipAddresses=["10.1.2.3/28", "::1"], metadata={"a": 1}, http_tokens="required", x=1)
    )
    assert (push.kind, push.record_id, push.content) == (Kind.METADATA, INSTANCE, {"a": 1})
    assert push.networks == (ip_network("10.1.2.0/28"), ip_network("::1"))
    assert push.http_tokens == "required"
    assert parse_line(json.dumps(body_of(push)).encode()) == [push]
    content = bytes(range(256))
    encoded = base64.encodebytes(content).decode()
    (push,) = parse_line(line(userdata=encoded, userdata_encoding="base64"))
    assert (push.kind, push.content) == (Kind.USERDATA, content)
    assert parse_line(json.dumps(body_of(push)).encode()) == [push]
    for members in ({"userdata": "YQ==", "userdata_encoding": "plain"}, {"userdata": "YQ=="}):
        assert parse_line(line(**members))[0].content == b"YQ=="
    assert parse_line(line(userdata=None))[0].content == b""
    (push,) = parse_line(line(id=INSTANCE.upper(), metadata='{"a": 1}'))
    assert (push.record_id, push.content, push.networks) == (INSTANCE, {"a": 1}, ())
    assert push.http_tokens is KEEP
    pushes = parse_line(line(metadata={}, userdata="u", ipAddresses=["10.0.0.1"]))
    assert [push.kind for push in pushes] == [Kind.METADATA, Kind.USERDATA]
    assert len({push.networks for push in pushes}) == 1


def test_an_invalid_line_is_refused_with_its_cause() -> None:
    for content, cause in [
        (b"{", "not JSON"),
        (b'{"id": 1, "metadata": {}}', "id, condition: uuid"),
        (line(), "neither metadata nor userdata"),
        (line(metadata="[]"), "metadata, condition: json"),
        (line(userdata=1), "userdata, condition: string"),
        (line(userdata="\0"), "NUL"),
        (line(userdata="a", userdata_encoding=[]), "userdata_encoding"),
        (line(userdata="é", userdata_encoding="base64"), "userdata, condition: base64"),
        (line(metadata={}, ipAddresses="10.0.0.1"), "ipAddresses, condition: array"),
        (line(metadata={}, ipAddresses=["10.0.0.1", "x"]), r"ipAddresses\[1\]"),
        (line(metadata={}, http_tokens=[]), "http_tokens"),
    ]:
        with named(content), pytest.raises(ValueError, match=cause):
            parse_line(content)
