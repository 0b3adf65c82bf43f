"""OpenStack's metadata, as Nova serves it under ``/openstack``. Pure functions.

Names, versions and the listing of each version are Nova's (nova/api/metadata/base.py and
https://docs.openstack.org/nova/latest/user/metadata.html). Nova also answers requests for a file
that a version does not list; this dialect answers 404, so that a listing names all files that
exist. A member of meta_data.json that Nova has for each instance is there, null or empty without a
value. doc/source/nova-differences.rst has all differences.
"""

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dfmeta.devices import as_of
from dfmeta.model import Answer
from dfmeta.store.db.record import ANY_HALF, METADATA, USERDATA_ALONE, Kind, Need
from dfmeta.store.guest.documents import (
    USERDATA_TYPE,
    AnswerContext,
    Document,
    dedicated_cpus_of,
    devices_of,
    meta_of,
    network_data_of,
    vendor_data2_of,
    vendor_data_of,
)

JSON_TYPE: Final = "application/json"

FOLSOM: Final = "2012-08-10"
GRIZZLY: Final = "2013-04-04"
HAVANA: Final = "2013-10-17"
LIBERTY: Final = "2015-10-15"
NEWTON_ONE: Final = "2016-06-30"
NEWTON_TWO: Final = "2016-10-06"
OCATA: Final = "2017-02-22"
ROCKY: Final = "2018-08-27"
VICTORIA: Final = "2020-10-14"
EPOXY: Final = "2025-04-04"
VERSIONS: Final = (
    *(FOLSOM, GRIZZLY, HAVANA, LIBERTY, NEWTON_ONE, NEWTON_TWO, OCATA, ROCKY, VICTORIA, EPOXY),
)
LATEST: Final = "latest"

PREFIX: Final = "openstack"
PASSWORD: Final = "password"  # noqa: S105 - the name of a path


@dataclass(frozen=True, slots=True)
class _File:
    """A file in a version's directory, and the version that introduced it."""

    name: str
    since: str
    answer: Callable[[Document, str, AnswerContext], Answer | None]
    """Returns the file of a version, a date. None if the instance does not have the file, which is
    then not listed either."""
    need: Need = METADATA
    optional: bool = False
    """Whether an instance may be without the file."""


def answer(document: Document, segments: Sequence[str], context: AnswerContext) -> Answer | None:
    """Answer a GET below ``/openstack``; None if the path does not exist.

    :param segments: the path after ``openstack``, decoded, without empty parts; from a guest.
    """
    if not segments:
        return Answer(200, "\n".join((*VERSIONS, LATEST)).encode())
    files = _in_version(segments[0])
    if not files:
        return None
    version = _dated(segments[0])
    match segments[1:]:
        case []:
            existing = (
                file for file in files if file.answer(document, version, context) is not None
            )
            return Answer(200, "\n".join(file.name for file in existing).encode())
        case [name]:
            # Only the requested one: each file is built on request.
            named = (file for file in files if file.name == name)
            return next((file.answer(document, version, context) for file in named), None)
    return None


def need(segments: Sequence[str]) -> Need:
    """Return the parts of a record that the answer for a path depends on.

    :param segments: see :func:`answer`.
    """
    match segments:
        case [version]:
            # The listing depends on the files that may be absent; the other ones are always listed.
            files = [file for file in _in_version(version) if file.optional]
            shown = {half for file in files for half in file.need.halves}
            return Need(tuple(kind for kind in Kind if kind in shown), record=True)
        case [version, name]:
            needs = (file.need for file in _in_version(version) if file.name == name)
            return next(needs, ANY_HALF)
    return ANY_HALF


def is_password(segments: Sequence[str]) -> bool:
    """Whether a path below ``/openstack`` is where a guest posts its password."""
    match segments:
        case [version, name]:
            return name == PASSWORD and (version == LATEST or version in VERSIONS[1:])
    return False


def _dated(version: str) -> str:
    return VERSIONS[-1] if version == LATEST else version


def _in_version(version: str) -> list[_File]:
    """Return the files of a version; none for an unknown version."""
    dated = _dated(version)
    return [file for file in _FILES if dated in VERSIONS and file.since <= dated]


def _metadata(document: Document, version: str, _context: AnswerContext) -> Answer:
    """Build ``meta_data.json``. The launch index is 0 unless the document has one."""
    content: dict[str, Any] = {
        "uuid": document.instance_id,
        "name": document.name,
        "hostname": document.hostname,
        "launch_index": document.launch_index or 0,
        "availability_zone": document.zone or None,
    }
    if meta := meta_of(document):
        content["meta"] = meta
    if document.keys:
        # cloud-init writes each line of these into authorized_keys: no certificates.
        content["public_keys"] = {key.name: key.data for key in document.keys}
    if keys := (*document.keys, *document.certificates):
        content["keys"] = [{"name": key.name, "type": key.kind, "data": key.data} for key in keys]
    if version >= GRIZZLY:
        content["random_seed"] = base64.b64encode(document.random_seed).decode()
    if version >= LIBERTY:
        content["project_id"] = document.project_id or None
    if version >= NEWTON_ONE:
        content["devices"] = as_of(version, devices_of(document))
    if version >= VICTORIA:
        content["dedicated_cpus"] = dedicated_cpus_of(document)
    return _json(content)


def _json(content: object) -> Answer:
    return Answer(200, json.dumps(content).encode(), content_type=JSON_TYPE)


def _userdata(document: Document, _version: str, _context: AnswerContext) -> Answer | None:
    if document.userdata is None:
        return None
    return Answer(200, document.userdata, content_type=USERDATA_TYPE)


def _network_data(document: Document, _version: str, context: AnswerContext) -> Answer | None:
    content = network_data_of(document, context.mac)
    return None if content is None else _json(content)


_FILES: Final = (
    _File("meta_data.json", FOLSOM, _metadata),
    _File("user_data", FOLSOM, _userdata, USERDATA_ALONE, optional=True),
    _File(PASSWORD, GRIZZLY, lambda document, *_: Answer(200, document.password), ANY_HALF),
    _File("vendor_data.json", HAVANA, lambda document, *_: _json(vendor_data_of(document))),
    _File("network_data.json", LIBERTY, _network_data, optional=True),
    _File("vendor_data2.json", NEWTON_TWO, lambda document, *_: _json(vendor_data2_of(document))),
)
"""In the order of Nova's listings."""
