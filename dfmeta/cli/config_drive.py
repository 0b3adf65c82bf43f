"""Writing devices into the directory of a config drive, for ``dfmeta devices write-config-drive``.

Source: https://docs.openstack.org/nova/latest/user/metadata.html ("Config drives").
Trust: the operator chooses the directory.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dfmeta.devices.splice import splice
from dfmeta.devices.versions import SINCE, as_of
from dfmeta.errors import DeviceError, RecordError

LATEST: Final = "latest"
FILE: Final = "meta_data.json"
SIZE_MAX: Final = 16 << 20
"""Largest size of a meta_data.json that is read, in bytes."""
_VERSION: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_MODE: Final = 0o644


def write(folder: Path, document: Mapping[str, Any], *, instance_id: str = "") -> list[Path]:
    """Write a valid document's devices into ``meta_data.json`` of each version that has devices.

    ``latest`` is always written, a dated version only if it exists. All new files are complete
    before the first replaces its predecessor, atomically; their other members do not change. A
    directory with several names (``latest`` may be a link) is written once, in the format of its
    oldest dated name.

    :param instance_id: ``uuid`` for a file that does not exist yet; empty: no ``uuid``.
    :returns: the files that were written.
    :raises RecordError: when a file cannot be read or written, or is not a JSON object.
    """
    root = folder / "openstack"
    if not folder.is_dir():
        raise _wrong(folder, "there is no such directory")
    dated = [
        path.parent.name
        for path in sorted(root.glob(f"*/{FILE}"))
        if _VERSION.fullmatch(path.parent.name) and path.parent.name >= SINCE
    ]
    folders: dict[str, str] = {}
    for version in (*dated, LATEST):
        folders.setdefault(os.path.realpath(root / version), version)
    new = [
        (root / version / FILE, as_of(version, document["devices"])) for version in folders.values()
    ]
    staged: list[tuple[Path, Path]] = []
    try:
        for path, devices in new:
            staged.append((_stage(path, devices, instance_id), path))
        for temporary, path in staged:
            os.replace(temporary, path)
    except OSError as error:
        raise _wrong(Path(error.filename or folder), error.strerror or str(error)) from error
    finally:
        for temporary, _path in staged:
            temporary.unlink(missing_ok=True)
    return [path for _temporary, path in staged]


def _stage(path: Path, devices: list[dict[str, Any]], instance_id: str) -> Path:
    """Write the new content of *path* into a file beside it, and return that file."""
    start = json.dumps({"uuid": instance_id} if instance_id else {})
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            content = file.read(SIZE_MAX + 1)
    except FileNotFoundError:
        mode, content = _MODE, start.encode()
        path.parent.mkdir(parents=True, exist_ok=True)
    if len(content) > SIZE_MAX:
        raise _wrong(path, f"it has more than {SIZE_MAX} bytes")
    try:
        text = splice(content.decode(), "devices", devices)
    except (UnicodeDecodeError, DeviceError) as error:
        cause = "it is not UTF-8" if isinstance(error, ValueError) else str(error)
        raise _wrong(path, cause) from error
    descriptor, name = tempfile.mkstemp(prefix=f".{FILE}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def _wrong(path: Path, cause: str) -> RecordError:
    return RecordError(
        what="DIRECTORY",
        value=str(path),
        cause=cause,
        remedy="Name the directory that contains a config drive's openstack directory, or an empty "
        "directory",
    )
