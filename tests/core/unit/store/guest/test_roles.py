"""Roles should come in vendor data beside what the operator gives, and change nothing of it."""

from __future__ import annotations

from email import message_from_bytes
from email.message import Message
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.guest import snippet
from dfmeta.store.guest.roles import together, with_roles

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


def test_a_text_and_the_program_are_two_parts_of_one_message() -> None:
    assert parts(with_roles(OWN)) == [OWN, snippet.vendor_data()]


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


def test_a_header_that_cannot_be_written_makes_a_text_of_it() -> None:
    odd = "MIME-Version: 1.0\n\t\x85\x0c=\x0b\r;;:\x1c;-:=\n:=\n\n:\x1cA ="
    assert parts(together(odd, OWN)) == [odd, OWN]


@given(st.text(st.characters()), st.text(st.characters()))
def test_no_text_keeps_the_program_out(before: str, after: str) -> None:
    for text in (before, f"{before}MIME-Version: 1.0\n{after}", f"MIME-Version:{before}\n{after}"):
        message = together(text, "#!/bin/sh\n")
        assert parts(message)[-1] == "#!/bin/sh\n"
        assert message == together(text, "#!/bin/sh\n")


def test_it_is_the_same_each_time() -> None:
    assert with_roles(OWN) == with_roles(OWN)


def test_a_list_gets_one_more() -> None:
    assert with_roles([OWN]) == [OWN, snippet.vendor_data()]


@pytest.mark.parametrize("nothing", [None, "", {}, 5])
def test_where_there_is_nothing_the_program_is_all(nothing: object) -> None:
    assert with_roles(nothing) == snippet.vendor_data()
