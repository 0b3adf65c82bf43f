"""An upstream's answer should be read as one thing, or refused."""

import base64
import gzip
import json
from collections.abc import Sequence
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.http.responses import HttpResponse
from dfmeta.store.db.record import KEEP, Content, Keep, Kind, Network, Push
from dfmeta.store.lookup.upstream import ENVELOPE, by_address, by_id
from tests.core.unit.store.support import named
from tests.core.unit.support import INSTANCE
from tests.core.unit.support import OTHER_INSTANCE as OTHER

SCRIPT = "#!/bin/sh\necho hello\n"


def answer(content: object, kind: str = "application/json", *, whole: bool = True) -> HttpResponse:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return HttpResponse(200, (("content-type", kind),), body, complete=whole)


def envelope(**members: object) -> dict[str, object]:
    return {"id": INSTANCE, "ipAddresses": ["10.1.2.3/28", "2001:db8::9"], **members}


def half(kind: Kind, content: Content, networks: Sequence[Network] | Keep = KEEP) -> Push:
    return Push(kind=kind, record_id=INSTANCE, content=content, networks=networks)


def base64_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


def test_metadata_is_an_object_or_one_in_a_string() -> None:
    for document in [{"a": 1}, '{"a": 1}']:
        shout = envelope(metadata=document, id=INSTANCE.upper())
        assert by_id(Kind.METADATA, INSTANCE, answer(shout)).record_id == INSTANCE
        result = by_address(Kind.METADATA, answer(shout))
        networks = (ip_network("10.1.2.0/28"), ip_network("2001:db8::9"))
        assert result == half(Kind.METADATA, {"a": 1}, networks), document
        assert result.names(ip_address("10.1.2.15")), document
        assert not result.names(ip_address("10.1.2.16")), document
        assert result.names(ip_address("2001:db8::9")), document


def test_a_record_without_addresses_names_none() -> None:
    for listed in ({"ipAddresses": None}, {"ipAddresses": []}):
        result = by_address(Kind.METADATA, answer(envelope(metadata={}, **listed)))
        assert result.networks == ()
    silent = by_address(Kind.METADATA, answer({"id": INSTANCE, "metadata": {}}))
    assert silent.networks is KEEP
    assert not silent.names(ip_address("10.1.2.3"))


def test_userdata_comes_out_as_bytes() -> None:
    for members, content in [
        ({"userdata": SCRIPT, "userdata_encoding": "plain"}, SCRIPT.encode()),
        ({"userdata": "dXNlcg==", "userdata_encoding": "plain"}, b"dXNlcg=="),
        ({"userdata": "AP\n8=\n", "userdata_encoding": "base64"}, b"\x00\xff"),
        ({"userdata": SCRIPT, "userdata_encoding": None}, SCRIPT.encode()),
        ({"userdata": base64_of(gzip.compress(b"x", mtime=0))}, gzip.compress(b"x", mtime=0)),
        ({"userdata": "userdata"}, b"userdata"),
        ({"userdata": "test"}, b"test"),
        ({"userdata": None}, b""),
        ({}, b""),
    ]:
        assert by_address(Kind.USERDATA, answer(envelope(**members))).content == content, members


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"])))
def test_base64_of_text_needs_no_encoding(text: str) -> None:
    message = envelope(userdata=base64_of(text.encode()))
    assert by_id(Kind.USERDATA, INSTANCE, answer(message)).content == text.encode()


def test_a_mode_of_tokens_may_come_along() -> None:
    for members, mode in (
        ({}, KEEP),
        ({"http_tokens": None}, None),
        ({"http_tokens": "off"}, "off"),
    ):
        half = by_id(Kind.METADATA, INSTANCE, answer(envelope(metadata={}, **members)))
        assert half.http_tokens == mode, members


def test_a_half_may_come_alone_by_id() -> None:
    document = {"id": "something", "hostname": "a", "metadata": "b"}
    result = by_id(Kind.METADATA, INSTANCE, answer(document))
    assert result == half(Kind.METADATA, document)
    for content in (b"\x00\xff", b"", b'{"ignition": {}}'):
        result = by_id(Kind.USERDATA, INSTANCE, answer(content, "text/plain"))
        assert result == half(Kind.USERDATA, content)
    with pytest.raises(ValueError, match="neither a length nor chunks"):
        by_id(Kind.USERDATA, INSTANCE, answer(b"#!/bin/sh\n", "text/plain", whole=False))
    with pytest.raises(ValueError, match="neither"):
        by_id(Kind.USERDATA, INSTANCE, answer({"message": "maintenance"}))


def test_an_envelope_that_a_tenant_could_have_written_names_no_address() -> None:
    message = envelope(userdata=base64_of(b"abc"), ipAddresses=["10.9.9.9"])
    result = by_id(Kind.USERDATA, INSTANCE, answer(message, "text/plain"))
    assert result == half(Kind.USERDATA, b"abc")
    other = answer({**message, "id": OTHER}, "text/plain")
    assert by_id(Kind.USERDATA, INSTANCE, other) == half(Kind.USERDATA, other.body)


NONSENSE: list[object] = [
    b"",
    b"[]",
    {},
    {"id": INSTANCE, "hostname": "alone"},
    envelope(metadata={}, id="1"),
    envelope(metadata={}, id=None),
    envelope(metadata=None),
    envelope(metadata="x"),
    envelope(metadata=[]),
    envelope(),
    envelope(metadata={}, ipAddresses="10.0.0.1"),
    envelope(metadata={}, ipAddresses=["fe80::1%eth0"]),
    envelope(metadata={}, http_tokens=["off"]),
]


def test_what_is_no_record_is_refused() -> None:
    for content in NONSENSE:
        with named(content):
            with pytest.raises(ValueError, match=r"^(it|its|one)\b"):
                by_address(Kind.METADATA, answer(content))
            with pytest.raises(ValueError, match=r"^(it|its|one)\b"):
                by_id(Kind.METADATA, INSTANCE, answer(content, ENVELOPE))
    for members in [
        {"userdata": 1},
        {"userdata": "a", "userdata_encoding": "gzip"},
        {"userdata": "a", "userdata_encoding": "base64"},
        {"userdata": "\0", "userdata_encoding": "plain"},
        {"userdata": "a" * ((16 << 20) + 1), "userdata_encoding": "plain"},
    ]:
        with named(members), pytest.raises(ValueError, match=r"it|NaN"):
            by_address(Kind.USERDATA, answer(envelope(**members)))
    for kind, members in ((Kind.METADATA, {"metadata": {}}), (Kind.USERDATA, {"userdata": "a"})):
        with pytest.raises(ValueError, match="another record"):
            by_id(kind, OTHER, answer(envelope(**members)))
