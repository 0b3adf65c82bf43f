"""The program that finds device roles, in the vendor data of guests with ``tag_devices``.

It is added to the operator's vendor data: cloud-init handles the parts of a MIME message one by
one, by the beginning of each (cloudinit/user_data.py, ``UserDataProcessor``).
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
"""Marks a text as a MIME message for cloud-init, in lower or upper case, near its start."""
_START: Final = 4096
"""Characters in which cloud-init looks for it (cloudinit/user_data.py, ``convert_string``)."""
_BOUNDARY: Final = 40
"""Digits of a boundary; it has 70 characters at most (RFC 2046, section 5.1.1)."""


def with_roles(own: object) -> object:
    """Return vendor data that runs the program, after the operator's vendor data.

    :param own: the member ``cloud-init``: a text, a list of texts, or None. Any other value means
        nothing to cloud-init, and is replaced.
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
    """Return texts as one MIME message, which cloud-init splits again.

    A single text is returned as it is, and no text as an empty one. A text that is a MIME message
    itself becomes a part as a message: cloud-init would not look for its parts inside a text.
    """
    if len(texts) < 2:
        return "".join(texts)
    digest = hashlib.sha256(repr(texts).encode()).hexdigest()
    # The boundary is the same each time, so that the answer and its entity tag are the same. It
    # occurs in none of the texts.
    message = MIMEMultipart(boundary=f"=-dfmeta-{digest[:_BOUNDARY]}-=")
    for text in texts:
        message.attach(_part(text))
    return message.as_string()


def _part(text: str) -> Message:
    # Characters that UTF-8 cannot hold become question marks, as in a single text.
    text = text.encode("utf-8", "replace").decode()
    if MIME in text[:_START].lower():
        message = message_from_string(text)
        # A message with odd line ends in its header can be read, but not written.
        with suppress(MessageError):
            message.as_string()
            return message
    return MIMEText(text, "plain", "utf-8")
