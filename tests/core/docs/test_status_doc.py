"""doc/source/status.rst should say what the page does, with the code's own numbers and words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dfmeta.admin import page as status_http
from dfmeta.admin import status
from dfmeta.cmd import status_page
from dfmeta.conf import agent
from dfmeta.proxy import recent

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "doc/source/status.rst").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
LISTEN = next(one.default for one in agent.OPTS if one.name == "admin_listen")
FACTS = (
    f"http://{LISTEN}/",
    f"ssh -L {LISTEN.rpartition(':')[2]}:{LISTEN} ",
    f"every {status_http.REFRESH} seconds",
    f"up to {status_http.REFRESH_MAX} seconds",
    f"At most {status.SHOWN} rows",
    f"twice a minute, {status_page.NAMES_ASKED} at a time",
    f"and {recent.KINDS_KEPT} failures that differ",
    f"The last {status.FAILURES_SHOWN} of all",
    f"until {recent.PORTS} others",
    "the answer is 421",
)


@pytest.mark.parametrize("fact", FACTS)
def test_the_page_has_the_numbers_of_the_code(fact: str) -> None:
    assert fact in TEXT


def test_every_state_is_described_in_the_order_of_the_page() -> None:
    described = re.findall(r"^   \* - ``([\w ]+)``$", PAGE, re.MULTILINE)
    assert sorted(described) == sorted(status.STATES)
    assert described == sorted(described, key=lambda one: status.rank(one))


def test_every_kind_of_path_is_named() -> None:
    paths = ("/openstack", "/latest", "/nocloud", "/metadata", "/x", "")
    for kind in map(recent.kind_of, paths):
        assert f"``{kind}``" in TEXT


def test_the_example_has_the_members_that_there_are() -> None:
    block = re.search(r'^ {4}"requests": .*?(?=\n\n)', PAGE, re.DOTALL | re.MULTILINE)
    assert block is not None
    example = json.loads("{" + block.group() + "}")
    assert set(example["requests"]) == {*recent.CLASSES, "last_at", "last_status"}
    assert set(example["last_failure"]) == {
        *("at", "status", "path", "reason", "times", "failing"),
        *("own", "brief", "remedy", "failing_since"),
    }


def test_the_rows_of_the_dashboard_are_named() -> None:
    board = json.loads((ROOT / "etc/grafana/dfmeta.json").read_text(encoding="utf-8"))
    for panel in board["panels"]:
        if panel["type"] == "row":
            assert panel["title"].rstrip("?").lower() in TEXT.lower()
