"""The program that finds device roles, in the vendor data of guests whose record asks for it.

It stands beside what the operator gives: cloud-init takes the parts of a MIME message one by one,
by what each begins with (cloudinit/user_data.py, ``UserDataProcessor``).
"""

from __future__ import annotations

import functools
import hashlib
from contextlib import suppress
from email import message_from_string
from email.errors import MessageError
from email.message import Message
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from typing import Final

from dfmeta.guest import snippet

MIME: Final = "mime-version:"
"""What makes a text a MIME message to cloud-init, in any case, where it stands near the start."""
_START: Final = 4096
"""Characters that cloud-init looks at for it (cloudinit/user_data.py, ``convert_string``)."""
_BOUNDARY: Final = 40
"""Digits of a boundary; it has 70 characters at most (RFC 2046, section 5.1.1)."""


def with_roles(own: object) -> object:
    """Return vendor data that runs the program, after what is there already.

    :param own: what stands under ``cloud-init``: a text, a list of them, or nothing. Anything else
        means nothing to cloud-init, and gives way.
    """
    if isinstance(own, list):
        return [*own, _program()]
    if isinstance(own, str) and own:
        return together(own, _program())
    return _program()


@functools.cache
def _program() -> str:
    return snippet.vendor_data()


def together(*texts: str) -> str:
    """Return texts as one that cloud-init takes apart again; one alone as it is, none as empty.

    A text that is a MIME message itself stays one: inside a text's part cloud-init would not look
    for its parts.
    """
    if len(texts) < 2:
        return "".join(texts)
    digest = hashlib.sha256(repr(texts).encode()).hexdigest()
    # The same each time, so that the answer and its entity tag are; of no text that is inside.
    message = MIMEMultipart(boundary=f"=-dfmeta-{digest[:_BOUNDARY]}-=")
    for text in texts:
        message.attach(_part(text))
    return message.as_string()


def _part(text: str) -> Message:
    # With a question mark for what UTF-8 cannot hold, as where it stands alone.
    text = text.encode("utf-8", "replace").decode()
    if MIME in text[:_START].lower():
        message = message_from_string(text)
        # With a header that has odd line ends it can be read, and not be written.
        with suppress(MessageError):
            message.as_string()
            return message
    return MIMEText(text, "plain", "utf-8")
