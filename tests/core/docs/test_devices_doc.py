"""doc/source/devices.rst should say of the format what the code holds a document to."""

import json
import re
from pathlib import Path
from typing import Any

from dfmeta.cli.devices_command import devices as command
from dfmeta.devices import validate
from dfmeta.devices.libvirt import KEYS, TagRule
from dfmeta.devices.schema import ADDRESSES, MEMBERS, SCHEMA, SINCE
from tests.core.docs.page import paragraphs, rows

PAGE = (Path(__file__).parents[3] / "doc/source/devices.rst").read_text(encoding="utf-8")
COMMON = ("type", "bus", "address", "tags")


def table(title: str) -> list[tuple[str, ...]]:
    """A table's rows, each cell as one line."""
    (part,) = (part for part in paragraphs(PAGE) if part.startswith(f".. csv-table:: {title}\n"))
    return rows(part)[1:]


def literal(cell: str) -> str:
    match = re.match("``([^`]+)``", cell)
    assert match, cell
    return match[1]


def json_type(kind: str, member: str) -> str:
    """As the schema has it; what is chosen from a list is a string."""
    known = SCHEMA["$defs"][f"{kind}"]["properties"][member]
    if "$ref" in known:
        known = SCHEMA["$defs"][known["$ref"].rpartition("/")[2]]
    result: str = known.get("type", "string")
    return result


def test_the_page_has_each_member_and_no_other() -> None:
    message = [
        (literal(row[0]), row[1].strip("`"), row[2], row[3]) for row in table("Members of a device")
    ]
    present: list[tuple[str, str, str, str]] = []
    for member in COMMON:
        kind = "pcidevicebus" if member == "address" else "device"
        present.append((member, "all", json_type(kind, member), SINCE))
    for name in ("nic", "disk"):
        for member in SCHEMA["$defs"][f"{name}device"]["properties"]:
            since = MEMBERS.get(member, SINCE)
            present.append((member, name, json_type(f"{name}device", member), since))
    assert message == present
    always = {literal(row[0]) for row in table("Members of a device") if "always present" in row[4]}
    kinds = ("device", "nicdevice", "diskdevice")
    assert always == {member for name in kinds for member in SCHEMA["$defs"][name]["required"]}


def test_the_page_has_each_bus_with_its_address_and_each_key_of_a_rule() -> None:
    buses = {literal(row[0]): literal(row[2]) for row in table("Buses")}
    assert list(buses) == list(ADDRESSES)
    for bus, address in buses.items():
        assert re.fullmatch(ADDRESSES[bus], address)
    message = [(literal(row[0]), literal(row[1])) for row in table("Keys")]
    assert message == [(kind, key) for kind, keys in KEYS.items() for key in keys]


def test_document_and_rules_of_the_page_are_valid() -> None:
    block = PAGE.split(".. code-block:: json\n\n", 1)[1].split("\n\nTag the devices", 1)[0]
    document: dict[str, Any] = json.loads(block)
    validate(document)
    assert document["devices"]
    rules = re.findall(r"--tag (\S+=\S+)", PAGE) + re.findall(r"``(disk:\S+=\w+)``", PAGE)
    assert len(rules) == 4
    assert [str(TagRule.parse(rule)) for rule in rules] == rules


def test_the_page_shows_each_command_and_names_each_option() -> None:
    assert [name for name in command.commands if f"# dfmeta devices {name} " not in PAGE] == []
    options = {opt for sub in command.commands.values() for par in sub.params for opt in par.opts}
    named = {"--tag", "--store", "--domain", "--file"}
    assert options - {"--config-file", "--config-dir", "domain", "folder"} == named
    assert [option for option in named if option not in PAGE] == []
