"""A VM's network_data.json should have its subports, and never cost a guest its network."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfmeta.model import Answer, GuestRequest
from dfmeta.proxy.backends.network_data import Vlan, completed, is_file, with_vlans
from dfmeta.store.guest.requests import etag_of, tagged
from tests.harness.examples import examples

PATH = "/openstack/latest/network_data.json"
ONE, TWO = "fa:16:3e:00:00:01", "fa:16:3e:00:00:02"
SUB = "fa:16:3f:00:00:64"
VLAN = Vlan(ONE, 100, SUB)
NOVA: dict[str, Any] = {
    "links": [
        {
            "id": "tap1",
            "vif_id": "11111111-1111-4111-8111-111111111111",
            "type": "ovs",
            "mtu": 1442,
            "ethernet_mac_address": ONE.upper(),
        },
        {"id": "tap2", "type": "ovs", "mtu": None, "ethernet_mac_address": TWO},
    ],
    "networks": [
        {"id": "network0", "type": "ipv4_dhcp", "link": "tap1", "network_id": "n"},
        {"id": "network1", "type": "ipv4_dhcp", "link": "tap2", "network_id": "m"},
    ],
    "services": [{"type": "dns", "address": "192.0.2.53"}],
}
LINK = {
    "id": "dfsub100",
    "type": "vlan",
    "vlan_link": "tap1",
    "vlan_id": 100,
    "vlan_mac_address": SUB,
    "mtu": 1442,
}


def nova(*links: dict[str, Any], **members: Any) -> dict[str, Any]:
    document = copy.deepcopy(NOVA)
    document["links"] += links
    return {**document, **members}


def completed_document(document: Any, *vlans: Vlan) -> Any:
    return json.loads(with_vlans(json.dumps(document).encode(), vlans))


def test_a_subport_is_a_link_on_its_parents() -> None:
    document = completed_document(NOVA, VLAN)
    assert document["links"] == [*NOVA["links"], LINK]
    assert document == {**NOVA, "links": document["links"]}
    assert list(document) == list(NOVA)


def test_a_link_has_no_mtu_where_its_parent_has_none() -> None:
    for mtu in (None, 0, -1, True, "1500", 1500.0):
        document = nova()
        document["links"][1]["mtu"] = mtu
        (link,) = completed_document(document, Vlan(TWO, 7, SUB))["links"][2:]
        assert link == {
            "id": "dfsub7",
            "type": "vlan",
            "vlan_link": "tap2",
            "vlan_id": 7,
            "vlan_mac_address": SUB,
        }


def test_a_link_has_its_own_mtu_but_no_larger_one_than_its_parents() -> None:
    for of_vlan, below, mtu in ((1400, 1500, 1400), (9000, 1500, 1500), (1400, None, 1400)):
        document = nova()
        document["links"][1]["mtu"] = below
        (link,) = completed_document(document, Vlan(TWO, 7, SUB, of_vlan))["links"][2:]
        assert link["mtu"] == mtu


def test_a_vm_may_have_a_vlan_id_on_two_trunks() -> None:
    others = [Vlan(ONE, 200, ONE), Vlan(TWO, 100, TWO), VLAN, VLAN]
    links = completed_document(NOVA, *others)["links"][2:]
    assert [(link["id"], link["vlan_link"], link["vlan_mac_address"]) for link in links] == [
        ("dfsub100", "tap1", SUB),
        ("dfsub200", "tap1", ONE),
        ("dfsub100-tap2", "tap2", TWO),
    ]


@pytest.mark.parametrize("vlan_id", [100, "100"])
def test_vlan_of_the_document_is_not_added_twice(vlan_id: object) -> None:
    own = {**LINK, "id": "mine", "vlan_id": vlan_id, "vlan_mac_address": TWO}
    document = json.dumps(nova(own)).encode()
    assert with_vlans(document, [VLAN]) == document
    assert len(completed_document(nova({**own, "vlan_link": "tap2"}), VLAN)["links"]) == 4
    assert len(completed_document(nova({**own, "vlan_id": 101}), VLAN)["links"]) == 4


@pytest.mark.parametrize(
    "links",
    [
        [],
        [{"id": "a", "type": "ovs", "ethernet_mac_address": TWO}],
        [{"id": "a", "type": "ovs"}],
        [{"id": "a", "type": ["ovs"], "ethernet_mac_address": ONE}],
        [{"id": one, "type": "ovs", "ethernet_mac_address": ONE} for one in "ab"],
        [{"id": "a", "type": "ovs", "ethernet_mac_address": ONE}] * 2,
        [{"id": "a", "type": "ovs", "ethernet_mac_address": ONE}, {"type": "ovs"}],
        [{"id": "", "type": "ovs", "ethernet_mac_address": ONE}],
        [
            {"id": "a", "type": "phy", "ethernet_mac_address": ONE},
            {"id": "b", "type": "bond", "ethernet_mac_address": ONE, "bond_links": ["a", []]},
        ],
    ],
    ids=str,
)
def test_document_without_the_link_below_is_left(links: list[Any]) -> None:
    document = json.dumps(nova() | {"links": links}).encode()
    assert with_vlans(document, [VLAN]) == document


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"links": {}}',
        json.dumps(NOVA).encode()[:-1],
        json.dumps(NOVA).encode()[:-1] + b', "links": []}',
        json.dumps(NOVA).encode()[:-1] + b', "a": NaN}',
        json.dumps(NOVA).encode()[:-1] + b', "a": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        json.dumps(NOVA).encode()[:-1] + b', "a": ' + b"1" * 5000 + b"}",
        json.dumps(NOVA).encode("utf-16"),
    ],
    ids=lambda content: repr(content[-24:]),
)
def test_another_document_passes_byte_for_byte(document: bytes) -> None:
    assert with_vlans(document, [VLAN]) == document


MACS = st.sampled_from([ONE, TWO, SUB])
IDS = st.sampled_from(["tap1", "tap2", "dfsub1", "dfsub2", "dfsub1-tap1", "b"])
ODD = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(IDS))
LINKS = st.fixed_dictionaries(
    {},
    optional={
        "id": IDS | ODD,
        "type": st.sampled_from(["ovs", "phy", "vlan", "bond"]) | ODD,
        "ethernet_mac_address": MACS | MACS.map(str.upper) | ODD,
        "vlan_link": IDS | ODD,
        "vlan_id": st.sampled_from([1, 2, "1"]) | ODD,
        "bond_links": st.lists(IDS | ODD) | ODD,
        "mtu": st.integers(0, 9000) | ODD,
    },
)
DOCUMENTS = st.one_of(
    st.binary(),
    st.recursive(ODD, lambda value: st.lists(value) | st.dictionaries(st.text(), value)).map(
        lambda value: json.dumps(value).encode()
    ),
    st.dictionaries(st.sampled_from(["networks", "services"]), ODD).flatmap(
        lambda rest: (st.lists(LINKS) | ODD).map(
            lambda links: json.dumps({**rest, "links": links}).encode()
        )
    ),
)
VLANS = st.lists(st.builds(Vlan, MACS, st.integers(1, 2), MACS))


@settings(max_examples=examples(300))
@given(DOCUMENTS, VLANS)
def test_complete_links_alone_are_added_once(document: bytes, vlans: list[Vlan]) -> None:
    result = with_vlans(document, vlans)
    assert with_vlans(result, vlans) == result
    if result == document:
        return
    before, after = json.loads(document), json.loads(result)
    old = before["links"]
    new = after["links"][len(old) :]
    assert after == {**before, "links": [*old, *new]}
    ids = [link["id"] for link in after["links"]]
    assert len(set(ids)) == len(ids)
    for added in new:
        (below,) = [link for link in old if link["id"] == added["vlan_link"]]
        mac = below["ethernet_mac_address"].lower()
        assert Vlan(mac, added["vlan_id"], added["vlan_mac_address"]) in vlans
        assert below["type"] not in ("vlan", "bond")
    places = [(link["vlan_link"], link["vlan_id"]) for link in new]
    assert len(set(places)) == len(places)


def test_the_file_has_each_spelling_of_its_path() -> None:
    for path in (
        *(PATH, "/openstack/2018-08-27/network_data.json", f"{PATH}/", f"/{PATH}"),
        *("/openstack//latest/network_data.json", "/openstack/latest/network%5fdata.json"),
    ):
        assert is_file(path), path
    for path in (
        *("/openstack/network_data.json", "/openstack/a/b/network_data.json", f"{PATH}/x", ""),
        "/openstack/../openstack/latest/network_data.json",
        "/openstack/latest/Network_data.json",
    ):
        assert not is_file(path), path


BODY = json.dumps(NOVA).encode()


def test_completed_answer_keeps_its_type_and_valid_headers() -> None:
    given = (("Content-Length", "9"), ("Last-Modified", "a"), ("X-A", "1"), ("X-A", "2"))
    answer = completed(Answer(200, BODY, headers=given), [VLAN], GuestRequest("GET", PATH))
    assert answer == Answer(200, with_vlans(BODY, [VLAN]), headers=(("X-A", "1"), ("X-A", "2")))


def test_any_other_answer_passes() -> None:
    for answer in (
        Answer(404, BODY),
        Answer(206, BODY),
        Answer(200, BODY, headers=(("Content-Encoding", "gzip"),)),
        Answer(200, b"\x1f\x8b\x00", headers=(("content-length", "3"),)),
    ):
        assert completed(answer, [VLAN], GuestRequest("GET", PATH)) == answer


def test_an_entity_tag_is_that_of_the_completed_document() -> None:
    first = completed(tagged(Answer(200, BODY)), [VLAN], GuestRequest("GET", PATH))
    (tag,) = [value for name, value in first.headers if name == "ETag"]
    assert tag == etag_of(first) != etag_of(Answer(200, BODY))
    again = GuestRequest("GET", PATH, headers={"if-none-match": tag})
    assert completed(tagged(Answer(200, BODY)), [VLAN], again).status == 304
    # Its subports have changed since.
    assert completed(tagged(Answer(200, BODY)), [VLAN, Vlan(ONE, 7, SUB)], again).status == 200
    # It has no link for them: the tag is that of the document as it is.
    other = [Vlan(SUB, 7, SUB)]
    old = GuestRequest("GET", PATH, headers={"if-none-match": etag_of(Answer(200, BODY))})
    assert completed(tagged(Answer(200, BODY)), other, old).status == 304
    assert completed(tagged(Answer(200, BODY)), [VLAN], old).status == 200
