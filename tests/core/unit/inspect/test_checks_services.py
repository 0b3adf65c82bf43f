"""Judgements on Nova, Neutron, libvirt and the store, on facts that are wrong in one way each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dfmeta.inspect import checks_nova, checks_sources, checks_store
from dfmeta.inspect.checks_nova import GuestFact, NovaFact
from dfmeta.inspect.checks_sources import LibvirtFacts, NeutronFacts
from dfmeta.inspect.checks_store import DiskFacts, LookupFacts, StoreFacts, TokenFacts
from dfmeta.inspect.finding import Finding, Status
from tests.core.unit.inspect.test_checks import status
from tests.core.unit.inspect.values import INSTANCE

URL = "http://n:8775"
GOOD = NovaFact("n:8775", 404, 400)
STORE = StoreFacts("/s/store.db", revision="0003", known=("0001", "0002", "0003"))
SERVER = replace(STORE, shown="postgresql://h/d", file=False)


def nova(fact: NovaFact, *, real: bool = False) -> Finding:
    instance = INSTANCE if real else ""
    return checks_nova.nova(fact, URL, instance=instance, project="p" if real else "")


def test_a_made_up_instance_that_is_not_there_shows_that_the_signature_was_taken() -> None:
    assert status(nova(GOOD)) is Status.OK
    assert status(nova(replace(GOOD, unsigned=0))) is Status.OK
    assert status(nova(NovaFact("n:8775", 200), real=True)) is Status.OK


@pytest.mark.parametrize(
    ("fact", "real", "text", "remedy"),
    [
        (NovaFact("n:8775", 403), False, "_secret here differs", "reload dfmeta-agent"),
        (NovaFact("n:8775", 404, 404), False, "service_metadata_proxy is off", "nova-api-metadata"),
        (NovaFact("n:8775", 404, 200), True, "service_metadata_proxy is off", "nova-api-metadata"),
        (GOOD, True, f"has no instance {INSTANCE} in project p", "openstack server show"),
        (NovaFact("n:8775", 200), False, "answers 200", "curl"),
        (NovaFact("n:8775", 400), True, "drops dfmeta's headers", "curl"),
        (NovaFact("n:8775", 502), True, "has failed (502)", "its log"),
        (NovaFact("n:8775", cause="gone", remedy="Look"), False, "n:8775: gone", f"curl -sv {URL}"),
    ],
    ids=["403", "off", "off-200", "project", "200", "400", "502", "away"],
)
def test_what_is_wrong_with_a_nova_is_said(
    fact: NovaFact, real: bool, text: str, remedy: str
) -> None:
    finding = nova(fact, real=real)
    assert status(finding) is Status.WRONG
    assert text in finding.text
    assert remedy in finding.remedy


def guest(name: str, status: int) -> GuestFact:
    return GuestFact(name, INSTANCE, "p", status)


def test_the_guests_that_nova_does_not_have_are_named_and_how_many_were_asked_about() -> None:
    good = [guest(f"tap{number}", 200) for number in range(8)]
    finding = checks_nova.guests([*good, guest("tap8", 0)], of=200)
    assert status(finding) is Status.OK
    assert "each of 8 queried guests, of 200 with a project" in finding.text
    finding = checks_nova.guests([*good, guest("tap8", 404), guest("tap9", 404)], of=200)
    assert status(finding) is Status.WRONG
    assert "(404) for 2 of 10 queried guests, of 200 with" in finding.text
    assert f"tap8 (instance {INSTANCE}, project p), tap9 (" in finding.text
    assert f"`openstack server show {INSTANCE} -c project_id`" in finding.remedy
    finding = checks_nova.guests([*good, guest("tap8", 500)], of=9)
    assert status(finding) is Status.WRONG
    assert "tap8 (500)" in finding.text
    assert status(checks_nova.guests([guest("tap8", 0)], of=9)) is Status.UNKNOWN
    assert status(checks_nova.guests([], of=9)) is Status.UNKNOWN


def test_only_a_host_that_looks_at_the_signature_says_what_nova_has() -> None:
    assert GOOD.takes_signature
    assert NovaFact("n:8775", 200).takes_signature
    for code, unsigned in ((403, 0), (404, 404), (404, 200), (500, 0)):
        assert not NovaFact("n:8775", code, unsigned).takes_signature
    assert not NovaFact("n:8775", cause="gone").takes_signature


def test_libvirt_that_was_not_asked_for_may_be_missing() -> None:
    facts = LibvirtFacts(missing=("/run/libvirt/qemu",))
    assert status(checks_sources.libvirt(facts, wanted=False)) is Status.OK
    assert status(checks_sources.libvirt(facts, wanted=True)) is Status.WRONG
    there = LibvirtFacts(folders=("/run/libvirt/qemu",), domains=2, active=1)
    assert "2 domains" in checks_sources.libvirt(there, wanted=True).text


def test_a_folder_of_libvirts_that_may_not_be_read_is_named_in_the_command() -> None:
    finding = checks_sources.libvirt(LibvirtFacts(error="/etc/q: denied"), wanted=False)
    assert status(finding) is Status.WRONG
    assert "`namei -l /etc/q`" in finding.remedy


def test_neutrons_ports_are_looked_for_where_nova_has_named_some() -> None:
    assert status(checks_sources.neutron(NeutronFacts(), "h")) is Status.OK
    asked = NeutronFacts(asked={"id": "tap1"})
    assert status(checks_sources.neutron(asked, "h")) is Status.WRONG
    # An account that sees ports and not their hosts is no fault; one of two may be migrating.
    for seen in ({"id": ""}, {"id": "h"}, {"id": "h", "other": "else"}):
        assert status(checks_sources.neutron(replace(asked, seen=seen), "h")) is Status.OK
    elsewhere = checks_sources.neutron(replace(asked, seen={"id": "else"}), "h")
    assert status(elsewhere) is Status.WRONG
    assert "[neutron] host = else" in elsewhere.remedy


@pytest.mark.parametrize(("code", "word"), [(401, "token issue"), (403, "role add"), (0, "list")])
def test_how_neutron_refuses_says_what_to_do(code: int, word: str) -> None:
    finding = checks_sources.neutron(NeutronFacts(cause="no", status=code), "h")
    assert status(finding) is Status.WRONG
    assert word in finding.remedy


def test_a_database_as_it_ought_to_be() -> None:
    findings = [
        checks_store.database(STORE, running=True),
        checks_store.database(SERVER, running=True),
        checks_store.schema(STORE, running=True),
        checks_store.files(STORE),
    ]
    assert {status(one) for one in findings} == {Status.OK}


def test_a_database_that_is_gone_is_wrong_while_the_daemon_runs() -> None:
    gone = replace(STORE, there=False)
    assert status(checks_store.database(gone, running=False)) is Status.OK
    assert "store restore" in checks_store.database(gone, running=True).remedy


def test_a_database_that_is_cut_to_nothing_is_restored_and_not_begun_anew() -> None:
    finding = checks_store.database(replace(STORE, cut=True), running=True)
    assert status(finding) is Status.WRONG
    assert "truncated to 0 bytes" in finding.text
    assert finding.remedy.startswith("restore a backup: `dfmeta store restore FILE`")


@pytest.mark.parametrize(("facts", "word"), [(STORE, "sqlite3"), (SERVER, "pg_isready")])
def test_a_database_that_does_not_answer(facts: StoreFacts, word: str) -> None:
    finding = checks_store.database(replace(facts, cause="no"), running=True)
    assert status(finding) is Status.WRONG
    assert word in finding.remedy


@pytest.mark.parametrize(
    ("revision", "running", "expected"),
    [
        ("0002", False, Status.OK),
        (None, False, Status.OK),
        ("0002", True, Status.WRONG),
        (None, True, Status.WRONG),
        ("0004", False, Status.WRONG),
        ("0004", True, Status.WRONG),
    ],
)
def test_another_schema(revision: str | None, running: bool, expected: Status) -> None:
    finding = checks_store.schema(replace(STORE, revision=revision), running=running)
    assert status(finding) is expected


def test_the_answers_of_the_store_that_ours_asks() -> None:
    for good in (200, 404):
        assert status(checks_store.lookup(LookupFacts("u", good))) is Status.OK
    for bad in (401, 403, 302, 500):
        finding = checks_store.lookup(LookupFacts("u", bad))
        assert status(finding) is Status.WRONG
        assert str(bad) in finding.text
    assert "cannot be queried: gone" in checks_store.lookup(LookupFacts("u", cause="gone")).text


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (TokenFacts("/t", valid=1), Status.OK),
        (TokenFacts("/t", valid=1, expired=1), Status.OK),
        (TokenFacts("/t", expired=1), Status.WRONG),
        (TokenFacts("/t", there=False), Status.WRONG),
        (TokenFacts("/t", cause="line 1", remedy="Mend"), Status.WRONG),
    ],
)
def test_tokens(facts: TokenFacts, expected: Status) -> None:
    assert status(checks_store.tokens(facts)) is expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (DiskFacts(10 << 30, 20 << 30), Status.OK),
        (DiskFacts(10 << 30, 20 << 30, inodes=1000), Status.OK),
        (DiskFacts(100 << 20, 20 << 30), Status.WRONG),
        (DiskFacts(10 << 30, 20 << 30, inodes=1), Status.WRONG),
        # A small one of its own is not to be half empty.
        (DiskFacts(10 << 20, 100 << 20), Status.OK),
    ],
)
def test_room_on_the_disk(facts: DiskFacts, expected: Status) -> None:
    assert status(checks_store.disk(facts, "/var/lib/dfmeta")) is expected
