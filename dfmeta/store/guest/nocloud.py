"""cloud-init's NoCloud seed below ``/nocloud``. Pure functions.

For a guest whose SMBIOS serial number or kernel command line says
``ds=nocloud;s=http://169.254.169.254/nocloud/``. cloud-init appends the names to that URL. It reads
meta-data, user-data and vendor-data in this order, newer releases also network-config, and refuses
a seed without one of the first two (cloudinit/util.py, ``read_seeded``;
https://docs.cloud-init.io/en/latest/reference/datasources/nocloud.html). From 24.3 on it repeats a
request for network-config that is answered with 404, for ten seconds, so that the file is there for
each guest; an empty one leaves the network to DHCP.
"""

from collections.abc import Sequence
from typing import Any, Final

import yaml

from dfmeta.model import Answer
from dfmeta.store.db import record as needs
from dfmeta.store.db.record import Need
from dfmeta.store.guest import documents

METADATA: Final = "meta-data"
USERDATA: Final = "user-data"
VENDOR_DATA: Final = "vendor-data"
NETWORK_CONFIG: Final = "network-config"
NAMES: Final = (METADATA, USERDATA, VENDOR_DATA, NETWORK_CONFIG)


def answer(
    document: documents.Document, segments: Sequence[str], _context: documents.AnswerContext
) -> Answer | None:
    """Answer a GET below ``/nocloud``; None if the path does not exist.

    :param segments: the path after ``nocloud``, decoded, without empty parts; from a guest.
    """
    match segments:
        case []:
            return Answer(200, "\n".join(NAMES).encode())
        case [name] if name == METADATA:
            return _yaml(_metadata(document))
        case [name] if name == USERDATA:
            return Answer(200, document.userdata or b"", content_type=documents.USERDATA_TYPE)
        case [name] if name == VENDOR_DATA:
            return _text(_vendor_data(document))
        case [name] if name == NETWORK_CONFIG:
            config = documents.network_config_of(document)
            if isinstance(config, str):
                return _text(config)
            return _yaml(config) if config else _text("")
    return None


def need(segments: Sequence[str]) -> Need:
    """Return the parts of a record that the answer for a path depends on.

    :param segments: see :func:`answer`.
    """
    match segments:
        case [name] if name in (METADATA, VENDOR_DATA, NETWORK_CONFIG):
            return needs.METADATA
        case [name] if name == USERDATA:
            return needs.USERDATA
    return needs.ANY_HALF


def _metadata(document: documents.Document) -> dict[str, Any]:
    """Return cloud-init's members (cloudinit/sources/__init__.py), and ``meta`` for templates."""
    content: dict[str, Any] = {
        "instance-id": document.instance_id,
        "local-hostname": document.hostname,
    }
    if document.launch_index is not None:
        content["launch-index"] = document.launch_index
    if document.keys:
        content["public-keys"] = [key.data for key in document.keys]
    if document.zone:
        content["availability-zone"] = document.zone
    if document.region:
        content["region"] = document.region
    if meta := documents.meta_of(document):
        content["meta"] = meta
    return content


def _vendor_data(document: documents.Document) -> str:
    """Return vendor data as one text, as a seed needs it; OpenStack's may be a list of texts."""
    vendor_data = documents.vendor_data_of(document).get(documents.CLOUD_INIT)
    texts = vendor_data if isinstance(vendor_data, list) else [vendor_data]
    return documents.together(*(text for text in texts if isinstance(text, str) and text))


def _text(text: str) -> Answer:
    # A lone surrogate, which UTF-8 cannot hold, becomes a question mark.
    return Answer(200, text.encode("utf-8", "replace"))


def _yaml(content: dict[str, Any]) -> Answer:
    # Not JSON: PyYAML reads JSON's escapes of characters above U+FFFF as two characters. In ASCII:
    # PyYAML cannot always read the other characters that it writes (U+0085).
    return _text(yaml.safe_dump(content, sort_keys=False))
