"""doc/source/proxy.rst should say what the proxy does, and this check should notice when not."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dfmeta.flows.key import IN_PORT
from dfmeta.model import Answer, Endpoint, GuestRequest, Port
from dfmeta.proxy import access
from dfmeta.registry import Registry
from tests.core.docs.proxy_page import faults
from tests.core.docs.sources import sources
from tests.core.unit.support import INSTANCE, address

PAGE = (Path(__file__).parents[3] / "doc/source/proxy.rst").read_text(encoding="utf-8")
SOURCES = sources()
WSGI = "dfmeta/proxy/application.py"


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


def test_differences_are_reported() -> None:
    assert faults(PAGE.replace("     - 4096\n", "     - 4097\n"), SOURCES)
    assert faults(PAGE.replace("   * - 414\n", "   * - 416\n"), SOURCES)
    for text, other, reported in (
        ("_text(504)", "_text(505)", "505 is not in the table"),
        ("_text(504)", "_text(error.status)", "not known: application.py: error.status"),
    ):
        texts = {**SOURCES, WSGI: SOURCES[WSGI].replace(text, other)}
        assert any(reported in fault for fault in faults(PAGE, texts))
