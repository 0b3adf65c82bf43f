"""Lets a library's warning pass that comes with the first import of the daemon; builds the pages
once for all tests that look at them.
"""

from __future__ import annotations

import os
import warnings

import pytest

from tests.core.docs.built import Pages, build

os.environ["OSKEN_HUB_TYPE"] = "eventlet"

with warnings.catch_warnings():
    # eventlet announces its own retirement; WebOb 1.8 imports cgi. See tests/core/unit/conftest.py.
    warnings.simplefilter("ignore", DeprecationWarning)
    import eventlet  # noqa: F401
    import webob  # noqa: F401


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    """The pages, built once, whichever of several processes asks for them first."""
    base = tmp_path_factory.getbasetemp()
    return build((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "pages")
