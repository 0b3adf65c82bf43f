"""A document should say only what is known, and cached answers be those of their record alone."""

import base64
import json
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.errors import StoreError
from dfmeta.model import Answer, GuestRequest
from dfmeta.store.db.record import Record
from dfmeta.store.guest import dialects
from dfmeta.store.guest.dialects import Answers, AnswerSettings
from dfmeta.store.guest.documents import (
    RANDOM_SEED_BYTES,
    Document,
    devices_of,
    from_record,
    hostname_of,
    meta_of,
    network_config_of,
    network_data_of,
    vendor_data2_of,
    vendor_data_of,
)
from dfmeta.store.guest.requests import etag_of, split_path, tagged, unless_known
from dfmeta.store.guest.values import keys_of, name_keys, unusable
from tests.core.unit.store.guest.crawling import asker
from tests.core.unit.store.support import named
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MEMBERS = (
    *("id", "hostname", "name", "availability_zone", "facility", "region", "metro", "plan"),
    *("class", "ssh_keys", "public_keys", "meta", "instance_tags", "launch_index", "network"),
    *("devices", "vendor_data2", "network_data"),
)


def document(members: object = None, *, seed: bytes = b"s" * 32) -> Document:
    text = members if isinstance(members, str) else json.dumps(members) if members else None
    return from_record(
        Record(id=INSTANCE, seed=seed, created_at=NOW, updated_at=NOW, metadata=text)
    )


def test_an_empty_record_still_has_a_host_name() -> None:
    empty = document()
    assert (empty.hostname, empty.name) == (INSTANCE, INSTANCE)
    assert (empty.zone, empty.region, empty.project_id, empty.keys) == ("", "", "", ())


def test_a_member_stands_before_its_substitutes() -> None:
    where = {"facility": "da11", "metro": "da"}
    for members, attribute, value in (
        ({"name": "My Web_Server #1"}, "hostname", "my-web-server-1"),
        ({"name": "My Web_Server #1"}, "name", "My Web_Server #1"),
        ({"name": "web", "hostname": "Web.example.org"}, "hostname", "Web.example.org"),
        ({"id": "device-1"}, "instance_id", "device-1"),
        ({"id": 5}, "instance_id", INSTANCE),
        (where, "zone", "da11"),
        (where, "region", "da"),
        ({**where, "availability_zone": "az1"}, "zone", "az1"),
        ({**where, "region": "r1"}, "region", "r1"),
        ({**where, "availability_zone": ["az1"]}, "zone", "da11"),
    ):
        assert getattr(document(members), attribute) == value, members


def test_a_member_of_the_wrong_kind_counts_as_absent() -> None:
    for wrong in (-1, None, [], {}, True, "a\nb", "\0", " ", [[]], 1.5):
        # Vendor data is a text of any lines.
        names = set(MEMBERS) - ({"vendor_data2"} if isinstance(wrong, str) else set())
        odd = document(dict.fromkeys(names, wrong))
        assert replace(odd, text=None, members={}) == document(), wrong
        assert meta_of(odd) == vendor_data2_of(odd) == {}, wrong
        assert devices_of(odd) == [], wrong
        assert network_data_of(odd) is None, wrong
    for wrong in (0, None, [], {}, True, "", 1.5):
        odd = document({"vendor_data": wrong, "network_config": wrong})
        assert vendor_data_of(odd) == {}, wrong
        assert not network_config_of(odd), wrong


def test_a_tag_is_there_if_a_listing_can_hold_it() -> None:
    for key in ("a:b+c@d", "x" * 128, "...", "_index2"):
        assert document({"instance_tags": {key: " web "}}).instance_tags == {key: "web"}, key
    for key in ("", ".", "..", "_index", "a/b", "0=x", "a\n", "x" * 129, "é", "a%2fb"):
        tags = {key: "web", "good": ""}
        assert document({"instance_tags": tags}).instance_tags == {"good": ""}, key
    for value in (1, "a\nb"):
        assert document({"instance_tags": {"role": value}}).instance_tags == {}, value


def test_members_are_json_that_every_reader_takes() -> None:
    deep: object = "x"
    for _ in range(100):
        deep = [deep]
    text = json.dumps({"meta": {"a": 1, "deep": deep, "big": 0}})
    meta = meta_of(document(text.replace('"big": 0', '"big": 1e999')))
    assert (meta["a"], meta["big"]) == (1, None)
    assert len(json.dumps(meta)) < 100
    for broken in ("[]", "{", '"x"'):
        with named(broken), pytest.raises(StoreError, match=INSTANCE):
            document(broken)


def test_the_random_seed_is_stable_and_of_its_record() -> None:
    assert document().random_seed == document({"name": "x"}).random_seed
    assert document().random_seed != document(seed=b"t" * 32).random_seed
    assert len(document().random_seed) == RANDOM_SEED_BYTES
    shown = json.loads(asker({})("/openstack/latest/meta_data.json").body)["random_seed"]
    assert base64.b64decode(shown, validate=True) == document(seed=b"s").random_seed


@given(st.text())
def test_a_host_name_made_of_any_text_is_one(name: str) -> None:
    made = hostname_of(name)
    labels = made.split(".") if made else []
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", label) for label in labels)


A, B = "ssh-rsa AAAA a", "ssh-rsa BBBB b"


def test_keys_are_read_in_each_form_with_their_names() -> None:
    labelled = [
        {"id": "x", "label": "work / laptop", "key": A},
        {"key": B},
        {"label": "no key"},
        {"label": 5, "key": ["ssh-rsa CCCC"]},
        "ssh-rsa DDDD b",
    ]
    members: dict[str, object]
    for members, expected in (
        ({"ssh_keys": [f"# mine\n{A}\r\n\n{B}", 5, None, ""]}, [("a", A), ("b", B)]),
        ({"ssh_keys": labelled}, [("work-laptop", A), ("b", B), ("b-2", "ssh-rsa DDDD b")]),
        ({"public_keys": {"mine": A, "": B}}, [("mine", A), ("b", B)]),
        ({"ssh_keys": [A], "public_keys": [A, B]}, [("a", A), ("b", B)]),
    ):
        assert [(key.name, key.data) for key in keys_of(members)] == expected, members
    for wrong in (None, 5, True, "ssh-rsa AAAA", [], {}, [[]], {"a": {}}):
        assert list(keys_of({"ssh_keys": wrong, "public_keys": wrong})) == [], wrong


CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIC\nAAAA\n-----END CERTIFICATE-----\n"


def test_certificate_is_one_key_and_no_line_of_authorized_keys() -> None:
    for members in (
        {"public_keys": {"winrm": CERTIFICATE, "me": A}},
        {"ssh_keys": [{"label": "winrm", "key": f"\n{CERTIFICATE}"}, {"label": "me", "key": A}]},
    ):
        ask = asker(members)
        meta_data = json.loads(ask("/openstack/latest/meta_data.json").body)
        assert meta_data["public_keys"] == {"me": A}
        shown = {(key["name"], key["type"], key["data"].strip()) for key in meta_data["keys"]}
        assert shown == {("winrm", "x509", CERTIFICATE.strip()), ("me", "ssh", A)}
        assert ask("/latest/meta-data/public-keys").body == b"0=me"
        equinix = asker(members, ec2_tree="equinix")
        assert equinix("/2009-04-04/meta-data/public-keys").body.decode() == A
        assert "CERTIFICATE" not in ask("/nocloud/meta-data").body.decode()
    (alone,) = keys_of({"public_keys": {"winrm": CERTIFICATE}})
    assert (alone.kind, alone.data) == ("x509", CERTIFICATE)


def test_text_that_is_no_key_is_left_out_and_named() -> None:
    options = f'from="10.0.0.0/8",command="echo ssh-rsa" {A}'
    certified = "ssh-ed25519-cert-v01@openssh.com AAAA ca"
    security = "sk-ecdsa-sha2-nistp256@openssh.com AAAA= token"
    good = [A, f"# mine\n\n{B}\n", options, certified, security, CERTIFICATE, None, 5]
    assert unusable({"ssh_keys": good, "public_keys": {"a": A}}) == []
    assert len(keys_of({"ssh_keys": good})) == 6
    private = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\n-----END OPENSSH PRIVATE KEY-----"
    odd = ["web1", "ssh-rsa", "ssh-rsa !", f"{A}\nhello", private, "\x00ssh-rsa AAAA"]
    places = [f"ssh_keys[{number}]" for number in range(len(odd))]
    assert unusable({"ssh_keys": odd}) == places
    assert [key.data for key in keys_of({"ssh_keys": odd})] == [A]
    nova = ["x", {"data": "x"}, {"type": "ssh", "data": "x"}]
    assert unusable({"public_keys": {"x": "y"}, "ssh_keys": [{"key": "z"}], "keys": nova}) == [
        *("ssh_keys[0].key", "public_keys.x", "keys[2].data")
    ]


def test_key_names_come_from_the_comments() -> None:
    for comments, names in (
        (["me@host"], ["me@host"]),
        (["", ""], ["key", "key-2"]),
        (["a", "a", "a-2", "a"], ["a", "a-2", "a-2-2", "a-3"]),
        (["a=b", "a b"], ["a-b", "a-b-2"]),
        (["///"], ["key"]),
        (["x" * 100], ["x" * 64]),
    ):
        keys = name_keys([("", f"ssh-rsa AAAA {comment}") for comment in comments])
        assert [key.name for key in keys] == names, comments


@given(st.lists(st.text() | st.sampled_from(["a", "a-2", "/", "0=x", "key", "key-2"])))
def test_key_names_are_safe_and_unique_for_any_comments(comments: list[str]) -> None:
    keys = name_keys([("", f"ssh-rsa AAAA {comment}") for comment in comments])
    assert len({key.name for key in keys}) == len(comments)
    assert all(re.fullmatch(r"[A-Za-z0-9._@-]+", key.name) for key in keys)


# Answers


MOMENT = datetime(2026, 1, 2, tzinfo=UTC)
RECORD = Record(
    id=INSTANCE,
    seed=b"seed",
    created_at=MOMENT,
    updated_at=MOMENT,
    metadata='{"hostname": "one"}',
    userdata=b"#!/bin/sh\n",
)
HOSTNAME = "/latest/meta-data/local-hostname"
META_DATA = "/openstack/latest/meta_data.json"


@pytest.fixture
def kept() -> Answers:
    return Answers(AnswerSettings())


def answer(kept: Answers, record: Record, path: str, **headers: str) -> Answer | None:
    segments = split_path(path)
    assert segments is not None
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return kept.answer(record, segments, GuestRequest("GET", path, headers=named))


def made(kept: Answers, record: Record) -> int:
    """How many answers are kept of a record."""
    return len(kept._entry(record).answers)


def test_an_answer_is_made_once_for_equal_records_and_all_spellings(kept: Answers) -> None:
    for path in (HOSTNAME, META_DATA, "/latest/user-data", "/metadata", "/nocloud/"):
        first = answer(kept, RECORD, path)
        assert first == answer(Answers(AnswerSettings()), RECORD, path), path
        assert answer(kept, replace(RECORD), path) is first, path
    first = answer(kept, RECORD, "/latest/meta-data")
    count = made(kept, RECORD)
    for number in range(50):
        slashes = "/" * number
        for path in (f"/{slashes}latest/meta-data/", f"/latest/meta%2Ddata/{slashes}"):
            assert answer(kept, RECORD, path) is first
        assert answer(kept, RECORD, f"/latest/{number}") is None
    assert made(kept, RECORD) == count, "a 404 takes no memory"


def test_each_record_and_each_version_has_its_own_answers(kept: Answers) -> None:
    other = replace(RECORD, id=OTHER_INSTANCE, metadata='{"hostname": "two"}')
    changed = replace(RECORD, metadata='{"hostname": "three"}')
    for record, name in ((RECORD, b"one"), (other, b"two"), (changed, b"three"), (RECORD, b"one")):
        assert (answer(kept, record, HOSTNAME) or Answer(0)).body == name


def test_a_cached_answer_is_a_304_to_a_guest_that_has_it(kept: Answers) -> None:
    first = answer(kept, RECORD, META_DATA)
    assert first is not None
    conditional = answer(kept, RECORD, META_DATA, if_none_match=dict(first.headers)["ETag"])
    assert conditional == Answer(304, content_type="", headers=first.headers)
    assert answer(kept, RECORD, META_DATA, if_none_match='"another"') is first


def test_answers_beyond_the_limit_are_made_each_time(kept: Answers) -> None:
    large = replace(RECORD, metadata=f'{{"meta": {{"a": "{"b" * (dialects.ANSWERS // 2)}"}}}}')
    paths = [f"/openstack/{version}/meta_data.json" for version in ("2012-08-10", "latest")]
    for path in [*paths, *paths]:
        assert len((answer(kept, large, path) or Answer(0)).body) > dialects.ANSWERS // 2
    assert made(kept, large) == 1


ANSWER = Answer(200, b"web1", content_type="text/plain", headers=(("X-One", "1"),))
ETAG = etag_of(ANSWER)


def asked(given: str | None, answer: Answer = ANSWER, method: str = "GET") -> Answer:
    headers = {} if given is None else {"if-none-match": given}
    return unless_known(tagged(answer), GuestRequest(method, "/", headers=headers))


def test_an_answer_has_a_strong_tag_of_its_bytes_and_type() -> None:
    assert ETAG.startswith('"')
    assert asked(None).headers == (("X-One", "1"), ("ETag", ETAG))
    assert (asked(None).status, asked(None).body) == (200, b"web1")
    tags = {etag_of(Answer(200, body)) for body in (b"a", b"a", b"b", b"")}
    tags.add(etag_of(Answer(200, b"a", content_type="application/json")))
    assert len(tags) == 4
    for status in (404, 405, 409, 503):
        assert asked("*", Answer(status, b"x")) == Answer(status, b"x")


def test_a_list_with_the_tag_gives_304() -> None:
    for value in (
        *("*", " * ", ETAG, f"W/{ETAG}", f'"other", {ETAG}', f'{ETAG},"x"', f' ,,{ETAG}\t, ""'),
        *(f'W/"a,b" ,\t{ETAG}', '"x",' * 2000 + ETAG),
    ):
        for method in ("GET", "HEAD"):
            answer = asked(value, method=method)
            assert (answer.status, answer.body, answer.content_type) == (304, b"", ""), value
            assert answer.headers == (("X-One", "1"), ("ETag", ETAG)), value


def test_other_text_changes_nothing() -> None:
    for value in (
        *("", ETAG.strip('"'), f'"x{ETAG}', f"w/{ETAG}", f"{ETAG}{ETAG}", f"*, {ETAG}"),
        *(f'{ETAG}, "open', f'"a b", {ETAG}', ETAG.upper(), f"{ETAG}\n", '"x' * 4000),
    ):
        assert asked(value) == asked(None), value
