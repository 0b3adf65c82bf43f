"""doc/source/limits.rst should have the numbers of the code, and a row for each limit of guests."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest
from oslo_config import cfg

from dfmeta import conf
from dfmeta.conf import limits
from tests.core.docs.built import Pages
from tests.harness import ovs
from tests.harness.netns import run
from tests.harness.neutron_agent import PYTHON

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "doc/source/limits.rst").read_text(encoding="utf-8")
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg", encoding="utf-8")


def test_the_numbers_are_those_of_options_and_constants(pages: Pages) -> None:
    text = pages.text("limits")
    for row in (
        "Bytes of a header 8192 [guest_limits] header_max 431",
        "Body 16 MiB dfmeta.proxy.nova.replies.BODY_MAX 503",
        "Workers, at most 64 [df_metadata] proxy_workers (max)",
        "of one port at a time 7 dfmeta.flows.key.SLOTS",
        "First SYNs of a port, per second 50 dfmeta.flows.pipeline.RATES[SYN]",
        "requests that still run 3.8 dfmeta.cmd.daemon.GRACE",
    ):
        assert row in text


@pytest.mark.parametrize("option", limits.OPTS, ids=lambda one: one.name)
def test_each_limit_of_guests_is_there(option: cfg.Opt) -> None:
    assert f"``[guest_limits] {option.name}``" in PAGE


def test_what_is_not_there_is_not_there() -> None:
    names = {one.name for _group, options in conf.own_opts() for one in options}
    wrong = f"{PAGE}\n   There is no option ``port``.\n"
    assert [names & {*re.findall(r"no option ``(\w+)``", one)} for one in (PAGE, wrong)] == [
        set(),
        {"port"},
    ]


def test_the_versions_are_those_of_the_tests() -> None:
    wanted = SETUP["options"]["python_requires"].removeprefix(">=")
    assert f"{wanted} or newer" in PAGE
    declared = re.findall(r"Python :: (3\.\d+)", SETUP["metadata"]["classifiers"])
    assert f"{', '.join(declared[:-1])} and {declared[-1]} are declared" in " ".join(PAGE.split())
    vswitchd = ovs.UNPACKED / "usr/lib/openvswitch-switch/ovs-vswitchd"
    (number,) = re.findall(r"\(Open vSwitch\) (\S+)", run([str(vswitchd), "--version"]).stdout)
    assert f"- {number}, userspace" in PAGE
    command = "from importlib.metadata import version; print(version('neutron'))"
    assert f"- {run([str(PYTHON), '-I', '-c', command]).stdout.strip()}, its own" in PAGE
