"""Chooses os-ken's hub before anything imports it, and lets two libraries' warnings pass."""

from __future__ import annotations

import os
import warnings

import pytest

from tests.harness.certificates import Authority

os.environ["OSKEN_HUB_TYPE"] = "eventlet"

with warnings.catch_warnings():
    # eventlet announces its own retirement; WebOb 1.8 imports cgi, which Python 3.13 does not
    # have (there WebOb brings legacy-cgi along). Nothing of ours can act on either.
    warnings.simplefilter("ignore", DeprecationWarning)
    import eventlet  # noqa: F401
    import webob  # noqa: F401

    from tests.unit.nova_support import backend, upstream, upstreams  # noqa: F401


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs the certificates of tests."""
    return Authority(tmp_path_factory.mktemp("authority"))
