"""What lies in etc/ and stands in the README is what the code has."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dfmeta.cli.ctl import COMMANDS

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "etc/dfmeta/dfmeta.conf.sample"
README = ROOT / "README.rst"
UNIT = ROOT / "etc/systemd/dfmeta-agent.service"


def sections(text: str) -> dict[str, str]:
    """Group → its text."""
    parts = re.split(r"^\[(\w+)\]$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What oslo-config-generator makes of the options today."""
    output = tmp_path_factory.mktemp("sample") / "dfmeta.conf"
    command = [sys.executable, "-c", "from oslo_config.generator import main; main()"]
    command += ["--namespace", "dfmeta", "--wrap-width", "78", "--output-file", str(output)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    return sections(output.read_text())


# [neutron] has keystoneauth1's own words, which are another release's to change.
@pytest.mark.parametrize(
    "group", ["DEFAULT", "df_metadata", "guest_limits", "metadata_rate_limiting", "store"]
)
def test_the_sample_configuration_is_that_of_the_options(
    generated: dict[str, str], group: str
) -> None:
    assert sections(SAMPLE.read_text())[group] == generated[group]


def test_the_sample_configuration_has_every_group(generated: dict[str, str]) -> None:
    assert sections(SAMPLE.read_text()).keys() == generated.keys()


def test_the_readme_opens_with_the_two_commands() -> None:
    head = README.read_text().split("Path of a request")[0]
    assert "sudo tools/demo" in head
    assert "sudo tools/test" in head


def test_the_readme_opens_with_its_readers_requirements_and_first_steps() -> None:
    titles = re.findall(r"^(\S.*)\n=+$", README.read_text(), re.MULTILINE)
    assert titles[:4] == ["dfmeta", "Use cases", "Requirements", "First steps"]


def test_the_readme_names_the_largest_caveats_and_the_route_that_guests_need() -> None:
    needs = " ".join(README.read_text().partition("Requirements\n")[2].split())
    needs = needs.partition("First steps")[0]
    assert "Most tests run on Open vSwitch's userspace datapath" in needs
    assert "dfmeta was not tested with a real Nova" in needs
    assert "a default route, a host route from DHCP (option 121), or an on-link route" in needs


def test_the_readme_says_what_the_demo_installs_and_how_long_the_tests_take() -> None:
    head = " ".join(README.read_text().split("Path of a request")[0].split())
    assert "The demo installs Debian packages that are missing" in head
    assert "sudo tools/test # every test, in about 25 minutes on two cores: for developers" in head
    assert head.index("sudo tools/demo") < head.index("Use cases"), "it opens with them"


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_readme_names_each_command(command: str) -> None:
    assert f"``dfmeta {command}``" in README.read_text()


@pytest.mark.parametrize("path", sorted(set(re.findall(r"<([\w./-]+)>`__", README.read_text()))))
def test_the_readme_leads_to_what_is_there(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_unit_starts_what_is_installed_and_keeps_the_listener() -> None:
    text = UNIT.read_text()
    assert "dfmeta-agent --config-file /etc/dfmeta/dfmeta.conf" in text
    assert "Type=notify" in text
    assert re.search(r"^FileDescriptorStoreMax=[1-9]", text, re.MULTILINE)
