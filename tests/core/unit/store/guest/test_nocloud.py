"""cloud-init's NoCloud should find a seed at /nocloud/ that says what the record says."""

from __future__ import annotations

from email import message_from_bytes
from email.message import Message
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.guest import snippet
from dfmeta.model import Answer
from dfmeta.store.guest.roles import together, with_roles
from tests.core.unit.store.guest.crawling import asker
from tests.core.unit.store.support import KEY
from tests.core.unit.support import INSTANCE

NETWORK = {"version": 2, "ethernets": {"eth0": {"dhcp4": True}}}


def yaml_of(answer: Answer) -> Any:
    assert answer.status == 200
    return yaml.safe_load(answer.body)


def test_a_bare_record_is_a_whole_seed() -> None:
    ask = asker({})
    assert ask("/nocloud/").body == b"meta-data\nuser-data\nvendor-data"
    assert yaml_of(ask("/nocloud/meta-data")) == {
        "instance-id": INSTANCE,
        "local-hostname": INSTANCE,
    }
    for name in ("user-data", "vendor-data"):
        assert (ask(f"/nocloud/{name}").status, ask(f"/nocloud/{name}").body) == (200, b"")
    for path in ("network-config", "meta-data/x", "metadata"):
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
    assert parts == [one.encode() for one in (*texts, snippet.vendor_data())]


def test_yaml_has_every_text_and_stays_as_it_was_written() -> None:
    for text in ("\x85", "\ufeff", "😀", "a: b", "null"):
        ask = asker({"meta": {text: text}})
        assert yaml_of(ask("/nocloud/meta-data"))["meta"] == {text: text}, text
    text = "version: 2 # mine\nethernets: {}\n"
    assert asker({"network_config": text})("/nocloud/network-config").body == text.encode()


OWN = "#cloud-config\nruncmd:\n- [echo, \N{SNOWMAN}]\n"


def parts(text: object) -> list[str]:
    assert isinstance(text, str)
    found = message_from_bytes(text.encode())
    assert found.is_multipart()
    texts = []
    # As cloud-init does: what is made of parts is walked through, whatever it is inside.
    for part in found.walk():
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
