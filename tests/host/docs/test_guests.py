"""The recipes of the page "Guests" should lead the real ds-identify to their data source."""

import shlex
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.core.docs.typed import page
from tests.harness.console import blocks
from tests.harness.netns import ROOT

BLOCKS = {block.caption: block.text for block in blocks(page("guests"))}
SOURCES = {"NoCloud": "NoCloud", "OpenStack": "OpenStack", "EC2": "Ec2", "systemd-imdsd": ""}
"""Recipe → name of cloud-init's data source."""
FILES = {
    "type=0 vendor": "bios_vendor",
    "type=1 product": "product_name",
    "type=1 serial": "product_serial",
    "type=1 uuid": "product_uuid",
}
"""Field of QEMU → file below /sys/class/dmi/id."""
TYPES = {"bios": "type=0", "system": "type=1"}
"""Element of libvirt → QEMU's name."""
PROGRAMS = {"systemd-detect-virt": "echo kvm", "blkid": ":"}
"""A machine without a seed: no disk has a label."""


def of_qemu(recipe: str) -> dict[str, str]:
    """Return the files of a recipe with their content."""
    option, value = shlex.split(BLOCKS[f"QEMU, {recipe}"])
    assert option == "-smbios"
    kind, *fields = value.split(",")
    pairs = [field.split("=", 1) for field in fields]
    return {FILES[f"{kind} {name}"]: text for name, text in pairs}


def of_libvirt(recipe: str) -> dict[str, str]:
    """Return the same of the elements for libvirt, which gives the domain's UUID to the machine."""
    domain = ElementTree.fromstring(f"<domain>{BLOCKS[f'libvirt, {recipe}']}</domain>")
    result = {
        FILES[f"{TYPES[part.tag]} {entry.attrib['name']}"]: str(entry.text)
        for part in domain.iterfind("sysinfo/*")
        for entry in part
    }
    uuid = domain.findtext("uuid")
    return {**result, "product_uuid": uuid} if uuid else result


def identified(program: Path, fields: dict[str, str], root: Path) -> str:
    """Return the list of data sources that ds-identify leaves for cloud-init; empty if disabled."""
    dmi, programs = root / "sys/class/dmi/id", root / "bin"
    for folder in (dmi, programs, root / "proc/1", root / "run/systemd"):
        folder.mkdir(parents=True)
    for name, text in fields.items():
        (dmi / name).write_text(f"{text}\n")
    for name in ("cmdline", "1/cmdline", "1/environ", "uptime"):
        (root / "proc" / name).touch()
    for name, line in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    environ = {"PATH_ROOT": str(root), "PATH": f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(["sh", program], env=environ, capture_output=True, check=False)
    text = (root / "run/cloud-init/cloud.cfg").read_text()
    return text if done.returncode == 0 else ""


def test_recipes_for_qemu_and_libvirt_are_the_same() -> None:
    assert {caption.partition(", ")[2] for caption in BLOCKS} == SOURCES.keys()
    for recipe in SOURCES:
        assert of_qemu(recipe) == of_libvirt(recipe), recipe


@pytest.mark.parametrize("release", ["root", "cloud-init"])
def test_a_recipe_leads_to_its_data_source(release: str, tmp_path: Path) -> None:
    program = ROOT / ".cache" / release / "usr/lib/cloud-init/ds-identify"
    plain = {"sys_vendor": "QEMU", "product_name": "Standard PC", "product_serial": ""}
    for recipe, source in SOURCES.items():
        result = identified(program, {**plain, **of_qemu(recipe)}, tmp_path / recipe)
        assert result == (f"datasource_list: [ {source}, None ]\n" if source else ""), recipe
