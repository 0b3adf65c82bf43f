"""Whatever a document holds, each dialect should answer all that it lists; NoCloud has a seed."""

import json
from collections.abc import Callable
from email import message_from_bytes
from email.message import Message
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dfmeta.guest import snippet
from dfmeta.model import Answer
from dfmeta.store.db.repository import Kind
from dfmeta.store.guest import ec2
from dfmeta.store.guest.dialects import EC2_TREES, AnswerSettings, need
from dfmeta.store.guest.documents import together, with_roles
from tests.core.unit.store.guest.crawling import asker, crawl
from tests.core.unit.store.support import KEY
from tests.core.unit.support import INSTANCE
from tests.harness.examples import examples

Ask = Callable[..., Answer]
NEVER_LISTED = (
    *("/openstack/latest/user_data", "/latest/user-data", "/nocloud/network-config", "/nothing"),
    *("/openstack/latest/network_data.json", "/2009-04-04/user-data", "/2009-04-04/nothing"),
    *("/openstack/1999-01-01", "/latest/meta-data/nothing", "/nocloud/nothing", "/../x"),
)
"""Paths that some documents have, or none."""
TEMPLATES = {"api_url": "{{.hostname}}/{{.operating_system.slug}}"}
NIC = {
    "type": "nic",
    "bus": "pci",
    "address": "0000:00:03.0",
    "mac": "fa:16:3e:00:00:01",
    "vlan": 7,
    "vf_trusted": False,
    "tags": ["lan"],
}
NAMES = (
    *("id", "hostname", "name", "availability_zone", "facility", "region", "metro", "plan"),
    *("class", "launch_index", "ssh_keys", "public_keys", "meta", "instance_tags", "devices"),
    *("vendor_data", "vendor_data2", "network_config", "network_data", "network", "iqn"),
    *("operating_system", "spot", "tags", "api_url", "links", "addresses", "address", "public"),
    *("key", "label", "slug", "termination_time", "state", "license_activation", "cloud-init"),
)
TEXTS = st.text(max_size=20) | st.sampled_from(
    [
        *("web1", "a/b", "0=x", "..", "10.0.0.1", "2001:db8::1", "ssh-rsa AAAA a/b", "\n", " "),
        *("_index", "%2e", "%2f", "\ud800", "\x85", "😀", "meta-data/"),
    ]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(NAMES) | TEXTS, inner, max_size=4)
    ),
    max_leaves=12,
)
DOCUMENTS = st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, JSON))


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


@settings(deadline=None, max_examples=examples(50))
@given(
    members=st.none() | DOCUMENTS,
    userdata=st.none() | st.binary(max_size=9),
    tree=st.sampled_from(EC2_TREES),
)
def test_a_listed_path_exists_and_depends_on_the_needed_halves_alone(
    members: dict[str, object] | None, userdata: bytes | None, tree: str
) -> None:
    if members is None and userdata is None:
        return
    whole = asker(members, userdata=userdata, ec2_tree=tree, templates=TEMPLATES)
    if members is not None:
        check(whole, tree)
    listed = [path for path, _ in crawl(whole, ec2_tree=tree)]
    for path in {*listed, "/metadata", "/userdata", "/api/v1/userdata", *NEVER_LISTED}:
        needed = need(path, AnswerSettings(ec2_tree=tree))
        shown = members if Kind.METADATA in needed.halves else None
        given = userdata if Kind.USERDATA in needed.halves else None
        known = [(shown, given)]
        if shown is None and given is None:
            # Either half would do, where it matters at all that there is a record.
            known = [(members, None), (None, userdata)] if needed.record else []
            assert needed.record or whole(path).status == 404
        for document, data in known:
            if document is not None or data is not None:
                ask = asker(document, userdata=data, ec2_tree=tree, templates=TEMPLATES)
                assert ask(path) == whole(path), path


def check(ask: Ask, tree: str) -> None:
    """All that is listed is there, once, has a tag, and is what its type says."""
    result = [*crawl(ask, ec2_tree=tree), ("/metadata", ask("/metadata"))]
    assert {path: answer.status for path, answer in result if answer.status != 200} == {}
    assert len({path for path, _answer in result}) == len(result)
    for path, answer in result:
        assert ask(path, if_none_match=dict(answer.headers)["ETag"]).status == 304
        if answer.content_type == "application/json" and path != "/metadata":
            json.loads(answer.body, parse_constant=refuse_constant)
    keys = ask("/latest/meta-data/public-keys")
    if keys.status == 200:
        names = [line.partition("=")[2] for line in keys.body.decode().split("\n")]
        shown = json.loads(ask("/openstack/latest/meta_data.json").body)["public_keys"]
        assert names == [*shown], "the names of keys are the same in each dialect"
    assert isinstance(yaml.safe_load(ask("/nocloud/meta-data").body), dict)
    assert isinstance(json.loads(ask("/metadata").body), dict)


# EC2: what the tree has of the document


WHOLE = {
    "hostname": "web1",
    "facility": "da11",
    "metro": "da",
    "plan": "c3",
    "launch_index": 3,
    "instance_tags": {"role": "web", "a/b": "x", "empty": ""},
    "network": {
        "addresses": [
            {"address": "10.0.0.1"},
            {"address": "10.0.0.2"},
            {"address": "192.0.2.1", "public": True},
            {"address": "2001:db8::1", "public": True},
        ]
    },
}


def test_ec2_has_the_members_of_the_document() -> None:
    for name, body in [
        ("ami-launch-index", "3"),
        ("instance-type", "c3"),
        ("local-ipv4", "10.0.0.1"),
        ("public-ipv4", "192.0.2.1"),
        ("ipv6", "2001:db8::1"),
        ("placement/", "availability-zone\nregion"),
        ("placement/region", "da"),
        ("tags/", "instance/"),
        ("tags/instance", "empty\nrole"),
        ("tags/instance/role", "web"),
    ]:
        result = asker(WHOLE)(f"/2021-03-23/meta-data/{name}")
        assert (result.status, result.body.decode()) == (200, body), name
    for version in ec2.VERSIONS[ec2.VERSIONS.index(ec2.OWN_SINCE) :]:
        like = "latest" if version >= ec2.TAGS_SINCE else ec2.OWN_SINCE
        for path in ("", "/meta-data/", "/meta-data/tags/instance/role"):
            assert asker(WHOLE)(f"/{version}{path}") == asker(WHOLE)(f"/{like}{path}"), version
    assert asker(WHOLE)(f"/{ec2.OWN_SINCE}/meta-data/tags").status == 404
    assert (
        asker({"tags": ["worker"], "meta": {"role": "web"}})("/latest/meta-data/tags").status == 404
    )


def test_the_identity_document_identifies_the_guest() -> None:
    ask = asker(WHOLE)
    assert ask("/latest/dynamic/").body == b"instance-identity/"
    assert ask("/latest/dynamic/instance-identity/").body == b"document"
    unknown = ("billingProducts", "devpayProductCodes", "marketplaceProductCodes")
    assert json.loads(ask("/latest/dynamic/instance-identity/document").body) == {
        **dict.fromkeys(("accountId", "architecture", "imageId"), ""),
        **dict.fromkeys((*unknown, "kernelId", "ramdiskId")),
        "instanceId": ask("/latest/meta-data/instance-id").body.decode(),
        "instanceType": "c3",
        "availabilityZone": "da11",
        "region": "da",
        "privateIp": "10.0.0.1",
        "pendingTime": "2026-01-02T03:04:05Z",
        "version": "2017-09-30",
    }


# OpenStack: what comes of the members that Nova has as well


def test_openstack_has_vendor_data_of_a_text_and_the_objects_of_network_data() -> None:
    link = {"id": "tap1", "type": "phy", "ethernet_mac_address": "fa:16:3e:00:00:01"}
    ask = asker({"vendor_data": "x", "network_data": {"links": [link, "odd"], "networks": 5}})
    for name, content in (
        ("network_data.json", {"links": [link], "networks": [], "services": []}),
        ("vendor_data.json", {"cloud-init": "x"}),
    ):
        assert json.loads(ask(f"/openstack/latest/{name}").body) == content


def test_broken_list_of_devices_is_left_out() -> None:
    ask = asker({"name": "web", "devices": [NIC, {**NIC, "bus": "usb"}]})
    result = json.loads(ask("/openstack/latest/meta_data.json").body)
    assert (result["name"], result["devices"]) == ("web", [])


# NoCloud


NETWORK = {"version": 2, "ethernets": {"eth0": {"dhcp4": True}}}


def yaml_of(answer: Answer) -> Any:
    assert answer.status == 200
    return yaml.safe_load(answer.body)


def test_a_bare_record_is_a_whole_seed() -> None:
    ask = asker({})
    assert ask("/nocloud/").body == b"meta-data\nuser-data\nvendor-data\nnetwork-config"
    assert yaml_of(ask("/nocloud/meta-data")) == {
        "instance-id": INSTANCE,
        "local-hostname": INSTANCE,
    }
    for name in ("user-data", "vendor-data", "network-config"):
        assert (ask(f"/nocloud/{name}").status, ask(f"/nocloud/{name}").body) == (200, b"")
    for path in ("meta-data/x", "metadata"):
        assert ask(f"/nocloud/{path}").status == 404, path


def test_the_seed_says_what_the_record_says() -> None:
    document = {
        "hostname": "web1.example.org",
        "ssh_keys": [KEY],
        "availability_zone": "az1",
        "metro": "da",
        "launch_index": 2,
        "meta": {"role": "wéb 😀\n", "deep": [1, None, True]},
        "vendor_data": "#cloud-config\n{}\n",
        "network_config": NETWORK,
    }
    ask = asker(document, userdata=b"\x1f\x8b\0\xff")
    assert yaml_of(ask("/nocloud/meta-data")) == {
        "instance-id": INSTANCE,
        "local-hostname": "web1.example.org",
        "launch-index": 2,
        "public-keys": [KEY],
        "availability-zone": "az1",
        "region": "da",
        "meta": {"role": "wéb 😀\n", "deep": [1, None, True]},
    }
    assert ask("/nocloud/user-data").body == b"\x1f\x8b\0\xff"
    assert ask("/nocloud/vendor-data").body == b"#cloud-config\n{}\n"
    assert yaml_of(ask("/nocloud/network-config")) == NETWORK
    assert ask("/nocloud").body.endswith(b"\nnetwork-config")


def test_vendor_data_of_openstack_s_form_gives_cloud_init_s_part() -> None:
    ask = asker({"vendor_data": {"cloud-init": "#!/bin/sh\n", "a": {}}})
    assert ask("/nocloud/vendor-data").body == b"#!/bin/sh\n"
    for nothing in (5, [5, ""]):
        ask = asker({"vendor_data": {"cloud-init": nothing}})
        assert ask("/nocloud/vendor-data").body == b"", nothing
    texts = ["#!/bin/sh\n", "#cloud-config\n{}\n"]
    ask = asker({"vendor_data": {"cloud-init": texts[:1]}})
    assert ask("/nocloud/vendor-data").body == texts[0].encode()
    ask = asker({"vendor_data": {"cloud-init": texts}, "tag_devices": True})
    message = message_from_bytes(ask("/nocloud/vendor-data").body)
    parts = [part.get_payload(decode=True) for part in message.walk() if not part.is_multipart()]
    assert parts == [text.encode() for text in (*texts, snippet.vendor_data())]


def test_yaml_has_every_text_and_stays_as_it_was_written() -> None:
    for text in ("\x85", "\ufeff", "😀", "a: b", "null"):
        ask = asker({"meta": {text: text}})
        assert yaml_of(ask("/nocloud/meta-data"))["meta"] == {text: text}, text
    text = "version: 2 # mine\nethernets: {}\n"
    assert asker({"network_config": text})("/nocloud/network-config").body == text.encode()


OWN = "#cloud-config\nruncmd:\n- [echo, \N{SNOWMAN}]\n"


def parts(text: object) -> list[str]:
    assert isinstance(text, str)
    message = message_from_bytes(text.encode())
    assert message.is_multipart()
    texts = []
    # As cloud-init does: what is made of parts is walked through, whatever it is inside.
    for part in message.walk():
        if part.is_multipart():
            continue
        assert isinstance(part, Message)
        payload = part.get_payload(decode=True)
        assert isinstance(payload, bytes)
        texts.append(payload.decode(errors="replace"))
    return texts


def test_the_program_is_one_more_part() -> None:
    assert parts(with_roles(OWN)) == [OWN, snippet.vendor_data()]
    assert with_roles([OWN]) == [OWN, snippet.vendor_data()]
    for nothing in (None, "", {}, 5):
        assert with_roles(nothing) == snippet.vendor_data(), nothing
    odd = "MIME-Version: 1.0\n\t\x85\x0c=\x0b\r;;:\x1c;-:=\n:=\n\n:\x1cA ="
    assert parts(together(odd, OWN)) == [odd, OWN], "a header that cannot be written"


def test_a_text_that_is_mime_keeps_its_parts() -> None:
    own = MIMEMultipart()
    own.attach(MIMEText(OWN, "cloud-config", "utf-8"))
    own.attach(MIMEText("#!/bin/sh\nFrom here\n", "x-shellscript", "utf-8"))
    text = own.as_string().replace("MIME-Version:", "Mime-VERSION:")
    both = with_roles(text)
    assert parts(both) == [OWN, "#!/bin/sh\nFrom here\n", snippet.vendor_data()]
    assert parts(with_roles(both)) == [*parts(both), snippet.vendor_data()]
    late = "#" * 4096 + text
    assert parts(with_roles(late)) == [late, snippet.vendor_data()]


@given(st.text(st.characters()), st.text(st.characters()))
def test_no_text_keeps_the_program_out(before: str, after: str) -> None:
    for text in (before, f"{before}MIME-Version: 1.0\n{after}", f"MIME-Version:{before}\n{after}"):
        message = together(text, "#!/bin/sh\n")
        assert parts(message)[-1] == "#!/bin/sh\n"
        assert message == together(text, "#!/bin/sh\n")
