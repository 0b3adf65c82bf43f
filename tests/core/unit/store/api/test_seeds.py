"""A seed and a line should become what cloud-init and the admin API would make of them."""

from __future__ import annotations

import base64
import json
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.store.api.seeds import body_of, parse_line, parse_seed
from dfmeta.store.db.record import KEEP, Kind, dump_document
from tests.core.unit.store.support import named
from tests.core.unit.support import INSTANCE

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
        (b'{"id": 1, "metadata": {}}', "its id"),
        (line(), "neither metadata nor userdata"),
        (line(metadata=[]), "not a JSON object"),
        (line(metadata="[]"), "a string: it is .* JSON object"),
        (line(userdata=1), "not a string"),
        (line(userdata="\0"), "NUL"),
        (line(userdata="a", userdata_encoding=[]), "userdata_encoding"),
        (line(userdata="é", userdata_encoding="base64"), "not base64"),
        (line(metadata={}, ipAddresses="10.0.0.1"), "not a list"),
        (line(metadata={}, ipAddresses=["10.0.0.1", "x"]), r"ipAddresses\[1\]"),
        (line(metadata={}, http_tokens=[]), "http_tokens"),
    ]:
        with named(content), pytest.raises(ValueError, match=cause):
            parse_line(content)
