"""The units and accounts should be as the page on installing says, which has why not more."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from dfmeta.conf.kinds import HAPROXY_ACCOUNT, WORKER_ACCOUNT
from tests.core.docs.page import rows, sections

ROOT = Path(__file__).parents[3]
UNITS = ROOT / "etc/systemd"
PAGE = (ROOT / "doc/source/install.rst").read_text(encoding="utf-8")
SERVICES = ("dfmeta-agent", "dfmeta-store")
EXPOSURE = {"dfmeta-agent": 3.0, "dfmeta-store": 1.5}
"""At most; the analyzer calls 5 and more "MEDIUM"."""


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", "--no-pager", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module", params=SERVICES)
def service(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def reasons_of(service: str) -> dict[str, str]:
    """Open item to its reason, in the page's table of that unit."""
    (section,) = (section for section in sections(PAGE) if section.title == f"{service}.service")
    result = rows("\n\n".join(section.paragraphs))
    return {name: reason for items, reason in result for name in re.findall("``([^`]+)``", items)}


def test_each_open_item_has_its_reason(service: str) -> None:
    path = UNITS / f"{service}.service"
    done = analyze("security", "--offline=true", "--json=short", path)
    items = json.loads(done.stdout)
    # What does not apply has no value.
    open_items = {setting["name"] for setting in items if setting["set"] is False}
    reasons = reasons_of(service)
    assert open_items - reasons.keys() == set(), "no reason is given"
    # Another release of the analyzer may know fewer.
    assert reasons.keys() & {setting["name"] for setting in items} == open_items
    assert [name for name, reason in reasons.items() if not reason.endswith(".")] == []


def test_exposure_is_within_that_of_the_page(service: str) -> None:
    done = analyze("security", "--offline=true", UNITS / f"{service}.service")
    match = re.search(r"exposure level for \S+: ([\d.]+) (\w+)", done.stdout)
    assert match is not None, done.stderr
    assert match[2] == "OK"
    message = re.search(r"the exposure of the agent is ([\d.]+) and the store's ([\d.]+)", PAGE)
    assert message is not None
    assert float(message[1 + SERVICES.index(service)]) <= EXPOSURE[service]
    assert float(match[1]) <= EXPOSURE[service]


def test_systemd_accepts_each_unit() -> None:
    # The manual page is where dfmeta is installed.
    done = analyze("verify", "--man=no", *sorted(UNITS.iterdir()))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_accounts_are_made_without_rights(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    files = sorted((ROOT / "etc/sysusers.d").iterdir())
    subprocess.run(["systemd-sysusers", f"--root={tmp_path}", *files], check=True)
    entries = [line.split(":") for line in (tmp_path / "etc/passwd").read_text().splitlines()]
    assert sorted(entry[0] for entry in entries) == ["dfmeta", HAPROXY_ACCOUNT, WORKER_ACCOUNT]
    assert {entry[-1] for entry in entries} == {"/usr/sbin/nologin"}
    assert len({entry[2] for entry in entries} | {"0"}) == 4
