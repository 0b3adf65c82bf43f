"""doc/source/proxy.rst should say what the proxy does, and this check should notice when not."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dfmeta.flows.key import IN_PORT
from dfmeta.model import Answer, Endpoint, GuestRequest, Port
from dfmeta.proxy import access
from dfmeta.registry import Registry
from tests.core.docs import page as reader
from tests.core.docs.page import emptied
from tests.core.docs.proxy_page import FACTS, STATUSES, faults
from tests.core.docs.sources import sources
from tests.core.docs.statuses import statuses
from tests.core.unit.support import INSTANCE, address

PAGE = (Path(__file__).parents[3] / "doc/source/proxy.rst").read_text(encoding="utf-8")
SOURCES = sources()
WSGI = "dfmeta/proxy/application.py"
HTTP1 = "dfmeta/proxy/http1.py"


def rows() -> Iterator[Any]:
    """Every row of every table, without those that head one."""
    for written in reader.ROW.findall(PAGE):
        first, *others = reader.rows(written)[0]
        if len(others) == 2 and (first.startswith("``") or first.isdigit()):
            yield pytest.param(written, id=first.strip("`"))


def test_the_page_says_what_the_code_does() -> None:
    assert faults(PAGE, SOURCES) == []


def test_the_line_that_is_logged_is_the_one_on_the_page(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry, here = Registry(), Endpoint(1)
    registry.set_port(Port("tap1", "row", 1, iface_id="port", instance_id=INSTANCE))
    registry.learn(here, address(), 0)
    claim = registry.claim(IN_PORT.key_of(here, 0))
    assert claim is not None
    request = GuestRequest("GET", "/latest/meta-data/")
    spent = access.Spent(1.0, asked=0.012, backend="nova")
    with caplog.at_level(logging.DEBUG):
        access.answered(claim, request, Answer(200, bytes(214)), spent, 1.0125)
    (line,) = caplog.messages
    assert f"\n    {line.replace(INSTANCE, '6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10')}\n" in PAGE


# What is noticed


@pytest.mark.parametrize("row", [*rows()])
def test_a_row_that_is_missing_is_noticed(row: str) -> None:
    assert faults(PAGE.replace(f"{row}\n", "", 1), SOURCES)


@pytest.mark.parametrize("title", [*FACTS, STATUSES, "Reading", "At SIGHUP"])
def test_a_section_that_is_emptied_is_noticed(title: str) -> None:
    assert faults(emptied(PAGE, title), SOURCES)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("     - 4096\n", "     - 4097\n"),
        ("     - auto\n", "     - close\n"),
        ("     - False\n", "     - True\n"),
        ("     - none\n", "     - some\n"),
        ("``connections_per_port`` (16)", "``connections_per_port`` (17)"),
        ("``tolerated_queries`` (32)", "``tolerable_queries`` (32)"),
        ("More lines get 431.", "More lines get 413."),
        ("   * - 414\n", "   * - 416\n"),
        ("   * - 500\n", "   * - 505\n"),
        ("     - None is needed.\n", "     - None\n"),
        *((fact.strip("`"), "") for facts in FACTS.values() for fact in facts),
    ],
)
def test_a_word_that_is_wrong_is_noticed(text: str, other: str) -> None:
    # A line may end within it.
    page, count = re.subn(re.escape(text).replace(r"\ ", r"\s+"), other, PAGE)
    assert count
    assert faults(page, SOURCES)


@pytest.mark.parametrize(
    ("module", "text", "other", "noticed"),
    [
        (WSGI, "_text(504)", "_text(505)", "505 is not in the table"),
        (WSGI, "_text(504)", "_text(503)", "504 is in the table, and never comes"),
        (WSGI, "_text(504)", "_text(error.status)", "not known: application.py: error.status"),
        (WSGI, "_text(504)", "_text()", "not known: application.py: _text()"),
        (HTTP1, "status=414", "status=400", "414 is in the table, and never comes"),
        (HTTP1, "status=414", "status=431", "request_line_max: 431 is not there"),
        ("dfmeta/proxy/connection.py", "1.1 100 Cont", "1.1 103 Cont", "103 is not in the table"),
        ("dfmeta/proxy/nova/backend.py", "Answer(", "Answer(505, ", "505 is not in the table"),
    ],
)
def test_what_changes_in_the_code_is_noticed(
    module: str, text: str, other: str, noticed: str
) -> None:
    assert text in SOURCES[module]
    texts = {**SOURCES, module: SOURCES[module].replace(text, other)}
    assert any(noticed in one for one in faults(PAGE, texts))


def test_what_the_admin_listener_answers_is_no_guests() -> None:
    admin = "dfmeta/admin/listener.py"
    found, unknown = statuses({admin: "Answer(418)", "dfmeta/proxy/other.py": "Answer(200)"})
    assert (found, unknown) == ({200}, [])
