"""The programs in guests should start as they are installed there, and read within their bounds."""

import http.client
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dfmeta.guest import cni, snippet, tag_devices
from tests.harness import cni_file
from tests.harness.other_store import Asked, Last, OtherStore, reply
from tests.harness.poll import DEADLINE


def test_the_file_of_the_cni_plugin_alone_is_a_program(tmp_path: Path) -> None:
    program = tmp_path / "dfmeta-cni"
    cni_file.pack(program)
    assert program.read_bytes() == cni_file.packed().read_bytes()
    assert program.read_bytes().startswith(b"#!/usr/bin/python3 -IS\n")
    environ = {"CNI_COMMAND": "VERSION"}
    done = subprocess.run([program], input=b"", env=environ, capture_output=True, check=True)
    assert json.loads(done.stdout)["supportedVersions"] == [*cni.VERSIONS]
    assert done.stderr == b""
    for words, member in (("info", "api_version"), ("create <&-", "error"), ("setup /", "error")):
        shell = ["sh", "-c", f"exec {program} {words}"]
        done = subprocess.run(shell, input=b"", env={"LC_ALL": "C"}, capture_output=True)
        assert member in json.loads(done.stdout), words
        assert (done.returncode, done.stderr) == (int(member == "error"), b""), words


def test_version_and_status_of_the_cni_plugin_import_little() -> None:
    module, few = "dfmeta.guest.cni", {"ctypes", "hashlib", "typing", "http"}
    for name, avoided in ((module, few | {"socket"}), (f"{module}.host_api", few)):
        program = (
            f"import sys; sys.path.insert(0, sys.argv[1]); import {name}; "
            f"print(sorted({avoided} & sys.modules.keys()))"
        )
        command = [sys.executable, "-I", "-S", "-c", program, str(cni_file.packed())]
        assert subprocess.run(command, capture_output=True, check=True).stdout == b"[]\n"


def test_the_script_leaves_the_program_and_runs_it_at_each_boot(tmp_path: Path) -> None:
    program, per_boot = tmp_path / "lib" / "tag_devices.py", tmp_path / "boot" / "50-x"
    text = snippet.vendor_data()
    for name, place in ((snippet.PROGRAM, program), (snippet.PER_BOOT, per_boot)):
        text = text.replace(name, str(place))
    for _again in range(2):
        subprocess.run(["sh"], input=text.encode(), check=True)
        assert program.read_bytes() == Path(tag_devices.__file__).read_bytes()
        assert os.access(per_boot, os.X_OK)
        assert [path.name for path in (*program.parent.iterdir(), *per_boot.parent.iterdir())] == [
            "tag_devices.py",
            "50-x",
        ]


def test_a_guest_boots_whatever_becomes_of_the_program(tmp_path: Path) -> None:
    text = snippet.vendor_data()
    _, _, per_boot = text.partition(".new <<'END'\n")[2].rpartition("<<'END'\n")
    script = per_boot.partition("END\n")[0].replace(snippet.PROGRAM, str(tmp_path / "away.py"))
    done = subprocess.run(["sh"], input=script.encode(), capture_output=True, check=False)
    assert done.returncode == 0
    assert b"away.py" in done.stderr
    empty = subprocess.run(
        ["/bin/sh"], input=script.encode(), capture_output=True, check=False, env={"PATH": ""}
    )
    assert (empty.returncode, empty.stdout) == (0, b"")


RAW = b'{"devices": [{"type": "nic", "bus": "none", "devname": "eth0", "tags": ["lan"]}]}'
FOUND, WANTS_A_TOKEN = reply(RAW), reply(b"", status=401)


def ask(*answers: bytes) -> tuple[tuple[int, bytes], list[Asked]]:
    """What the program gets of a service with these answers in turn, and what it asks."""
    turns = iter(answers)
    with OtherStore(lambda _request: Last(next(turns))) as service:
        response = tag_devices.request("127.0.0.1", service.port, timeout=DEADLINE)
        return response, service.asked


def test_a_document_is_asked_for_by_the_services_own_name() -> None:
    result, [request] = ask(FOUND)
    assert result == (200, RAW)
    assert (request.method, request.target) == ("GET", "/openstack/latest/meta_data.json")
    assert request.headers["host"] == "127.0.0.1"


def test_a_service_that_wants_a_token_gets_one() -> None:
    result, [_first, put, again] = ask(WANTS_A_TOKEN, reply(b"token-1"), FOUND)
    assert result == (200, RAW)
    assert (put.method, put.target) == ("PUT", "/latest/api/token")
    assert (again.method, again.target) == ("GET", "/openstack/latest/meta_data.json")
    assert put.headers["x-aws-ec2-metadata-token-ttl-seconds"] == "60"
    assert again.headers["x-aws-ec2-metadata-token"] == "token-1"


def test_an_odd_token_is_not_sent() -> None:
    for token in (b"a\r\nX-Tenant-ID: b", b"a\n b", b"\xff", b""):
        # A third request would end without an answer.
        with pytest.raises(ValueError, match="an invalid token"):
            ask(WANTS_A_TOKEN, reply(token))


def test_a_redirection_is_not_followed_and_no_proxy_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    (status, _body), _request = ask(reply(b"", status=302, headers=("Location: /",)))
    assert status == 302


def test_no_more_than_the_bound_is_read() -> None:
    (_status, body), _request = ask(reply(b" " * (9 << 20)))
    assert len(body) == tag_devices.MAX_BYTES + 1


def test_an_answer_that_comes_by_drops_is_given_up() -> None:
    """Each drop comes long before the socket's own time-out, and they come for ever."""
    start = b"HTTP/1.1 200 OK\r\n"
    for head in (
        b"",
        start + b"Content-Length: 100000\r\n\r\n",
        start + b"\r\n",
        start + b"Transfer-Encoding: chunked\r\n\r\n1000\r\n",
    ):
        with OtherStore() as service:
            service.answer = lambda _request, head=head: service.trickle(head, b"H")
            with pytest.raises((OSError, http.client.HTTPException)):
                tag_devices.request("127.0.0.1", service.port, timeout=0.3)
