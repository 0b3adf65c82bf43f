"""A line that repeats should be in the log once a minute, with the number of those left out."""

from __future__ import annotations

import logging

import pytest

from dfmeta.quiet import Seldom

LOGGER = logging.getLogger("tests.quiet")


def test_a_line_that_repeats_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    moments = iter((0.0, 1.0, 59.0, 60.0, 61.0))
    seldom = Seldom(clock=lambda: next(moments))
    for _ in range(5):
        seldom.warn(LOGGER, "%s is away", "it")
    assert caplog.messages == [
        "it is away",
        "it is away (and 2 more like it since it was last logged)",
    ]
