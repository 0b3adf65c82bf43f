"""What is not here should be asked of upstream, and kept."""

from __future__ import annotations

import base64
from ipaddress import ip_address

import pytest

from dfmeta.exceptions import LookupAwayError
from dfmeta.store import http as lookup_http
from dfmeta.store.db.record import Kind
from dfmeta.store.db.repository import Repository
from dfmeta.store.guest.need import METADATA_ALONE
from dfmeta.wiring import lookup as from_configuration
from tests.core.unit.store.lookup.support import (
    ADDRESS,
    METADATA,
    METADATA_OF,
    SCRIPT,
    USERDATA,
    USERDATA_OF,
    Build,
    Clock,
    hostname,
    metadata,
    push,
    userdata,
)
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE, Load
from tests.harness.other_store import NOT_FOUND, Asked, OtherStore, reply


def test_an_unknown_instance_is_asked_for_by_its_id(store: OtherStore, build: Build) -> None:
    store.answers = {METADATA: metadata(), USERDATA: userdata()}
    puller = build()
    record = puller.get(INSTANCE.upper())
    assert hostname(record) == "a"
    assert record is not None
    assert record.userdata == SCRIPT.encode()
    assert puller.get(INSTANCE) == record
    assert store.targets() == [METADATA, USERDATA]
    accepted = [asked.headers["accept"] for asked in store.asked]
    assert accepted == ["application/vnd.dfmeta.record+json, application/json"] * 2
    assert puller.addresses(INSTANCE) == ("10.1.2.3/32",)


def test_an_unknown_address_is_asked_for_by_it(store: OtherStore, build: Build) -> None:
    store.answers = {METADATA_OF: metadata(), USERDATA: userdata()}
    puller = build()
    record = puller.find(ADDRESS)
    assert hostname(record) == "a"
    assert puller.find(ADDRESS) == record == puller.get(INSTANCE)
    assert store.targets() == [METADATA_OF, USERDATA]


def test_one_that_has_userdata_alone_is_found_as_well(store: OtherStore, build: Build) -> None:
    store.answers = {USERDATA_OF: userdata()}
    puller = build()
    for _ in range(2):
        record = puller.find(ADDRESS)
        assert record is not None
        assert record.userdata == SCRIPT.encode()
    assert store.targets() == [METADATA_OF, USERDATA_OF, METADATA]


def test_an_ipv6_address_is_escaped(store: OtherStore, build: Build) -> None:
    assert build().find(ip_address("2001:db8::9")) is None
    assert store.targets()[0] == "/device-metadata?ip_address=2001%3Adb8%3A%3A9"


def test_a_path_of_upstreams_is_kept(store: OtherStore, build: Build) -> None:
    build(url=f"{store.url}/api/v1/").get(INSTANCE, METADATA_ALONE)
    assert store.targets() == [f"/api/v1{METADATA}"]


def test_what_has_no_uuid_is_not_asked_for(store: OtherStore, build: Build) -> None:
    assert build().get("default:host") is None
    assert build().refresh(Kind.METADATA, "../secrets") is None
    assert store.asked == []


def test_an_upstream_of_the_original_is_understood(store: OtherStore, build: Build) -> None:
    envelope = {"id": INSTANCE, "ipAddresses": [str(ADDRESS)]}
    coded = base64.b64encode(SCRIPT.encode()).decode()
    store.answers = {
        METADATA_OF: reply({**envelope, "metadata": '{"hostname": "a"}'}, kind="text/plain"),
        USERDATA: reply({**envelope, "userdata": coded}, kind="text/plain"),
    }
    record = build().find(ADDRESS)
    assert hostname(record) == "a"
    assert record is not None
    assert record.userdata == SCRIPT.encode()


def test_one_that_gives_the_content_alone_leaves_addresses_as_they_are(
    store: OtherStore, build: Build, repository: Repository
) -> None:
    push(repository, "pushed", networks=("10.1.2.3",))
    store.answers = {USERDATA: reply(b"\x00\xff", kind="text/plain")}
    puller = build()
    record = puller.find(ADDRESS)
    assert record is not None
    assert record.userdata == b"\x00\xff"
    assert puller.addresses(INSTANCE) == ("10.1.2.3/32",)


def test_a_mode_of_tokens_is_kept(store: OtherStore, build: Build) -> None:
    store.answers = {METADATA: metadata(http_tokens="required")}
    record = build().get(INSTANCE)
    assert record is not None
    assert record.http_tokens == "required"


def test_what_is_not_there_is_not_asked_for_again_for_a_while(
    store: OtherStore, build: Build, clock: Clock
) -> None:
    puller = build(negative=1000)
    for _ in range(3):
        assert puller.get(INSTANCE) is None
        assert puller.find(ADDRESS) is None
    assert sorted(store.targets()) == sorted([METADATA, USERDATA, METADATA_OF, USERDATA_OF])
    store.answers = {METADATA: metadata(), METADATA_OF: metadata()}
    clock.ahead = 900
    assert puller.get(INSTANCE) is None
    clock.ahead = 1001
    assert hostname(puller.get(INSTANCE)) == "a"


def test_what_is_pushed_meanwhile_is_there(build: Build, repository: Repository) -> None:
    puller = build()
    assert puller.find(ADDRESS) is None
    push(repository, "pushed", networks=("10.1.2.0/24",))
    assert hostname(puller.find(ADDRESS)) == "pushed"


def test_without_a_negative_cache_it_is_asked_for_each_time(
    store: OtherStore, build: Build
) -> None:
    puller = build(negative=0)
    for _ in range(2):
        assert puller.get(INSTANCE, METADATA_ALONE) is None
    assert store.targets() == [METADATA, METADATA]


@pytest.mark.parametrize("listed", [["10.1.2.4"], ["10.0.0.0/16"], [], None])
def test_a_record_that_does_not_name_the_address_is_not_there(
    store: OtherStore, build: Build, repository: Repository, listed: object
) -> None:
    store.answers = {METADATA_OF: metadata(ipAddresses=listed)}
    assert build().find(ADDRESS) is None
    assert repository.get(INSTANCE) is None


def test_what_was_pushed_is_neither_asked_for_nor_expires(
    store: OtherStore, build: Build, clock: Clock, repository: Repository
) -> None:
    push(repository, "pushed", networks=("10.1.2.3",))
    store.answers = {METADATA: metadata("upstream's"), METADATA_OF: metadata("upstream's")}
    puller = build(expiry=60)
    for _ in range(2):
        assert hostname(puller.get(INSTANCE)) == "pushed"
        assert hostname(puller.find(ADDRESS)) == "pushed"
        clock.ahead += 61
    assert set(store.targets()) == {USERDATA}


def test_its_other_half_is_asked_for_and_leaves_its_addresses(
    store: OtherStore, build: Build, repository: Repository
) -> None:
    push(repository, "pushed", networks=("10.1.2.9",))
    store.answers = {USERDATA: userdata(http_tokens="required")}
    record = build().get(INSTANCE)
    assert record is not None
    assert record.userdata == SCRIPT.encode()
    assert record.http_tokens is None
    assert repository.addresses(INSTANCE) == ("10.1.2.9/32",)


def test_what_is_pushed_while_upstream_is_asked_stays(
    store: OtherStore, build: Build, repository: Repository
) -> None:
    def answer(_asked: Asked) -> bytes:
        push(repository, "pushed", networks=("10.1.2.3", "10.1.2.9"))
        return metadata("upstream's")

    store.answer = answer
    record = build().find(ADDRESS, METADATA_ALONE)
    assert hostname(record) == "pushed"
    assert repository.addresses(INSTANCE) == ("10.1.2.3/32", "10.1.2.9/32")


def test_what_is_pushed_while_upstream_is_asked_is_not_removed(
    store: OtherStore, build: Build, clock: Clock, repository: Repository
) -> None:
    store.answers = {METADATA: metadata("a")}
    puller = build(expiry=60)
    puller.get(INSTANCE, METADATA_ALONE)

    def answer(_asked: Asked) -> bytes:
        push(repository, "pushed")
        return NOT_FOUND

    store.answer = answer
    clock.ahead = 61
    assert hostname(puller.get(INSTANCE, METADATA_ALONE)) == "pushed"


def test_upstream_does_not_take_an_address_from_a_record_that_was_pushed(
    store: OtherStore, build: Build, repository: Repository
) -> None:
    push(repository, "pushed", networks=("10.1.2.3", "10.1.2.4"))
    answer = metadata("b", of=OTHER_INSTANCE, ipAddresses=["10.1.2.4", "10.1.2.5"])
    store.answers = {f"/device-metadata?ip_address={ADDRESS + 2}": answer}
    puller = build()
    assert hostname(puller.find(ADDRESS + 2)) == "b"
    assert repository.addresses(OTHER_INSTANCE) == ("10.1.2.5/32",)
    assert hostname(repository.find(ADDRESS + 1)) == "pushed"


def test_it_does_from_one_that_was_fetched(store: OtherStore, build: Build) -> None:
    answer = metadata("b", of=OTHER_INSTANCE, ipAddresses=["10.1.2.3", "10.1.2.5"])
    store.answers = {
        METADATA_OF: metadata("a", ipAddresses=["10.1.2.3"]),
        f"/device-metadata?ip_address={ADDRESS + 2}": answer,
    }
    puller = build()
    assert hostname(puller.find(ADDRESS)) == "a"
    assert hostname(puller.find(ADDRESS + 2)) == "b"
    assert hostname(puller.find(ADDRESS)) == "b"


def test_an_address_that_a_pushed_record_is_said_to_have_and_has_not_is_nobodys(
    store: OtherStore, build: Build, repository: Repository
) -> None:
    push(repository, "pushed", networks=("10.1.2.9",))
    store.answers = {METADATA_OF: metadata("a", ipAddresses=[str(ADDRESS)])}
    puller = build()
    for _ in range(2):
        assert puller.find(ADDRESS) is None
    assert store.targets() == [METADATA_OF, USERDATA_OF]


def test_nobody_is_asked_unless_it_is_configured(load: Load, repository: Repository) -> None:
    assert from_configuration.build(load(), repository) is None


def test_the_options_make_a_puller(
    load: Load, repository: Repository, store: OtherStore, caplog: pytest.LogCaptureFixture
) -> None:
    conf = load(
        store__lookup_base_url=store.url,
        store__lookup_issuer=store.url,
        store__lookup_client_id="me",
        store__lookup_client_secret="a secret nobody may see",
        store__lookup_scopes="read,more",
        store__lookup_retries=0,
    )
    puller = from_configuration.build(conf, repository)
    assert puller is not None
    with pytest.raises(LookupAwayError, match="there is no token"):
        puller.get(INSTANCE)
    puller.close()
    assert store.targets() == ["/.well-known/openid-configuration"]
    assert "lookup_issuer is an http" in caplog.text
    assert "a secret nobody may see" not in caplog.text


@pytest.mark.parametrize(
    ("urls", "read"),
    [
        ({"lookup_base_url": "http://upstream.example.org"}, 0),
        ({"lookup_base_url": "HTTPS://upstream.example.org"}, 1),
        (
            {
                "lookup_base_url": "http://upstream.example.org",
                "lookup_issuer": "https://issuer.example.org",
                "lookup_client_id": "me",
                "lookup_client_secret": "x",
            },
            1,
        ),
    ],
)
def test_no_request_waits_until_the_systems_authorities_are_read(
    load: Load, monkeypatch: pytest.MonkeyPatch, urls: dict[str, str], read: int
) -> None:
    reads: list[str] = []
    monkeypatch.setattr(lookup_http, "client_context", lambda: reads.append("authorities"))
    conf = load(**{f"store__{option}": url for option, url in urls.items()})
    assert from_configuration.connect(conf) is not None
    assert len(reads) == read
