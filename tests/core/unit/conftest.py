"""Chooses os-ken's hub before anything imports it, and lets two libraries' warnings pass; fixtures
for configurations, certificates and servers."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from oslo_config import cfg

os.environ["OSKEN_HUB_TYPE"] = "eventlet"

with warnings.catch_warnings():
    # eventlet announces its own retirement; WebOb 1.8 imports cgi, which Python 3.13 does not
    # have (there WebOb brings legacy-cgi along). Nothing of ours can act on either.
    warnings.simplefilter("ignore", DeprecationWarning)
    import eventlet  # noqa: F401
    import webob  # noqa: F401

import dfmeta.conf
from dfmeta.identity.slots import ACCEPTED
from dfmeta.proxy.recent import RECENT
from dfmeta.runtime import hub
from tests.core.unit.nova_support import backend, one_round, upstream, upstreams
from tests.core.unit.support import Load, Rig, port
from tests.harness.certificates import Authority

__all__ = ["backend", "one_round", "upstream", "upstreams"]
"""Fixtures that all tests of units may use."""


@pytest.fixture(autouse=True)
def vital(monkeypatch: pytest.MonkeyPatch) -> hub.Vital:
    """The process' vital threads, for one test alone: what ends in one is no news to the next."""
    fresh = hub.Vital()
    monkeypatch.setattr(hub, "VITAL", fresh)
    return fresh


@pytest.fixture(autouse=True)
def books() -> Iterator[None]:
    """Take away the process' counts of guests: a worker of the next test would hand them over."""
    yield
    RECENT.take()
    ACCEPTED.take()


@pytest.fixture
def rig() -> Rig:
    """Provide the controller of a switch with one port, connected."""
    rig = Rig()
    rig.registry.set_port(port())
    return rig.connect()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs the certificates of tests."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a file with these options; names are option or group__option."""

    def load(*args: str, **options: object) -> cfg.ConfigOpts:
        lines: dict[str, list[str]] = {}
        for name, value in options.items():
            group, _, option = name.rpartition("__")
            lines.setdefault(group or "df_metadata", []).append(f"{option} = {value}")
        text = "\n".join(line for g, own in lines.items() for line in [f"[{g}]", *own])
        path = tmp_path / "dfmeta.conf"
        path.write_text(text)
        return dfmeta.conf.load([str(path)], prog="dfmeta-agent", args=args)

    return load
