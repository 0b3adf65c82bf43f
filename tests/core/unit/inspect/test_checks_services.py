"""Judgements on Nova, Neutron, libvirt and the store, on facts that are wrong in one way each."""

from __future__ import annotations

from dataclasses import replace

from dfmeta.inspect import checks_nova, checks_sources, checks_store
from dfmeta.inspect.checks_nova import GuestFact, NovaFact
from dfmeta.inspect.checks_sources import LibvirtFacts, NeutronFacts
from dfmeta.inspect.checks_store import DiskFacts, LookupFacts, StoreFacts, TokenFacts
from dfmeta.inspect.finding import Finding
from tests.core.unit.inspect.values import INSTANCE, OK, UNKNOWN, WRONG, expect, status

URL = "http://n:8775"
GOOD = NovaFact("n:8775", 404, 400)
STORE = StoreFacts("/s/store.db", revision="0003", known=("0001", "0002", "0003"))
SERVER = replace(STORE, shown="postgresql://h/d", file=False)


def nova(fact: NovaFact, *, real: bool = False) -> Finding:
    instance = INSTANCE if real else ""
    return checks_nova.nova(fact, URL, instance=instance, project="p" if real else "")


def test_nova_is_judged_by_its_answers_with_and_without_a_signature() -> None:
    def fact(status: int = 0, unsigned: int = 0) -> NovaFact:
        return NovaFact("n:8775", status, unsigned)

    gone = NovaFact("n:8775", cause="gone", remedy="Look")
    off = "service_metadata_proxy is off"
    expect(
        [
            # A made-up instance that is not there shows that the signature was taken.
            (nova(GOOD), OK, ""),
            (nova(fact(404, 0)), OK, ""),
            (nova(fact(200), real=True), OK, ""),
            (nova(fact(403)), WRONG, "_secret here differs", "reload dfmeta-agent"),
            (nova(fact(404, 404)), WRONG, off, "nova-api-metadata"),
            (nova(fact(404, 200), real=True), WRONG, off, "nova-api-metadata"),
            (
                nova(GOOD, real=True),
                *(WRONG, f"has no instance {INSTANCE} in project p", "openstack server show"),
            ),
            (nova(fact(200)), WRONG, "answers 200", "curl"),
            (nova(fact(400), real=True), WRONG, "drops dfmeta's headers", "curl"),
            (nova(fact(502), real=True), WRONG, "has failed (502)", "its log"),
            (nova(gone), WRONG, "n:8775: gone", f"curl -sv {URL}"),
        ]
    )
    for known in (GOOD, fact(200)):
        assert known.takes_signature, "only such a host says which instances Nova has"
    for one in (fact(403), fact(404, 404), fact(404, 200), fact(500), gone):
        assert not one.takes_signature, one


def test_guests_that_nova_does_not_have_are_named() -> None:
    def guest(name: str, status: int) -> GuestFact:
        return GuestFact(name, INSTANCE, "p", status)

    guests, good = checks_nova.guests, [guest(f"tap{number}", 200) for number in range(8)]
    lost = guests([*good, guest("tap8", 404), guest("tap9", 404)], of=200)
    show = f"`openstack server show {INSTANCE} -c project_id`"
    whole = "each of 8 queried guests, of 200 with a project"
    expect(
        [
            (guests([*good, guest("tap8", 0)], of=200), OK, whole),
            (lost, WRONG, "(404) for 2 of 10 queried guests, of 200 with", show),
            (lost, WRONG, f"tap8 (instance {INSTANCE}, project p), tap9 ("),
            (guests([*good, guest("tap8", 500)], of=9), WRONG, "tap8 (500)"),
            (guests([guest("tap8", 0)], of=9), UNKNOWN, ""),
            (guests([], of=9), UNKNOWN, ""),
        ]
    )


def test_libvirt_may_be_missing_unless_it_is_wanted() -> None:
    missing = LibvirtFacts(missing=("/run/libvirt/qemu",))
    there = LibvirtFacts(folders=("/run/libvirt/qemu",), domains=2, active=1)
    denied = checks_sources.libvirt(LibvirtFacts(error="/etc/q: denied"), wanted=False)
    expect(
        [
            (checks_sources.libvirt(missing, wanted=False), OK, ""),
            (checks_sources.libvirt(missing, wanted=True), WRONG, ""),
            (checks_sources.libvirt(there, wanted=True), OK, "2 domains"),
            (denied, WRONG, "", "`namei -l /etc/q`"),
        ]
    )


def test_neutrons_ports_are_those_of_this_host() -> None:
    asked = NeutronFacts(asked={"id": "tap1"})
    elsewhere = replace(asked, seen={"id": "else"})
    expect(
        [
            (checks_sources.neutron(NeutronFacts(), "h"), OK, ""),
            (checks_sources.neutron(asked, "h"), WRONG, ""),
            # An account that sees ports and not their hosts is no fault; one may be migrating.
            *(
                (checks_sources.neutron(replace(asked, seen=seen), "h"), OK, "")
                for seen in ({"id": ""}, {"id": "h"}, {"id": "h", "other": "else"})
            ),
            (checks_sources.neutron(elsewhere, "h"), WRONG, "", "[neutron] host = else"),
            *(
                (
                    checks_sources.neutron(NeutronFacts(cause="no", status=code), "h"),
                    WRONG,
                    "",
                    word,
                )
                for code, word in ((401, "token issue"), (403, "role add"), (0, "list"))
            ),
        ]
    )


def test_database_of_the_store() -> None:
    database, schema = checks_store.database, checks_store.schema
    gone, cut = replace(STORE, there=False), replace(STORE, cut=True)
    expect(
        [
            (database(STORE, running=True), OK, ""),
            (database(SERVER, running=True), OK, ""),
            (checks_store.files(STORE), OK, ""),
            (database(gone, running=False), OK, ""),
            (database(gone, running=True), WRONG, "", "store restore"),
            (database(cut, running=True), WRONG, "truncated to 0 bytes", "store restore FILE`"),
            (database(replace(STORE, cause="no"), running=True), WRONG, "", "sqlite3"),
            (database(replace(SERVER, cause="no"), running=True), WRONG, "", "pg_isready"),
            (schema(STORE, running=True), OK, ""),
            *(
                (schema(replace(STORE, revision=revision), running=running), expected, "")
                for revision, running, expected in (
                    ("0002", False, OK),
                    (None, False, OK),
                    ("0002", True, WRONG),
                    (None, True, WRONG),
                    ("0004", False, WRONG),
                    ("0004", True, WRONG),
                )
            ),
        ]
    )
    remedy = database(cut, running=True).remedy
    assert remedy.startswith("restore a backup: "), "it is not begun anew"


def test_store_that_ours_asks_and_tokens() -> None:
    lookup = checks_store.lookup
    expect([(lookup(LookupFacts("u", code)), OK, "") for code in (200, 404)])
    expect([(lookup(LookupFacts("u", code)), WRONG, str(code)) for code in (401, 403, 302, 500)])
    expect([(lookup(LookupFacts("u", cause="gone")), WRONG, "cannot be queried: gone")])
    for facts, expected in (
        (TokenFacts("/t", valid=1), OK),
        (TokenFacts("/t", valid=1, expired=1), OK),
        (TokenFacts("/t", expired=1), WRONG),
        (TokenFacts("/t", there=False), WRONG),
        (TokenFacts("/t", cause="line 1", remedy="Mend"), WRONG),
    ):
        assert status(checks_store.tokens(facts)) is expected, facts


def test_room_on_the_disk() -> None:
    for facts, expected in (
        (DiskFacts(10 << 30, 20 << 30), OK),
        (DiskFacts(10 << 30, 20 << 30, inodes=1000), OK),
        (DiskFacts(100 << 20, 20 << 30), WRONG),
        (DiskFacts(10 << 30, 20 << 30, inodes=1), WRONG),
        # A small one of its own is not to be half empty.
        (DiskFacts(10 << 20, 100 << 20), OK),
    ):
        assert status(checks_store.disk(facts, "/var/lib/dfmeta")) is expected, facts
