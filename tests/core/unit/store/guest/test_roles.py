"""Roles should come in vendor data beside what the operator gives, and change nothing of it."""

from __future__ import annotations

from email import message_from_bytes
from email.message import Message
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

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
