"""What the pages say of programs should hold of the programs themselves, and of Neutron's."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

from dfmeta.conf.values import EVERY, READS, STORE
from dfmeta.guest.cni import Code
from tests.core.docs.test_cni_doc import LISTS
from tests.core.docs.test_migrate import KNOWN, rows
from tests.harness import cni_file
from tests.harness.netns import ROOT
from tests.harness.poll import wait_for
from tests.host.neutron.agent import PYTHON


def test_dfmeta_store_reads_the_options_that_the_page_lists(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("", 0)) as two:
        ports = [sock.getsockname()[1] for sock in (server, two)]
    file = tmp_path / "dfmeta.conf"
    file.write_text(
        f"[df_metadata]\nstate_path = {tmp_path}\nadmin_listen = 127.0.0.1:{ports[0]}\n"
        f"[store]\nguest_listen = 127.0.0.1:{ports[1]}\ntoken_file = {tmp_path}/tokens\n"
        "oidc_issuer = https://login.example.org\noidc_audience = dfmeta\n"
        "lookup_base_url = https://store.example.org\n"
        "lookup_issuer = https://login.example.org\nlookup_client_id = a\n"
        "lookup_client_secret = b\n"
    )
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        command = [sys.executable, "-W", "ignore", "-m", "tests.host.docs.option_reads", str(file)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr)
        try:
            wait_for(lambda: "Serving" in log.read_text(), "the store to serve")
            process.send_signal(signal.SIGHUP)
            wait_for(lambda: "Reloaded" in log.read_text(), "the store to reload")
        finally:
            process.send_signal(signal.SIGTERM)
            printed, _ = process.communicate()
    assert process.returncode == 0, log.read_text()
    seen = {(group, name) for group, name in json.loads(printed)} & EVERY
    # A daemon without ports asks for no project, whatever the backend.
    assert seen - {("df_metadata", "backend")} == READS[STORE]


def test_example_of_a_network_is_accepted_by_the_installed_file(tmp_path: Path) -> None:
    program = tmp_path / "dfmeta-cni"
    cni_file.pack(program)
    for listed in LISTS:
        (plugin,) = listed["plugins"]
        assert plugin["type"] == program.name
        # As libcni does (CNI specification 1.1.0, section 3): the list's name and version.
        config = {**plugin, "name": listed["name"], "cniVersion": "1.1.0"}
        # No host answers there: code 50 comes after all keys have been read.
        config |= {"endpoint": "127.0.0.1:1", "timeout": 1}
        done = subprocess.run(
            [program],
            input=json.dumps(config).encode(),
            env={"CNI_COMMAND": "STATUS"},
            capture_output=True,
            check=False,
        )
        assert json.loads(done.stdout)["code"] == Code.UNAVAILABLE


def test_table_has_every_option_of_neutron_and_each_default_that_differs() -> None:
    program = Path(__file__).with_name("neutron_options.py")
    done = subprocess.run(
        [str(PYTHON), "-W", "ignore", str(program)], capture_output=True, text=True, check=True
    )
    former = {f"[{group}] {name}": default for group, name, default in json.loads(done.stdout)}
    listed = [option for row in rows() for option in row.former]
    assert sorted(option.name for option in listed) == sorted(former)
    assert {name: default for name, default in listed if default} == {
        option.name: former[option.name]
        for row in rows()
        for option, present in zip(row.former, row.present, strict=bool(row.present))
        if former[option.name] != KNOWN[present.name]
    }
    for row in rows():
        for option, present in zip(row.former, row.present, strict=bool(row.present)):
            assert (option.default is None) == (present.default is None), option.name
