"""The program that finds device roles, in the vendor data of guests whose record asks for it.

It stands beside what the operator gives: cloud-init takes the parts of a MIME message one by one,
by what each begins with (cloudinit/user_data.py, ``UserDataProcessor``).
"""

from __future__ import annotations

import functools
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from typing import Final

from dfmeta.guest import snippet

BOUNDARY: Final = "=-dfmeta-vendor-data-6d9f3c1e-="
"""Between the parts: the same each time, so that the answer and its entity tag are."""


def with_roles(own: object) -> object:
    """Return vendor data that runs the program, after what is there already.

    :param own: what stands under ``cloud-init``: a text, a list of them, or nothing. Anything else
        means nothing to cloud-init, and gives way.
    """
    if isinstance(own, list):
        return [*own, _program()]
    if isinstance(own, str) and own:
        return _together(own, _program())
    return _program()


@functools.cache
def _program() -> str:
    return snippet.vendor_data()


def _together(*texts: str) -> str:
    message = MIMEMultipart(boundary=BOUNDARY)
    for text in texts:
        message.attach(MIMEText(text, "plain", "utf-8"))
    return message.as_string()
