"""cloud-init should install dfmeta-cni by the vendor data of its page."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dfmeta.guest import cni
from tests.core.docs import typed
from tests.harness.cloudinit import Booting
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.host.e2e.support import put

PROGRAM, LIST = "/opt/cni/bin/dfmeta-cni", "/etc/cni/net.d/10-dfmeta.conflist"
RAN = "/run/ran"


@pytest.mark.parametrize("mode", ["NoCloud", "OpenStack"])
def test_the_vendor_data_of_the_page_installs_the_plugin(
    make_agent: MakeAgent,
    make_guest: MakeGuest,
    cloud_init: Callable[..., Booting],
    tmp_path: Path,
    mode: str,
) -> None:
    page = typed.page("dfmeta-cni")
    (block,) = (one.text for one in typed.blocks(page) if "vendor-data" in one.text)
    script, command = block.rsplit("\n", 1)
    config = re.findall(r"^\.\. code-block:: json\n\n((?:   .*\n)+)", page, re.MULTILINE)[0]
    shutil.copy(cni.__file__, tmp_path / "cni.py")
    (tmp_path / "10-dfmeta.conflist").write_text(config, encoding="ascii")
    subprocess.run(["sh", "-euc", script], cwd=tmp_path, check=True)
    agent, guest = make_agent(), make_guest(mode.lower())
    put(agent, guest)
    words = command.replace("INSTANCE", guest.instance_id).replace(
        "vendor-data vendor-data", f"vendor-data {tmp_path}/vendor-data"
    )
    agent.ctl(*shlex.split(words)[1:])
    user_data = tmp_path / "user-data"
    user_data.write_text(f"#!/bin/sh\ntest -x {PROGRAM} && touch {RAN}\n", encoding="ascii")
    agent.ctl("store", "put", guest.instance_id, "--user-data", str(user_data))
    boot = cloud_init(guest, mode=mode, files=[PROGRAM, LIST, RAN]).finish()
    assert boot.errors == [], boot.output + boot.log
    assert boot.files[PROGRAM] == Path(cni.__file__).read_text(encoding="utf-8")
    assert boot.files[LIST] == config
    # The user's own script runs beside it, after it.
    assert RAN in boot.files
