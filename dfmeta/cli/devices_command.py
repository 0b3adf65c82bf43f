"""``dfmeta devices``: device role tags of libvirt's domains, in records and on config drives.

Source: https://docs.openstack.org/nova/latest/user/metadata.html ("Config drives").
"""

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from dfmeta.cli.common import cell_text, config_files_option, group, load_config
from dfmeta.cli.store_target import read
from dfmeta.devices import elements, libvirt, validate
from dfmeta.devices.schema import SINCE, as_of
from dfmeta.errors import DeviceError, DomainError, RecordError
from dfmeta.store import strictjson

LATEST: Final = "latest"
FILE: Final = "meta_data.json"
DRIVE_FILE_MAX: Final = 16 << 20
"""Largest size of a meta_data.json that is read, in bytes."""
_VERSION: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_MODE: Final = 0o644
SUFFIX: Final = ".xml"
_TAG_HELP: Final = (
    "Give TAG to one device: nic:VALUE=TAG or disk:VALUE=TAG, where VALUE is a NIC's MAC, target, "
    "alias, network or port id, or a disk's serial, target, alias or volume. With a KEY before it, "
    "VALUE is compared with that property alone: nic:network:default=mgmt. Repeatable."
)
_BLANKS: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()


@group("devices")
def devices() -> None:
    """Describe to guests the roles of their devices.

    Tags name the roles of a libvirt domain's disks and network interfaces. The guest reads them
    from its record in the store or from its config drive.
    """


@devices.subcommand(
    "from-libvirt",
    "dfmeta devices from-libvirt web --tag disk:vda=root",
    "dfmeta devices from-libvirt web.xml --tag nic:network:default=mgmt --store",
    failed="the store cannot be written",
)
@config_files_option
@click.argument("domain")
@click.option("--tag", "tags", multiple=True, metavar="TYPE:[KEY:]VALUE=TAG", help=_TAG_HELP)
@click.option("--store", "store", is_flag=True, help="Write it into the domain's record as well.")
def from_libvirt(
    config_files: tuple[str, ...], domain: str, *, tags: tuple[str, ...], store: bool
) -> None:
    """Print the document of the devices of DOMAIN: a name, a UUID, or a file with its XML."""
    rules = [libvirt.TagRule.parse(text) for text in tags]
    devices_of = _domain(config_files, domain)
    document = devices_of.document(rules)
    if store:
        # Imported only here, since the store's libraries are large.
        from dfmeta.store.db.repository import Repository

        with Repository(load_config(config_files).store.connection) as repository:
            result = repository.put(devices_of.uuid, document=document)
        done = "created" if result.created else "changed" if result.changed else "nothing to change"
        click.echo(f"{devices_of.uuid}: {done}", err=True)
    click.echo(json.dumps(document, indent=2))


@devices.subcommand(
    "write-config-drive",
    "dfmeta devices write-config-drive drive --domain web.xml --tag disk:vda=root",
    failed="a file cannot be written",
)
@config_files_option
@click.argument("folder", metavar="DIRECTORY", type=click.Path(path_type=Path))
@click.option(
    "--domain", help="Domain that has the devices: a name, a UUID, or a file with its XML."
)
@click.option("--tag", "tags", multiple=True, metavar="TYPE:[KEY:]VALUE=TAG", help=_TAG_HELP)
@click.option(
    "--file", "name", metavar="FILE", help="File with a document to write; - reads standard input."
)
def write_config_drive(
    config_files: tuple[str, ...],
    folder: Path,
    *,
    domain: str | None,
    tags: tuple[str, ...],
    name: str | None,
) -> None:
    """Write devices into the meta_data.json files below DIRECTORY, a config drive's content."""
    if (domain is None) == (name is None):
        raise click.UsageError("give either --domain or --file")
    if name is not None and tags:
        raise click.UsageError("--tag needs --domain: a document of --file has its own tags")
    rules = [libvirt.TagRule.parse(text) for text in tags]
    instance_id = ""
    if domain is not None:
        devices_of = _domain(config_files, domain)
        document, instance_id = devices_of.document(rules), devices_of.uuid
    else:
        document = _document(str(name))
    for path in _write(folder, document, instance_id=instance_id):
        click.echo(f"{cell_text(path)}: written")


def _document(name: str) -> dict[str, Any]:
    """Read the devices from a document of devices, or from a complete ``meta_data.json``."""
    content = read("--file", name, limit=DRIVE_FILE_MAX)
    try:
        if len(content) > DRIVE_FILE_MAX:
            raise ValueError(f"it has more than {DRIVE_FILE_MAX} bytes")
        document = strictjson.loads(content)
    except ValueError as error:
        raise RecordError(
            what="--file", value=name, cause=str(error), remedy="Name a file with a document"
        ) from error
    validate(document)
    if "devices" not in document:
        raise DeviceError(path="document", cause="has no devices")
    return {"devices": document["devices"]}


def _domain(config_files: Sequence[str], name: str) -> libvirt.DomainDevices:
    """Return a domain by file, UUID or name; an active domain before a definition.

    :raises RecordError: when there is no such domain, or more than one.
    """
    if name == "-" or "/" in name or name.endswith(SUFFIX):
        try:
            return libvirt.read_domain(read("DOMAIN", name, limit=elements.SIZE_MAX))
        except DomainError as error:
            raise _no_domain(name, str(error)) from error
    paths = load_config(config_files).df_metadata.libvirt_xml_path
    domains = list(_domains([Path(path) for path in paths]))
    # A name may look like a UUID; like libvirt, try the UUID first.
    matching = [domain for domain in domains if domain.uuid == name.lower()]
    matching = matching or [domain for domain in domains if domain.name == name]
    if not matching:
        raise _no_domain(name, f"there is no such domain in {', '.join(paths)}")
    if len({domain.uuid for domain in matching}) > 1:
        raise _no_domain(name, "several domains have that name")
    return max(matching, key=lambda domain: domain.active)


def _domains(folders: Sequence[Path]) -> Iterator[libvirt.DomainDevices]:
    """Yield all domains that can be read, and skip broken ones."""
    for folder in folders:
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            with suppress(OSError, DomainError), path.open("rb") as file:
                yield libvirt.read_domain(file.read(elements.SIZE_MAX + 1))


def _no_domain(name: str, cause: str) -> RecordError:
    remedy = "Give a name or UUID that virsh list --all --name --uuid shows, or a file with its XML"
    return RecordError(what="DOMAIN", value=name, cause=cause, remedy=remedy)


def _write(folder: Path, document: Mapping[str, Any], *, instance_id: str = "") -> list[Path]:
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
            content = file.read(DRIVE_FILE_MAX + 1)
    except FileNotFoundError:
        mode, content = _MODE, start.encode()
        path.parent.mkdir(parents=True, exist_ok=True)
    if len(content) > DRIVE_FILE_MAX:
        raise _wrong(path, f"it has more than {DRIVE_FILE_MAX} bytes")
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


def splice(text: str, member: str, value: object) -> str:
    """Return the text of a JSON object with a member set to *value*, and no other byte changed.

    A meta_data.json may belong to another program, so its numbers, order and spaces are kept.

    :param text: a JSON text (RFC 8259); if it has *member* twice, it is refused.
    :raises DeviceError: the text is not a JSON object.
    """
    try:
        # Parse the whole text first: the code below relies on its form.
        parsed = json.loads(text, parse_constant=_refuse_constant)
        if not isinstance(parsed, dict):
            raise TypeError
        spans = [span for name, span in _members(text) if name == member]
    except (ValueError, TypeError, RecursionError) as error:
        raise DeviceError(path="document", cause="not a JSON object") from error
    if len(spans) > 1:
        raise DeviceError(path="document", cause=f"{member} occurs {len(spans)} times")
    new = json.dumps(value)
    if spans:
        (start, end) = spans[0]
        return text[:start] + new + text[end:]
    end = text.rindex("}")
    before = text[:end].rstrip(" \t\n\r")
    comma = ", " if parsed else ""
    return f"{before}{comma}{json.dumps(member)}: {new}{text[len(before) : end]}{text[end:]}"


def _members(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield name and span of each value of a well-formed object."""
    place = _skip(text, _skip(text, 0) + 1)
    while text[place] != "}":
        name, place = _DECODER.raw_decode(text, place)
        start = _skip(text, _skip(text, place) + 1)
        _value, end = _DECODER.raw_decode(text, start)
        yield name, (start, end)
        place = _skip(text, end)
        if text[place] == ",":
            place = _skip(text, place + 1)


def _skip(text: str, place: int) -> int:
    found = _BLANKS.match(text, place)
    return found.end() if found else place


def _refuse_constant(name: str) -> None:
    raise ValueError(name)
