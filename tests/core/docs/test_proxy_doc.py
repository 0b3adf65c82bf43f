"""doc/source/proxy.rst should have the statuses and the log line of the proxy."""

import logging
import re
from typing import Any

import pytest

from dfmeta.conf import agent, limits, store
from dfmeta.identity.key import IN_PORT
from dfmeta.identity.registry import Registry
from dfmeta.model import Answer, Endpoint, GuestRequest, Port
from dfmeta.proxy import access
from tests.core.docs.page import rows
from tests.core.docs.sources import ROOT, sources
from tests.core.docs.statuses import reasons, statuses
from tests.core.unit.support import INSTANCE, address

PAGE = (ROOT / "doc/source/proxy.rst").read_text(encoding="utf-8")
ROWS = [row for row in rows(PAGE) if len(row) == 3]
OPTIONS: dict[str, Any] = {
    opt.name: opt for opt in (*agent.OPTS, *limits.OPTS, *limits.RATE_OPTS, *store.OPTS)
}
SOURCES = sources()


def default(name: str) -> str:
    """An option's default, as the page has it."""
    value = OPTIONS[name].default
    if isinstance(value, list):
        return ",".join(map(str, value))
    if value == {}:
        return "none"
    return str(value) if isinstance(value, bool | str) else f"{value:g}"


def test_page_has_defaults_of_the_code() -> None:
    for name, value in re.findall(r"``(\w+)``\s+\(([\w.]+)\)", PAGE):
        assert default(name) == value, name


def test_page_has_each_status_of_the_proxys_own_and_each_limits_help_its_status() -> None:
    real, unknown = statuses(SOURCES)
    assert unknown == []
    assert [int(row[0]) for row in ROWS if row[0].isdigit()] == sorted(real)
    for reason, status in reasons(SOURCES):
        option = access._LIMITS.get(reason)
        assert option is None or re.search(rf"\b{status}\b", OPTIONS[option].help), reason


def test_page_has_the_line_that_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    registry, here = Registry(), Endpoint(1)
    registry.set_port(Port("tap1", "row", 1, iface_id="port", instance_id=INSTANCE))
    registry.learn(here, address(), 0)
    claim = registry.claim(IN_PORT.key_of(here, 0))
    assert claim is not None
    request = GuestRequest("GET", "/latest/meta-data/")
    timing = access.Timing(1.0, at_backend=0.012, backend="nova")
    with caplog.at_level(logging.DEBUG):
        access.answered(claim, request, Answer(200, bytes(214)), timing, 1.0125)
    (line,) = caplog.messages
    assert f"\n    {line.replace(INSTANCE, '6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10')}\n" in PAGE
